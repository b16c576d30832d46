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
  uint64_t before = card.Stats().unmanaged_bytes;  // the context's, and other processes'
  CUdeviceptr block = Alloc(kBytes);

  FilledBudget() { Use(); }
  void Use() {
    for (uint64_t at = 0; at < kBytes; at += 32 * kMiB) card.Named(s, {Update(block + at, 32 * kMiB, 1)});
    OK(cuStreamSynchronize(s));
  }
  void ExpectBudgetHeld() {
    const auto stats = card.Stats();
    if (Budget() != 0) EXPECT(stats.resident_bytes + stats.unmanaged_bytes - before <= Budget() + 32 * kMiB);
  }
};

}  // namespace

// A node allocates on the GPU that its pool names, whichever is current.
SCENARIO(graph_memory_counts_on_its_gpu) {
  constexpr uint64_t kBytes = 256 * kMiB;
  Card card;
  CUcontext other = nullptr;
  OK(cuDevicePrimaryCtxRetain(&other, 1));
  const auto in_other = [&](auto call) {
    CUcontext was = nullptr;
    OK(cuCtxPushCurrent(other));
    call();
    OK(cuCtxPopCurrent(&was));
  };
  CUstream s = nullptr;
  uint64_t there = 0;
  in_other([&] {
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    there = FreeBytes();
  });
  const uint64_t here = FreeBytes();
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  CUgraphNode allocated = nullptr, freed = nullptr;
  CUDA_MEM_ALLOC_NODE_PARAMS p{};  // NOLINT(bugprone-invalid-enum-default-initialization)
  p.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.poolProps.location = {CU_MEM_LOCATION_TYPE_DEVICE, 1};
  p.bytesize = kBytes;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddMemAllocNode(&allocated, graph, nullptr, 0, &p));
  OK(cuGraphAddMemFreeNode(&freed, graph, &allocated, 1, p.dptr));
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphLaunch(executable, s));
  OK(cuStreamSynchronize(s));
  if (Budget() != 0) {
    EXPECT(FreeBytes() == here);
    in_other([&] { EXPECT(there - FreeBytes() == kBytes); });
  }
  OK(cuGraphExecDestroy(executable));
  OK(cuGraphDestroy(graph));
}

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

// Blocks that graphs leave to the program live at once, and stop at the budget. A card allocates them at launches; the
// simulated driver does when their nodes are made (test/gpu/lifetimes, graph_memory).
SCENARIO(memory_that_graphs_leave_counts) {
  constexpr size_t kGraphs = 24;
  constexpr uint64_t kBytes = 64 * kMiB;
  Card card;
  const CUstream s = card.Stream();
  const size_t fits = Budget() == 0 ? kGraphs : std::min<size_t>(kGraphs, FreeBytes() / kBytes);
  std::vector<CUdeviceptr> blocks;
  const auto add = [&] {
    CUgraph graph = nullptr;
    CUgraphExec executable = nullptr;
    CUdeviceptr block = 0;
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&block, kBytes, s));
    OK(cuMemsetD8Async(block, 1, kBytes, s));
    OK(cuStreamEndCapture(s, &graph));
    if (cuGraphInstantiate(&executable, graph, 0) != CUDA_SUCCESS) return false;
    const CUresult result = cuGraphLaunch(executable, s);
    EXPECT(result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY);
    if (result == CUDA_SUCCESS) blocks.push_back(block);
    return result == CUDA_SUCCESS;
  };
  while (blocks.size() < kGraphs && add()) continue;
  EXPECT(blocks.size() == fits);
  OK(cuStreamSynchronize(s));
  for (const CUdeviceptr block : blocks) OK(cuMemFreeAsync(block, s));
  OK(cuStreamSynchronize(s));
  OK(cuDeviceGraphMemTrim(0));
  EXPECT(add());
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
  card.Reset();
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
  card.Reset();
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

// Memory of the pools of the program counts against the budget.
SCENARIO(pool_memory_counts) {
  Card card;
  CUstream s = card.Stream();
  size_t before = 0, after = 0, total = 0;
  OK(cuMemGetInfo(&before, &total));
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  props.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CUmemoryPool shared = nullptr, ordinary = nullptr;
  OK(cuMemPoolCreate(&shared, &props));
  props.handleTypes = CU_MEM_HANDLE_TYPE_NONE;
  OK(cuMemPoolCreate(&ordinary, &props));
  CUdeviceptr p = 0, q = 0;
  OK(cuMemAllocFromPoolAsync(&p, 64 * kMiB, shared, s));
  OK(cuMemAllocFromPoolAsync(&q, 64 * kMiB, ordinary, s));
  card.Named(s, {Write(p, 64 * kMiB, 1), Write(q, 64 * kMiB, 2)});
  OK(cuStreamSynchronize(s));
  if (Budget() != 0) {
    OK(cuMemGetInfo(&after, &total));
    EXPECT(before - after == 128 * kMiB);
    EXPECT(card.Stats().unmanaged_bytes >= 64 * kMiB);
  }
  PrintDigest("p", p, 64 * kMiB);
  PrintDigest("q", q, 64 * kMiB);
  OK(cuMemFreeAsync(p, s));
  OK(cuMemFreeAsync(q, s));
  OK(cuStreamSynchronize(s));
  OK(cuMemPoolDestroy(shared));
  OK(cuMemPoolDestroy(ordinary));
  if (Budget() != 0) {
    OK(cuMemGetInfo(&after, &total));
    EXPECT(before == after);
  }
  // Pinned host memory does not count.
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, 16 * kMiB, CU_MEMHOSTALLOC_DEVICEMAP));
  if (Budget() != 0) {
    OK(cuMemGetInfo(&after, &total));
    EXPECT(before == after);
  }
  OK(cuMemFreeHost(host));
}

