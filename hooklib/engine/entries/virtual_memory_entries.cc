// VMM memory: which of it is managed is decided in device/virtual_memory.h.
#include <vector>

#include "hooklib/dispatch/caller.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/virtual_memory.h"
#include "hooklib/engine/execute/work.h"

namespace sluice {

namespace {

constexpr const char* kExported = "a handle is exported";
constexpr const char* kArray = "a handle is bound to a sparse array";
constexpr const char* kMulticast = "a handle is bound to a multicast object";

// make(driver's handle), for memory that only the driver's own form serves.
template <typename Make>
CUresult WithDriverHandle(CUmemGenericAllocationHandle handle, const char* use, Make make) {
  CUmemGenericAllocationHandle unmanaged = 0;
  const CUresult result = virtual_memory::DriverHandle(handle, use, &unmanaged);
  return result == CUDA_SUCCESS ? make(unmanaged) : result;
}

template <typename Make>
CUresult MapArrays(const CUarrayMapInfo* list, unsigned count, Make make) {
  std::vector<CUarrayMapInfo> infos;
  if (list) infos.assign(list, list + count);
  for (CUarrayMapInfo& info : infos) {
    if (info.memOperationType != CU_MEM_OPERATION_TYPE_MAP || info.memHandleType != CU_MEM_HANDLE_TYPE_GENERIC)
      continue;
    CUmemGenericAllocationHandle unmanaged = 0;
    const CUresult result = virtual_memory::DriverHandle(info.memHandle.memHandle, kArray, &unmanaged);
    if (result != CUDA_SUCCESS) return result;
    info.memHandle.memHandle = unmanaged;
  }
  return make(list ? infos.data() : nullptr);
}

}  // namespace

namespace entry {

CUresult cuMemAddressReserve(CUdeviceptr* pointer, size_t bytes, size_t alignment, CUdeviceptr hint,
                             unsigned long long flags) {
  return virtual_memory::Reserve(Caller(), pointer, bytes, alignment, hint, flags);
}
CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes) { return virtual_memory::FreeAddress(pointer, bytes); }
CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                     unsigned long long flags) {
  return virtual_memory::Create(Caller(), handle, bytes, properties, flags);
}
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) { return virtual_memory::Release(handle); }
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* address) {
  return virtual_memory::Retain(Caller(), handle, address);
}
CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  return virtual_memory::Map(pointer, bytes, offset, handle, flags);
}
CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes) { return virtual_memory::Unmap(pointer, bytes); }
CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access, size_t count) {
  return virtual_memory::SetAccess(pointer, bytes, access, count);
}
CUresult cuMemGetAccess(unsigned long long* flags, const CUmemLocation* location, CUdeviceptr pointer) {
  return virtual_memory::GetAccess(flags, location, pointer);
}
CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
  return virtual_memory::GetProperties(properties, handle);
}

CUresult cuMemExportToShareableHandle(void* shared, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                      unsigned long long flags) {
  return WithDriverHandle(handle, kExported, [&](CUmemGenericAllocationHandle unmanaged) {
    return g_real.cuMemExportToShareableHandle(shared, unmanaged, type, flags);
  });
}
CUresult cuMemMapArrayAsync(CUarrayMapInfo* list, unsigned count, CUstream stream) {
  return MapArrays(list, count, [&](CUarrayMapInfo* infos) {
    return RunUnplanned(stream, false, [&] { return g_real.cuMemMapArrayAsync(infos, count, stream); });
  });
}
CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo* list, unsigned count, CUstream stream) {
  return MapArrays(list, count, [&](CUarrayMapInfo* infos) {
    return RunUnplanned(stream, true, [&] { return g_real.cuMemMapArrayAsync_ptsz(infos, count, stream); });
  });
}
CUresult cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t offset, CUdeviceptr pointer, size_t bytes,
                             unsigned long long flags) {
  const CUresult result = virtual_memory::MakeDriversOwn(pointer, kMulticast);
  return result == CUDA_SUCCESS ? g_real.cuMulticastBindAddr(multicast, offset, pointer, bytes, flags) : result;
}
CUresult cuMulticastBindAddr_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                                CUdeviceptr pointer, size_t bytes, unsigned long long flags) {
  const CUresult result = virtual_memory::MakeDriversOwn(pointer, kMulticast);
  return result == CUDA_SUCCESS ? g_real.cuMulticastBindAddr_v2(multicast, device, offset, pointer, bytes, flags)
                                : result;
}
CUresult cuMulticastBindMem(CUmemGenericAllocationHandle multicast, size_t offset, CUmemGenericAllocationHandle handle,
                            size_t handle_offset, size_t bytes, unsigned long long flags) {
  return WithDriverHandle(handle, kMulticast, [&](CUmemGenericAllocationHandle unmanaged) {
    return g_real.cuMulticastBindMem(multicast, offset, unmanaged, handle_offset, bytes, flags);
  });
}
CUresult cuMulticastBindMem_v2(CUmemGenericAllocationHandle multicast, CUdevice device, size_t offset,
                               CUmemGenericAllocationHandle handle, size_t handle_offset, size_t bytes,
                               unsigned long long flags) {
  return WithDriverHandle(handle, kMulticast, [&](CUmemGenericAllocationHandle unmanaged) {
    return g_real.cuMulticastBindMem_v2(multicast, device, offset, unmanaged, handle_offset, bytes, flags);
  });
}

}  // namespace entry
}  // namespace sluice
