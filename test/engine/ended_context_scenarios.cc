// Contexts that end, and what outlives them.
#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

// Memory of a pool belongs to the device: the context whose stream asked for it may end first.
SCENARIO(pool_memory_outlives_its_context) {
  Card card;
  CUstream s = card.Stream();
  constexpr uint64_t kBytes = 64 * kMiB;
  CUcontext second = nullptr;
  OK(cuCtxCreate(&second, nullptr, 0, 0));
  CUstream t = card.Stream();
  CUdeviceptr kept = 0, small = 0, gone = 0;
  OK(cuMemAllocAsync(&kept, kBytes, t));
  OK(cuMemAllocAsync(&small, 1000, t));
  OK(cuMemAllocAsync(&gone, kBytes, t));
  OK(cuMemsetD8Async(kept, 7, kBytes, t));
  OK(cuMemsetD8Async(small, 8, 1000, t));
  OK(cuMemFreeAsync(gone, t));
  const CUdeviceptr own = Alloc(kBytes);
  OK(cuMemsetD8Async(own, 9, kBytes, t));
  OK(cuCtxSynchronize());
  OK(cuCtxDestroy(second));
  OK(cuCtxSetCurrent(card.context));
  CUdeviceptr base = 0;
  EXPECT(cuMemGetAddressRange(&base, nullptr, own) != CUDA_SUCCESS);
  PrintDigest("kept", kept, kBytes);
  PrintDigest("small", small, 1000);
  card.Named(s, {Update(kept, kBytes, 1)});
  const CUdeviceptr other = Alloc(640 * kMiB);
  card.Named(s, {Write(other, 640 * kMiB, 2)});
  card.Named(s, {Update(kept, kBytes, 1)});
  PrintDigest("used", kept, kBytes);
  OK(cuMemFreeAsync(kept, s));
  OK(cuMemFree(small));
  CUdeviceptr again = 0;
  OK(cuMemAllocAsync(&again, kBytes, s));
  card.Named(s, {Write(again, kBytes, 4)});
  PrintDigest("again", again, kBytes);
}

// The same, of the primary context.
SCENARIO(pool_memory_outlives_the_primary_context) {
  OK(cuInit(0));
  CUcontext primary = nullptr, second = nullptr;
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuCtxCreate(&second, nullptr, 0, 0));
  CUstream t = nullptr;
  OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
  constexpr uint64_t kBytes = 64 * kMiB;
  CUdeviceptr kept = 0, small = 0;
  OK(cuMemAllocAsync(&kept, kBytes, t));
  OK(cuMemAllocAsync(&small, 1000, t));
  OK(cuMemsetD8Async(kept, 7, kBytes, t));
  OK(cuMemsetD8Async(small, 8, 1000, t));
  OK(cuCtxSynchronize());
  OK(cuDevicePrimaryCtxRelease(0));
  PrintDigest("kept", kept, kBytes);
  PrintDigest("small", small, 1000);
  const CUdeviceptr other = Alloc(768 * kMiB);
  OK(cuMemsetD8Async(other, 9, 768 * kMiB, t));
  OK(cuMemsetD8Async(kept, 10, kBytes / 2, t));
  PrintDigest("used", kept, kBytes);
  // The last memory of the pool is freed, and the primary context ends with its next release.
  OK(cuMemFree(kept));
  OK(cuMemFree(small));
  OK(cuCtxSynchronize());
  OK(cuDevicePrimaryCtxRetain(&primary, 0));
  OK(cuDevicePrimaryCtxRelease(0));
  unsigned flags = 0;
  int is_active = 0;
  OK(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
  EXPECT(!is_active);
  CUdeviceptr again = 0;
  OK(cuMemAllocAsync(&again, kBytes, t));
  OK(cuMemsetD8Async(again, 11, kBytes, t));
  PrintDigest("again", again, kBytes);
}

// The same, without a primary context: none shows itself, and a reset of none ends no memory.
SCENARIO(pool_memory_outlives_a_created_context) {
  OK(cuInit(0));
  CUcontext first = nullptr, second = nullptr;
  OK(CreateContext(&second, 0));
  OK(CreateContext(&first, 0));
  CUstream t = nullptr, s = nullptr;
  OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
  constexpr uint64_t kBytes = 64 * kMiB;
  CUdeviceptr kept = 0, small = 0;
  OK(cuMemAllocAsync(&kept, kBytes, t));
  OK(cuMemAllocAsync(&small, 1000, t));
  OK(cuMemsetD8Async(kept, 7, kBytes, t));
  OK(cuMemsetD8Async(small, 8, 1000, t));
  OK(cuCtxSynchronize());
  OK(cuCtxDestroy(first));
  OK(cuCtxSetCurrent(second));
  OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  PrintDigest("kept", kept, kBytes);
  PrintDigest("small", small, 1000);
  unsigned flags = 0;
  int is_active = 0;
  OK(cuDevicePrimaryCtxGetState(0, &flags, &is_active));
  EXPECT(!is_active);
  EXPECT(cuDevicePrimaryCtxRelease(0) == CUDA_ERROR_INVALID_CONTEXT);
  OK(cuDevicePrimaryCtxReset(0));
  const CUdeviceptr other = Alloc(768 * kMiB);
  OK(cuMemsetD8Async(other, 9, 768 * kMiB, s));
  OK(cuMemsetD8Async(kept, 10, kBytes / 2, s));
  PrintDigest("used", kept, kBytes);
  OK(cuMemFreeAsync(kept, s));
  OK(cuMemFree(small));
  CUdeviceptr again = 0;
  OK(cuMemAllocAsync(&again, kBytes, s));
  OK(cuMemsetD8Async(again, 11, kBytes, s));
  PrintDigest("again", again, kBytes);
}