// VMM memory of the program that stays the driver's (SLUICE_VMM=unmanaged) is refused beyond the budget.
SCENARIO(vmm_memory_counts) {
  Card card;
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  std::vector<CUmemGenericAllocationHandle> handles;
  CUmemGenericAllocationHandle handle = 0;
  CUresult result = CUDA_SUCCESS;
  while (handles.size() < 200 && (result = cuMemCreate(&handle, 64 * kMiB, &prop, 0)) == CUDA_SUCCESS)
    handles.push_back(handle);
  EXPECT(result == CUDA_ERROR_OUT_OF_MEMORY);
  if (Budget() != 0) EXPECT(handles.size() == Budget() / (64 * kMiB));
  CUdeviceptr va = 0;
  CUmemAccessDesc access{};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  OK(cuMemAddressReserve(&va, 64 * kMiB, 0, 0, 0));
  OK(cuMemMap(va, 64 * kMiB, 0, handles.back(), 0));
  OK(cuMemSetAccess(va, 64 * kMiB, &access, 1));
  card.Named(nullptr, {Write(va, 64 * kMiB, 1)});
  PrintDigest("mapped", va, 64 * kMiB);
  // Released while mapped: the memory is freed when it is unmapped.
  OK(cuMemRelease(handles.back()));
  EXPECT(cuMemCreate(&handle, 64 * kMiB, &prop, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  OK(cuMemUnmap(va, 64 * kMiB));
  OK(cuMemCreate(&handle, 64 * kMiB, &prop, 0));
}

// Managed memory that begins as the host's is no more of the GPU's than other managed memory.
SCENARIO(managed_memory_for_the_host_first) {
  Card card;
  CUstream s = card.Stream();
  std::vector<CUdeviceptr> blocks;
  for (unsigned i = 0; i < 10; ++i) {
    CUdeviceptr block = 0;
    OK(cuMemAllocManaged(&block, 20 * kMiB + uint64_t{4096} * i,
                         i % 2 == 0 ? CU_MEM_ATTACH_HOST : CU_MEM_ATTACH_GLOBAL));
    blocks.push_back(block);
    OK(cuStreamAttachMemAsync(s, block, 0, i % 4 == 0 ? CU_MEM_ATTACH_SINGLE : CU_MEM_ATTACH_GLOBAL));
    OK(cuStreamSynchronize(s));
  }
  for (unsigned round = 1; round < 4; ++round) {
    for (const CUdeviceptr block : blocks) card.Named(s, {Update(block, 20 * kMiB)});
  }
  OK(cuStreamAttachMemAsync(s, blocks[0], 0, CU_MEM_ATTACH_HOST));
  OK(cuStreamSynchronize(s));
  for (const CUdeviceptr block : blocks) PrintDigest("block", block, 20 * kMiB);
  int is_managed = 0;
  OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, blocks[0]));
  Print("managed", static_cast<uint64_t>(is_managed));
  for (const CUdeviceptr block : blocks) OK(cuMemFree(block));
}

// Managed pools, as RAPIDS' async_managed resource takes them: managed memory in stream order, larger than the budget.
SCENARIO(managed_pools_are_oversubscribed) {
  Card card;
  CUstream s = card.Stream(), t = card.Stream();
  CUmemLocation here{CU_MEM_LOCATION_TYPE_DEVICE, 0}, nowhere{CU_MEM_LOCATION_TYPE_NONE, 0};
  CUmemoryPool standard = nullptr, own = nullptr;
  OK(cuMemGetDefaultMemPool(&standard, &here, CU_MEM_ALLOCATION_TYPE_MANAGED));
  CUmemPoolProps props{};
  props.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
  props.location = nowhere;
  OK(cuMemPoolCreate(&own, &props));
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (unsigned life = 0; life < 3; ++life) {
    std::vector<CUdeviceptr> blocks;
    for (unsigned i = 0; i < 8; ++i) {
      CUdeviceptr block = 0;
      OK(cuMemAllocFromPoolAsync(&block, 16 * kMiB + 100, i % 2 == 0 ? standard : own, s));
      OK(cuMemsetD8Async(block, static_cast<unsigned char>(i + life), 16 * kMiB, s));
      blocks.push_back(block);
    }
    for (const CUdeviceptr block : blocks) card.Named(s, {Update(block, 16 * kMiB)});
    OK(cuEventRecord(event, s));
    OK(cuStreamWaitEvent(t, event, 0));
    for (size_t i = 0; i < blocks.size(); ++i) {
      card.Named(t, {Read(blocks[(i + 1) % blocks.size()], 16 * kMiB), Update(blocks[i], 16 * kMiB)});
    }
    OK(cuMemPrefetchAsync(blocks[0], 16 * kMiB, here, 0, t));
    for (const CUdeviceptr block : blocks) PrintDigest("block", block, 16 * kMiB);
    int is_managed = 0;
    CUmemoryPool from = nullptr;
    CUcontext context = nullptr;
    OK(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, blocks[1] + 5));
    OK(cuPointerGetAttribute(static_cast<void*>(&from), CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, blocks[1] + 5));
    std::printf("managed %d, of its pool %d, a context %d\n", is_managed, from == own,
                cuPointerGetAttribute(static_cast<void*>(&context), CU_POINTER_ATTRIBUTE_CONTEXT, blocks[1]));
    cuuint64_t used = 0;
    OK(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    Print("used", used);
    for (const CUdeviceptr block : blocks) OK(cuMemFreeAsync(block, t));
    OK(cuStreamSynchronize(t));
    OK(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    Print("used", used);
  }
  OK(cuMemPoolDestroy(own));
}
