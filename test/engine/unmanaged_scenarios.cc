// Memory that the driver makes: it counts against the budget until it is released.
#include <algorithm>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

uint64_t FreeBytes() {
  size_t left = 0, total = 0;
  OK(cuMemGetInfo(&left, &total));
  return left;
}

// Tracked memory fills most of a small budget.
struct FilledBudget {
  static constexpr uint64_t kBytes = 384 * kMiB;
  Card card;
  CUstream s = card.Stream();
  uint64_t before = card.Stats().plain_bytes;  // the context's, and other processes'
  CUdeviceptr block = Alloc(kBytes);

  FilledBudget() { Use(); }
  void Use() {
    for (uint64_t at = 0; at < kBytes; at += 32 * kMiB) card.Named(s, {Update(block + at, 32 * kMiB, 1)});
    OK(cuStreamSynchronize(s));
  }
  void ExpectBudgetHeld() {
    const auto stats = card.Stats();
    if (Budget() != 0) EXPECT(stats.resident_bytes + stats.plain_bytes - before <= Budget() + 32 * kMiB);
  }
};

}  // namespace

// Memory that a captured graph allocates by nodes of its own.
SCENARIO(memory_of_graphs_counts) {
  FilledBudget filled;
  const CUstream s = filled.s;
  const uint64_t before = FreeBytes();
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUdeviceptr own = 0;
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemAllocAsync(&own, 256 * kMiB, s));
  filled.card.Named(s, {Write(own, 256 * kMiB, 2)});
  OK(cuStreamEndCapture(s, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  OK(cuGraphLaunch(executable, s));
  if (Budget() != 0) EXPECT(before - FreeBytes() == std::min(before, 256 * kMiB));
  for (int i = 0; i < 3; ++i) {
    filled.Use();
    OK(cuGraphLaunch(executable, s));
  }
  OK(cuStreamSynchronize(s));
  filled.ExpectBudgetHeld();
  PrintDigest("the graph's", own, 256 * kMiB);
  PrintDigest("the block", filled.block, FilledBudget::kBytes);
  OK(cuMemFreeAsync(own, s));
  OK(cuStreamSynchronize(s));
  OK(cuGraphExecDestroy(executable));
  OK(cuDeviceGraphMemTrim(0));
  if (Budget() != 0) EXPECT(FreeBytes() == before);
  // 768 MiB at once, and 64 at a time.
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (int i = 0; i < 3; ++i) OK(cuMemAllocAsync(&own, 256 * kMiB, s));
  OK(cuStreamEndCapture(s, &graph));
  const bool fits = Budget() == 0 || Budget() > kGiB;
  EXPECT(cuGraphInstantiate(&executable, graph, 0) == (fits ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY));
  OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (int i = 0; i < 16; ++i) {
    OK(cuMemAllocAsync(&own, 64 * kMiB, s));
    OK(cuMemFreeAsync(own, s));
  }
  OK(cuStreamEndCapture(s, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
}

// VMM memory is allocated while tracked memory fills the budget: chunks are evicted for it, and launches that miss
// nothing stay right.
SCENARIO(unmanaged_memory_makes_room) {
  FilledBudget filled;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemGenericAllocationHandle handle = 0;
  OK(cuMemCreate(&handle, 256 * kMiB, &prop, 0));
  OK(cuCtxSynchronize());
  filled.ExpectBudgetHeld();
  filled.Use();
  PrintDigest("the block", filled.block, FilledBudget::kBytes);
  OK(cuMemRelease(handle));
}

// Limits of the heap of kernels' malloc, of printf's buffer and of stacks.
SCENARIO(context_limits_count) {
  Card card;
  const uint64_t before = FreeBytes();
  const auto taken = [&] { return before - FreeBytes(); };
  OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 136 * kMiB));
  if (Budget() != 0) EXPECT(taken() == 128 * kMiB);
  OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 17 * kMiB));
  if (Budget() != 0) EXPECT(taken() == 144 * kMiB);
  OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB));
  OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, kMiB));
  if (Budget() != 0) EXPECT(taken() == 0);
  int multiprocessors = 0, threads = 0;
  OK(cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  OK(cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 0));
  OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1280));
  if (Budget() != 0) EXPECT(taken() == static_cast<uint64_t>(multiprocessors) * static_cast<uint64_t>(threads) * 256);
  const CUresult too_large = cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 * kGiB);
  if (Budget() != 0) EXPECT(too_large == CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, SIZE_MAX) == (Budget() ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS));
  OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 512));
  OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * kMiB));
  if (Budget() != 0) EXPECT(taken() == 0);
  // They end with their context.
  OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 136 * kMiB));
  OK(cuDevicePrimaryCtxReset(0));
  OK(cuCtxSetCurrent(card.context));
  if (Budget() != 0) EXPECT(taken() == 0);
}

// Arrays, and memory that ends with its context. Under SLUICE_UNMANAGED=1 all memory is unmanaged.
SCENARIO(unmanaged_memory_ends_with_its_context) {
  Card card;
  const uint64_t before = FreeBytes();
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = shape.Height = 4096;
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = 4;
  CUarray array = nullptr, mapped = nullptr;
  shape.Flags = CUDA_ARRAY3D_DEFERRED_MAPPING;
  OK(cuArray3DCreate(&mapped, &shape));  // its memory is mapped into it later
  EXPECT(FreeBytes() == before || Budget() == 0);
  shape.Flags = 0;
  OK(cuArray3DCreate(&array, &shape));
  if (Budget() != 0) EXPECT(before - FreeBytes() == 256 * kMiB);
  OK(cuArrayDestroy(array));
  EXPECT(FreeBytes() == before || Budget() == 0);
  OK(cuArray3DCreate(&array, &shape));
  Alloc(128 * kMiB);
  if (Budget() != 0) EXPECT(before - FreeBytes() == 384 * kMiB);
  OK(cuDevicePrimaryCtxReset(0));
  OK(cuCtxSetCurrent(card.context));
  EXPECT(FreeBytes() == before || Budget() == 0);
}

// A program prefetches more of its managed memory to the GPU than fits its budget.
SCENARIO(prefetches_of_the_program_keep_the_budget) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> p;
  for (uint32_t i = 0; i < 12; ++i) {
    p.push_back(card.Managed(64 * kMiB));
    card.Named(s, {Write(p.back(), 64 * kMiB, i + 1)});
  }
  for (int round = 0; round < 3; ++round) {
    for (const CUdeviceptr at : p) card.Prefetch(s, at, 64 * kMiB, true);
    OK(cuStreamSynchronize(s));
    if (Budget() != 0) EXPECT(card.Stats().resident_bytes <= Budget() + 64 * kMiB);
    for (uint32_t i = 0; i < 12; ++i) card.Named(s, {Update(p[i], 64 * kMiB, i + 1)});
  }
  for (const CUdeviceptr at : p) PrintDigest("block", at, 64 * kMiB);
  const CUmemLocation to{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  EXPECT(cuMemPrefetchAsync(p[0], uint64_t{1} << 40, to, 0, s) == CUDA_ERROR_INVALID_VALUE);
}
