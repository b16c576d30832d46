// Arrays, and memory that stays as the driver makes it: unmanaged memory.
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/array_bytes.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/locations.h"
#include "hooklib/engine/device/unmanaged.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

using Charge = UnmanagedCharge;

struct Pointer {
  CUdeviceptr value;
  bool operator==(const Pointer&) const = default;
};
struct HashOf {
  size_t operator()(Pointer key) const { return std::hash<unsigned long long>()(key.value); }
  size_t operator()(const void* key) const { return std::hash<const void*>()(key); }
};

Mutex g_mutex;  // guards the maps; no other lock is taken inside
template <typename Key>
std::unordered_map<Key, Charge, HashOf>& Charges() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::unordered_map<Key, Charge, HashOf>();
  return map;
}

// The whole charge of a key, taken out.
template <typename Key>
std::optional<Charge> Take(Key key) {
  MutexLock lock(g_mutex);
  auto& charges = Charges<Key>();
  const auto it = charges.find(key);
  if (it == charges.end()) return std::nullopt;
  const Charge charge = it->second;
  charges.erase(it);
  return charge;
}

template <typename Key>
void PutBack(Key key, const Charge& charge) {
  MutexLock lock(g_mutex);
  Charges<Key>()[key] = charge;
}

// destroy(), with the charge taken before it and put back where it fails.
template <typename Key, typename Destroy>
CUresult Destroyed(Key key, Destroy destroy) {
  const std::optional<Charge> charge = Take(key);
  const CUresult result = destroy();
  if (!charge) return result;
  if (result == CUDA_SUCCESS) {
    SettleUnmanaged(*charge);
  } else {
    PutBack(key, *charge);
  }
  return result;
}

template <typename Key>
void Remember(Key key, uint64_t bytes, Device* device, CUcontext context) {
  MutexLock lock(g_mutex);
  Charges<Key>()[key] = {bytes, device, context};
}

template <typename Key>
void DropAllOf(CUcontext context) {
  MutexLock lock(g_mutex);
  std::erase_if(Charges<Key>(), [context](const auto& entry) {
    const Charge& charge = entry.second;
    if (charge.context != context) return false;
    charge.device->ReleaseUnmanaged(charge.bytes);
    return true;
  });
}

template <typename Handle, typename Make>
CUresult MakeArray(Handle* handle, uint64_t bytes, Make make) {
  CUcontext context = nullptr;
  Device* device = CurrentDevice(&context);
  if (!device) return make();
  if (!device->ReserveUnmanaged(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = make();
  if (result == CUDA_SUCCESS) {
    Remember(*handle, bytes, device, context);
  } else {
    device->ReleaseUnmanaged(bytes);
  }
  return result;
}

}  // namespace

void RememberUnmanaged(CUdeviceptr pointer, uint64_t bytes, Device* device, CUcontext context) {
  Remember(Pointer{pointer}, bytes, device, context);
}
std::optional<UnmanagedCharge> TakeUnmanaged(CUdeviceptr pointer) { return Take(Pointer{pointer}); }
void PutUnmanagedBack(CUdeviceptr pointer, const UnmanagedCharge& charge) { PutBack(Pointer{pointer}, charge); }
void SettleUnmanaged(const UnmanagedCharge& charge) { charge.device->ReleaseUnmanaged(charge.bytes); }
void ForgetUnmanagedOf(CUcontext context) {
  if (!context) return;
  DropAllOf<Pointer>(context);
  DropAllOf<CUarray>(context);
  DropAllOf<CUmipmappedArray>(context);
}

namespace entry {

CUresult cuArrayCreate_v2(CUarray* array, const CUDA_ARRAY_DESCRIPTOR* d) {
  auto real = [&] { return g_real.cuArrayCreate_v2(array, d); };
  if (!array || !d) return real();
  CUDA_ARRAY3D_DESCRIPTOR full{};
  full.Width = d->Width;
  full.Height = d->Height;
  full.Format = d->Format;
  full.NumChannels = d->NumChannels;
  return MakeArray(array, ArrayBytes(full, 1), real);
}

CUresult cuArray3DCreate_v2(CUarray* array, const CUDA_ARRAY3D_DESCRIPTOR* d) {
  auto real = [&] { return g_real.cuArray3DCreate_v2(array, d); };
  return !array || !d ? real() : MakeArray(array, ArrayBytes(*d, 1), real);
}

CUresult cuArrayDestroy(CUarray array) {
  return Destroyed(array, [&] { return g_real.cuArrayDestroy(array); });
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* d, unsigned levels) {
  auto real = [&] { return g_real.cuMipmappedArrayCreate(array, d, levels); };
  return !array || !d ? real() : MakeArray(array, ArrayBytes(*d, levels), real);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return Destroyed(array, [&] { return g_real.cuMipmappedArrayDestroy(array); });
}

// Refused for each tracked block, and for addresses beside them in the engine's memory. Managed memory cannot be
// exported, and small blocks share one allocation of the driver's, whose handle would give the other process the base
// of that one.
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  if (!FindTracked(pointer) && !IsFreeInArena(pointer)) return g_real.cuIpcGetMemHandle(handle, pointer);
  static std::atomic<bool> logged{false};
  if (!logged.exchange(true)) {
    SLUICE_LOG(
        kWarn,
        "cuIpcGetMemHandle on memory that sluice moves fails; set SLUICE_UNMANAGED=1 for programs that share device "
        "memory by IPC");
  }
  return CUDA_ERROR_INVALID_VALUE;
}

}  // namespace entry
}  // namespace sluice
