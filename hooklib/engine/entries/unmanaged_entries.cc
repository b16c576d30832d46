// VMM memory, arrays and shared pools: plain. Applications' VMM memory (all of JAX, PyTorch's expandable_segments) is
// device memory that was asked for by handle; a reservation is never backed by managed memory.
#include <mutex>
#include <set>
#include <unordered_map>

#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/unmanaged.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

struct Charge {
  uint64_t bytes = 0;
  Device* device = nullptr;
  CUcontext context = nullptr;  // with which it ends; null: with none
  int references = 1;
};

// CUdeviceptr and CUmemGenericAllocationHandle are one C type; here they are two.
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

std::mutex g_mutex;
template <typename Key>
std::unordered_map<Key, Charge, HashOf>& Charges() {
  static auto& map = *new std::unordered_map<Key, Charge, HashOf>();
  return map;
}
std::unordered_map<CUdeviceptr, CUmemGenericAllocationHandle>& Mapped() {
  static auto& map = *new std::unordered_map<CUdeviceptr, CUmemGenericAllocationHandle>();
  return map;
}
std::set<CUmemoryPool>& Foreign() {
  static auto& set = *new std::set<CUmemoryPool>();
  return set;
}

// Drops one reference; the last gives the bytes back.
template <typename Key>
void Drop(Key key) {
  std::lock_guard lock(g_mutex);
  auto& charges = Charges<Key>();
  const auto it = charges.find(key);
  if (it == charges.end() || --it->second.references > 0) return;
  it->second.device->GiveUnmanaged(it->second.bytes);
  charges.erase(it);
}

template <typename Key>
void Remember(Key key, uint64_t bytes, Device* device, CUcontext context) {
  std::lock_guard lock(g_mutex);
  Charges<Key>()[key] = {bytes, device, context, 1};
}

template <typename Key>
void DropAllOf(CUcontext context) {
  std::lock_guard lock(g_mutex);
  std::erase_if(Charges<Key>(), [context](const auto& entry) {
    const Charge& charge = entry.second;
    if (charge.context != context) return false;
    charge.device->GiveUnmanaged(charge.bytes);
    return true;
  });
}

uint64_t ArrayBytes(const CUDA_ARRAY3D_DESCRIPTOR& d, unsigned levels) {
  // Of VMM memory that is mapped into them, and was counted when it was made.
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
  if (!device->TakeUnmanaged(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = make();
  if (result == CUDA_SUCCESS) {
    Remember(*handle, bytes, device, context);
  } else {
    device->GiveUnmanaged(bytes);
  }
  return result;
}

}  // namespace

void RememberUnmanaged(CUdeviceptr pointer, uint64_t bytes, Device* device, CUcontext context) {
  Remember(Pointer{pointer}, bytes, device, context);
}
void ForgetUnmanaged(CUdeviceptr pointer) { Drop(Pointer{pointer}); }
void ForgetUnmanagedOf(CUcontext context) {
  if (!context) return;
  DropAllOf<Pointer>(context);
  DropAllOf<CUarray>(context);
  DropAllOf<CUmipmappedArray>(context);
}

void NoteExternalPool(CUmemoryPool pool) {
  std::lock_guard lock(g_mutex);
  Foreign().insert(pool);
}
bool IsExternalPool(CUmemoryPool pool) {
  std::lock_guard lock(g_mutex);
  return Foreign().count(pool) > 0;
}

namespace entry {

CUresult cuMemPoolDestroy(CUmemoryPool pool) {
  const CUresult result = g_real.cuMemPoolDestroy(pool);
  std::lock_guard lock(g_mutex);
  Foreign().erase(pool);
  return result;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  auto real = [&] { return g_real.cuMemCreate(handle, bytes, properties, flags); };
  // Host-located handles (NCCL's) are nobody's device memory.
  if (!properties || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return real();
  EnsureStarted();
  Device* device = DeviceByOrdinal(properties->location.id);
  if (!device) return real();
  if (!device->TakeUnmanaged(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = real();
  if (result != CUDA_SUCCESS) {
    device->GiveUnmanaged(bytes);
    return result;
  }
  Remember(VmmHandle{*handle}, bytes, device, nullptr);
  static std::atomic<bool> said{false};
  if (!said.exchange(true)) {
    NotifyAgent(SLUICE_NOTICE_PLAIN_VMM, device->uuid.c_str());
    SLUICE_LOG(kWarn,
               "this process allocates through VMM (cuMemCreate): not oversubscribed, the budget of %s is a hard limit",
               settings::HumanBytes(device->budget.budget_bytes, 2).c_str());
  }
  return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  const CUresult result = g_real.cuMemRelease(handle);
  if (result == CUDA_SUCCESS) Drop(VmmHandle{handle});
  return result;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  const CUresult result = g_real.cuMemRetainAllocationHandle(handle, address);
  if (result == CUDA_SUCCESS) {
    std::lock_guard lock(g_mutex);
    auto& charges = Charges<VmmHandle>();
    if (const auto it = charges.find(VmmHandle{*handle}); it != charges.end()) ++it->second.references;
  }
  return result;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  const CUresult result = g_real.cuMemMap(pointer, bytes, offset, handle, flags);
  if (result == CUDA_SUCCESS) {
    std::lock_guard lock(g_mutex);
    auto& charges = Charges<VmmHandle>();
    if (const auto it = charges.find(VmmHandle{handle}); it != charges.end()) {
      ++it->second.references;  // memory lives while it is mapped, also after the handle's release
      Mapped()[pointer] = handle;
    }
  }
  return result;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) {
  const CUresult result = g_real.cuMemUnmap(pointer, bytes);
  if (result != CUDA_SUCCESS) return result;
  std::vector<CUmemGenericAllocationHandle> gone;
  {
    std::lock_guard lock(g_mutex);
    auto& mapped = Mapped();
    for (auto it = mapped.begin(); it != mapped.end();) {
      if (it->first >= pointer && it->first < pointer + bytes) {
        gone.push_back(it->second);
        it = mapped.erase(it);
      } else {
        ++it;
      }
    }
  }
  for (const auto handle : gone) Drop(VmmHandle{handle});
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
  const CUresult result = g_real.cuArrayDestroy(array);
  if (result == CUDA_SUCCESS) Drop(array);
  return result;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* array, const CUDA_ARRAY3D_DESCRIPTOR* d, unsigned levels) {
  auto real = [&] { return g_real.cuMipmappedArrayCreate(array, d, levels); };
  return !array || !d ? real() : MakeArray(array, ArrayBytes(*d, levels), real);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  const CUresult result = g_real.cuMipmappedArrayDestroy(array);
  if (result == CUDA_SUCCESS) Drop(array);
  return result;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr pointer) {
  const CUresult result = g_real.cuIpcGetMemHandle(handle, pointer);
  static std::atomic<bool> said{false};
  if (result != CUDA_SUCCESS && FindTracked(pointer) && !said.exchange(true)) {
    SLUICE_LOG(kWarn,
               "cuIpcGetMemHandle on memory that sluice moves fails; set SLUICE_PLAIN=1 for programs that share device "
               "memory by IPC");
  }
  return result;
}

}  // namespace entry
}  // namespace sluice
