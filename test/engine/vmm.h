// Shared by the scenarios of VMM memory.
#ifndef SLUICE_TEST_ENGINE_VMM_H_
#define SLUICE_TEST_ENGINE_VMM_H_

#include <vector>

#include "test/engine/scenario.h"

namespace scenario::vmm {

using Handle = CUmemGenericAllocationHandle;

inline CUmemAllocationProp Properties() {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;  // as PyTorch and XLA ask for
  return prop;
}
inline Handle Create(uint64_t bytes) {
  const CUmemAllocationProp prop = Properties();
  Handle handle = 0;
  OK(cuMemCreate(&handle, bytes, &prop, 0));
  return handle;
}
inline CUdeviceptr Reserve(uint64_t bytes) {
  CUdeviceptr at = 0;
  OK(cuMemAddressReserve(&at, bytes, 0, 0, 0));
  return at;
}
inline void Allow(CUdeviceptr at, uint64_t bytes) {
  const CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  OK(cuMemSetAccess(at, bytes, &access, 1));
}
inline void Map(CUdeviceptr at, uint64_t bytes, Handle handle) {
  OK(cuMemMap(at, bytes, 0, handle, 0));
  Allow(at, bytes);
}
inline void Synchronize() { OK(cuCtxSynchronize()); }
// Of the bytes themselves: the simulated driver's digests differ for a copy that went over the host.
inline void PrintBytes(const char* what, CUdeviceptr at, uint64_t bytes) {
  Synchronize();
  std::vector<unsigned char> copy(bytes);
  OK(cuMemcpyDtoH(copy.data(), at, bytes));
  uint64_t hash = 14695981039346656037U;
  for (const unsigned char byte : copy) hash = (hash ^ byte) * 1099511628211U;
  Print(what, hash);
}

}  // namespace scenario::vmm

#endif  // SLUICE_TEST_ENGINE_VMM_H_
