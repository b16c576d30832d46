// What generated programs do beside work on blocks: handles that are mapped twice or exported, semaphores of other
// interfaces, decompression, pools' marks, and calls behind an error that lasts.
#include <dlfcn.h>
#include <unistd.h>

#include "machine.h"
#include "simgpu/simgpu.h"
#include "try.h"

namespace differential {

namespace {

CUexternalSemaphore g_semaphores[kMaxSemaphores];
CUevent g_in_place[kMaxSemaphores];  // of semaphores, on a card: no other interface is here that could make them
auto* const g_next_launch = reinterpret_cast<decltype(&simgpu_next_launch)>(dlsym(RTLD_DEFAULT, "simgpu_next_launch"));

void* AsPointer(uintptr_t at) { return reinterpret_cast<void*>(at); }  // NOLINT(performance-no-int-to-ptr)

// Two addresses of the same memory.
CUresult WriteOneReadOther(CUdeviceptr one, CUdeviceptr other) {
  const uint64_t written = 0x5105E;
  uint64_t read = 0;
  TRY(cuMemcpyHtoD(one, &written, sizeof written));
  TRY(cuMemcpyDtoH(&read, other, sizeof read));
  return read == written ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

}  // namespace

CUresult Alias(CUdeviceptr at, size_t bytes, int device) {
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr other = 0;
  TRY(cuMemRetainAllocationHandle(&handle, AsPointer(at)));
  TRY(cuMemAddressReserve(&other, bytes, 0, 0, 0));
  const CUresult mapped = cuMemMap(other, bytes, 0, handle, 0);
  if (mapped == CUDA_SUCCESS) {
    CUmemAccessDesc access{};
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    TRY(cuMemSetAccess(other, bytes, &access, 1));
    TRY(WriteOneReadOther(other, at));
    TRY(cuMemUnmap(other, bytes));
  } else if (mapped != CUDA_ERROR_NOT_SUPPORTED) {
    return mapped;
  } else {
    TRY(WriteOneReadOther(at, at));
  }
  TRY(cuMemAddressFree(other, bytes));
  return cuMemRelease(handle);
}

CUresult Export(CUdeviceptr at) {
  CUmemGenericAllocationHandle handle = 0;
  int file = -1;
  TRY(cuMemRetainAllocationHandle(&handle, AsPointer(at)));
  const CUresult exported = cuMemExportToShareableHandle(&file, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (exported == CUDA_SUCCESS) close(file);
  if (exported != CUDA_SUCCESS && exported != CUDA_ERROR_NOT_SUPPORTED) return exported;
  return cuMemRelease(handle);
}

CUresult MakeSemaphore(int semaphore) {
  if (!Simulated()) return cuEventCreate(&g_in_place[semaphore], CU_EVENT_DISABLE_TIMING);
  CUDA_EXTERNAL_SEMAPHORE_HANDLE_DESC said{};
  said.type = CU_EXTERNAL_SEMAPHORE_HANDLE_TYPE_TIMELINE_SEMAPHORE_FD;
  return cuImportExternalSemaphore(&g_semaphores[semaphore], &said);
}
CUresult SignalSemaphore(int semaphore, CUstream stream) {
  if (!Simulated()) return cuEventRecord(g_in_place[semaphore], stream);
  CUDA_EXTERNAL_SEMAPHORE_SIGNAL_PARAMS said{};
  said.params.fence.value = 1;
  return cuSignalExternalSemaphoresAsync(&g_semaphores[semaphore], &said, 1, stream);
}
CUresult WaitSemaphore(int semaphore, CUstream stream) {
  if (!Simulated()) return cuStreamWaitEvent(stream, g_in_place[semaphore], 0);
  CUDA_EXTERNAL_SEMAPHORE_WAIT_PARAMS said{};
  said.params.fence.value = 1;
  return cuWaitExternalSemaphoresAsync(&g_semaphores[semaphore], &said, 1, stream);
}

CUresult MakeManagedPool(CUmemoryPool* out, int device) {
#if CUDA_VERSION >= 13000
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
  props.location.type = device % 2 == 0 ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_NONE;
  props.location.id = device % 2 == 0 ? device : 0;
  return cuMemPoolCreate(out, &props);
#else
  return MakePool(out, device);
#endif
}
CUresult MakeUnpackPool(CUmemoryPool* out, int device) {
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  props.location.id = device;
#if CUDA_VERSION >= 13000
  props.usage = CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS;
#endif
  return cuMemPoolCreate(out, &props);
}
CUresult Unpack(CUdeviceptr to, CUdeviceptr from, size_t packed, size_t unpacked, CUstream stream, bool is_expected) {
#if CUDA_VERSION >= 13000
  CUmemDecompressParams one{};
  one.srcNumBytes = packed;
  one.dstNumBytes = is_expected ? unpacked : 0;
  one.src = AsPointer(from);
  one.dst = AsPointer(to);
  one.dstActBytes = static_cast<cuuint32_t*>(AsPointer(to + unpacked));
  one.algo = CU_MEM_DECOMPRESS_ALGORITHM_DEFLATE;
  size_t failed = 0;
  const CUresult unpacked_here = cuMemBatchDecompressAsync(&one, 1, 0, &failed, stream);
  if (unpacked_here != CUDA_ERROR_NOT_SUPPORTED) return unpacked_here;
#endif
  return cuMemcpyDtoDAsync(to, from, packed, stream);  // a Hopper card has no unit for it
}

CUresult AskPool(CUmemoryPool one) {
  cuuint64_t threshold = 1 << 20, used = 0;
  TRY(cuMemPoolSetAttribute(one, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  TRY(cuMemPoolGetAttribute(one, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  TRY(cuMemPoolGetAttribute(one, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  Record("pool: threshold %llu", static_cast<unsigned long long>(threshold));
  return CUDA_SUCCESS;
}
CUresult AskMarks(CUmemoryPool one) {
  cuuint64_t used = 0, mark = 0;
  TRY(cuMemPoolGetAttribute(one, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  TRY(cuMemPoolSetAttribute(one, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &mark));
  TRY(cuMemPoolGetAttribute(one, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &mark));
  Record("pool: used %llu, mark %llu", static_cast<unsigned long long>(used), static_cast<unsigned long long>(mark));
  return CUDA_SUCCESS;
}

CUresult Fail(int module, CUstream stream, CUdeviceptr block) {
  if (g_next_launch == nullptr) return CUDA_SUCCESS;
  g_next_launch(nullptr, 0, 1000, SIMGPU_ILLEGAL_ADDRESS);
  return Update(module, stream, kPlain, block, 4, 1);
}
CUresult CallAll(CUstream stream, CUdeviceptr block, CUevent event) {
  if (g_next_launch == nullptr) return CUDA_SUCCESS;
  CUdeviceptr made = 0;
  size_t free = 0, total = 0;
  char host[16] = {};
  CUmemoryPool fresh = nullptr;
  CUstream another = nullptr;
  const CUresult results[] = {cuCtxSynchronize(),
                              cuMemAlloc(&made, 1 << 20),
                              cuMemAllocAsync(&made, 1 << 20, stream),
                              cuMemAllocManaged(&made, 1 << 20, CU_MEM_ATTACH_GLOBAL),
                              cuMemFree(block),
                              cuMemFreeAsync(block, stream),
                              cuMemcpyDtoH(host, block, sizeof host),
                              cuMemcpyHtoDAsync(block, host, sizeof host, stream),
                              cuMemsetD8Async(block, 1, 16, stream),
                              cuStreamSynchronize(stream),
                              cuStreamQuery(stream),
                              cuEventRecord(event, stream),
                              cuEventQuery(event),
                              cuStreamWaitEvent(stream, event, 0),
                              cuMemGetInfo(&free, &total),
                              cuMemPoolCreate(&fresh, nullptr),
                              cuStreamCreate(&another, CU_STREAM_NON_BLOCKING),
                              cuCtxSynchronize()};
  for (const CUresult result : results) Record("result %d", static_cast<int>(result));
  return CUDA_SUCCESS;
}

}  // namespace differential
