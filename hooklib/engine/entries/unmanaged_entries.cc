// VMM memory, arrays and shared pools: unmanaged memory. An application's VMM memory (all of JAX's, PyTorch's
// expandable_segments) is device memory by handle; the driver backs no reservation by managed memory.
#include <optional>
#include <unordered_map>
#include <vector>

#include "common/mutex.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/locations.h"
#include "hooklib/engine/device/unmanaged.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

using Charge = UnmanagedCharge;

// CUdeviceptr and CUmemGenericAllocationHandle are one C type; as keys they must differ.
struct Pointer {
  CUdeviceptr value;
  bool operator==(const Pointer&) const = default;
};
struct VmmHandle {
  CUmemGenericAllocationHandle value;
  bool operator==(const VmmHandle&) const = default;
};
struct HashOf {
  size_t operator()(Pointer key) const { return std::hash<unsigned long long>()(key.value); }
  size_t operator()(VmmHandle key) const { return std::hash<unsigned long long>()(key.value); }
  size_t operator()(const void* key) const { return std::hash<const void*>()(key); }
};

Mutex g_mutex;  // guards the maps; no other lock is taken inside
template <typename Key>
std::unordered_map<Key, Charge, HashOf>& Charges() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::unordered_map<Key, Charge, HashOf>();
  return map;
}
std::unordered_map<CUdeviceptr, CUmemGenericAllocationHandle>& Mapped() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::unordered_map<CUdeviceptr, CUmemGenericAllocationHandle>();
  return map;
}

// Drops one reference; the last one releases the bytes.
template <typename Key>
void Drop(Key key) {
  MutexLock lock(g_mutex);
  auto& charges = Charges<Key>();
  const auto it = charges.find(key);
  if (it == charges.end() || --it->second.references > 0) return;
  it->second.device->ReleaseUnmanaged(it->second.bytes);
  charges.erase(it);
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

template <typename Key>
void AddReference(Key key) {
  MutexLock lock(g_mutex);
  const auto it = Charges<Key>().find(key);
  if (it != Charges<Key>().end()) ++it->second.references;
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
  Charges<Key>()[key] = {bytes, device, context, 1};
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

uint64_t ArrayBytes(const CUDA_ARRAY3D_DESCRIPTOR& d, unsigned levels) {
  // Such arrays consist of VMM memory that is mapped into them, and was counted when it was made.
  if (d.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) return 0;
  uint64_t element = 4;
  switch (d.Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
      element = 1;
      break;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
      element = 2;
      break;
    default:
      break;
  }
  const uint64_t base =
      d.Width * (d.Height ? d.Height : 1) * (d.Depth ? d.Depth : 1) * element * (d.NumChannels ? d.NumChannels : 1);
  return levels > 1 ? base + base / 3 : base;
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

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  auto real = [&] { return g_real.cuMemCreate(handle, bytes, properties, flags); };
  // Host-located handles (NCCL's) are no device memory.
  const std::optional<CUdevice> ordinal = properties ? DeviceOf(properties->location) : std::nullopt;
  if (!ordinal) return real();
  EnsureStarted();
  Device* device = DeviceByOrdinal(*ordinal);
  if (!device) return real();
  if (!device->ReserveUnmanaged(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = real();
  if (result != CUDA_SUCCESS) {
    device->ReleaseUnmanaged(bytes);
    return result;
  }
  Remember(VmmHandle{*handle}, bytes, device, nullptr);
  static std::atomic<bool> logged{false};
  if (!logged.exchange(true)) {
    NotifyAgent(SLUICE_NOTICE_UNMANAGED_VMM, device->uuid.c_str());
    SLUICE_LOG(kWarn,
               "this process allocates through VMM (cuMemCreate): not oversubscribed, the budget of %s is a hard limit",
               settings::HumanBytes(device->Budget().budget_bytes, 2).c_str());
  }
  return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const VmmHandle key{handle};
  const std::optional<Charge> charge = Take(key);
  if (charge && charge->references > 1) {
    PutBack(key, *charge);  // mapped, or retained: the handle's value cannot be given again
    const CUresult result = g_real.cuMemRelease(handle);
    if (result == CUDA_SUCCESS) Drop(key);
    return result;
  }
  const CUresult result = g_real.cuMemRelease(handle);
  if (!charge) return result;
  if (result == CUDA_SUCCESS) {
    SettleUnmanaged(*charge);
  } else {
    PutBack(key, *charge);
  }
  return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const CUresult result = g_real.cuMemRetainAllocationHandle(handle, address);
  if (result == CUDA_SUCCESS) AddReference(VmmHandle{*handle});
  return result;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  const CUresult result = g_real.cuMemMap(pointer, bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS) {
    MutexLock lock(g_mutex);
    auto& charges = Charges<VmmHandle>();
    if (const auto it = charges.find(VmmHandle{handle}); it != charges.end()) {
      ++it->second.references;  // memory stays allocated while it is mapped, also after the handle's release
      Mapped()[pointer] = handle;
    }
  }
  return result;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  const CUresult result = g_real.cuMemUnmap(pointer, bytes);
  if (result != CUDA_SUCCESS) return result;
  std::vector<CUmemGenericAllocationHandle> unmapped;
  {
    MutexLock lock(g_mutex);
    auto& mapped = Mapped();
    for (auto it = mapped.begin(); it != mapped.end();) {
      if (it->first >= pointer && it->first < pointer + bytes) {
        unmapped.push_back(it->second);
        it = mapped.erase(it);
      } else {
        ++it;
      }
    }
  }
  for (const auto handle : unmapped) Drop(VmmHandle{handle});
  return result;
}

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

// Refused for each tracked block. Managed memory cannot be exported, and small blocks share one allocation of the
// driver's, whose handle would give the other process the base of that one.
CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  if (!FindTracked(pointer)) return g_real.cuIpcGetMemHandle(handle, pointer);
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
