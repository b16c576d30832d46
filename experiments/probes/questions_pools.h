// The questions of questions.cu about pools, calls without a context, values, and waits of whole contexts.
#pragma once

#include <atomic>
#include <chrono>

#include "questions_barriers.h"

// Calls that need a block, and perhaps a context.
inline void WithoutContext() {
  const CUdeviceptr p = Allocate(kMiB), small = Allocate(64), managed = Managed(kMiB), pool = OfPool(nullptr, kMiB),
                    freed_async = OfPool(nullptr, kMiB);
  CUdeviceptr base = 0;
  size_t size = 0;
  uint64_t value[4]{};
  NEED(cuCtxSynchronize());
  NEED(cuCtxSetCurrent(nullptr));
  Say("address_range", cuMemGetAddressRange(&base, &size, p));
  Say("address_range_of_small", cuMemGetAddressRange(&base, &size, small));
  Say("address_range_of_nothing", cuMemGetAddressRange(&base, &size, 0x10000));
  Say("attribute", cuPointerGetAttribute(value, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
  Say("free_async", cuMemFreeAsync(freed_async, stream));
  Say("free_null", cuMemFree(0));
  Say("free", cuMemFree(p));
  Say("free_managed", cuMemFree(managed));
  Say("free_pool", cuMemFree(pool));
  NEED(cuCtxSetCurrent(context));
  Say("then_free", cuMemFree(p));
  Say("then_free_managed", cuMemFree(managed));
  Say("then_free_pool", cuMemFree(pool));
}

inline void LargestSize(size_t most) {
  CUmemPoolProps kind{};
  kind.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  kind.location = OnCard();
  kind.maxSize = most;
  CUmemoryPool pool = nullptr;
  const CUresult made = cuMemPoolCreate(&pool, &kind);
  Say("create", made);
  if (made != CUDA_SUCCESS) return;
  cuuint64_t told = 0;
  constexpr auto kMaxSize = static_cast<CUmemPool_attribute>(13);  // CU_MEMPOOL_ATTR_MAX_POOL_SIZE
  const CUresult asked = cuMemPoolGetAttribute(pool, kMaxSize, &told);
  Say("attribute", "%d %llu KiB", asked, static_cast<unsigned long long>(told / kKiB));
  CUdeviceptr p = 0;
  Say("twice_the_size", cuMemAllocFromPoolAsync(&p, 2 * most + 128 * kMiB, pool, stream));
  std::vector<CUdeviceptr> blocks;
  CUresult code = CUDA_SUCCESS;
  while (code == CUDA_SUCCESS && blocks.size() < 256) {
    code = cuMemAllocFromPoolAsync(&p, kMiB, pool, stream);
    if (code == CUDA_SUCCESS) blocks.push_back(p);
  }
  Say("blocks_of_1_MiB", "%zu, then %d", blocks.size(), code);
  if (blocks.empty()) return;
  // Freed behind work that is not over: is it room for another stream's block?
  std::thread opener = Close(stream, 100);
  NEED(cuMemFreeAsync(blocks.back(), stream));
  Say("freed_and_in_use", cuMemAllocFromPoolAsync(&p, kMiB, pool, other));
  opener.join();
  NEED(cuCtxSynchronize());
  Say("freed", cuMemAllocFromPoolAsync(&p, kMiB, pool, other));
}

inline void LargestSizeOfManaged() {
  CUmemPoolProps kind{};
  kind.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
  kind.location = OnCard();
  kind.maxSize = 64 * kMiB;
  CUmemoryPool pool = nullptr;
  Say("create", cuMemPoolCreate(&pool, &kind));
}

// The pools that a program may find by a pointer.
inline void PoolsByPointer() {
  const auto pool_at = [](CUdeviceptr p) {
    CUmemoryPool pool = nullptr;
    const CUresult code = cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p);
    Say("attribute", "%d %s", code, pool != nullptr ? "a pool" : "none");
    return pool;
  };
  CUmemoryPool standard = nullptr;
  CUdeviceptr p = 0;
  NEED(cuDeviceGetDefaultMemPool(&standard, device));
  Say("default_is_same", "%d", pool_at(OfPool(nullptr, kMiB)) == standard);
  CUgraph graph = nullptr;
  CUgraphExec program = nullptr;
  NEED(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  NEED(cuMemAllocAsync(&p, kMiB, stream));
  NEED(cuStreamEndCapture(stream, &graph));
  NEED(cuGraphInstantiate(&program, graph, 0));
  NEED(cuGraphLaunch(program, stream));
  NEED(cuStreamSynchronize(stream));
  CUmemoryPool of_graphs = pool_at(p);
  if (of_graphs != nullptr) Say("alloc_of_graphs_pool", cuMemAllocFromPoolAsync(&p, kMiB, of_graphs, stream));
}

// Memory of card 0, freed in a stream of card 1.
inline void FreeByPeer(bool of_pool, bool has_access) {
  int cards = 0;
  NEED(cuDeviceGetCount(&cards));
  if (cards < 2) return Say("free", "needs two cards");
  CUmemoryPool pool = MadePool();
  const CUdeviceptr p = of_pool ? OfPool(pool, kMiB) : Allocate(kMiB);
  NEED(cuStreamSynchronize(stream));
  CUdevice second = 0;
  CUcontext there = nullptr;
  CUstream of_second = nullptr;
  NEED(cuDeviceGet(&second, 1));
  NEED(cuDevicePrimaryCtxRetain(&there, second));
  NEED(cuCtxSetCurrent(there));
  NEED(cuStreamCreate(&of_second, CU_STREAM_NON_BLOCKING));
  if (has_access && of_pool) {
    const CUmemAccessDesc access{OnCard(1), CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    Say("access", cuMemPoolSetAccess(pool, &access, 1));
  } else if (has_access) {
    Say("access", cuCtxEnablePeerAccess(context, 0));
  }
  Say("free", cuMemFreeAsync(p, of_second));
  Say("wait", cuStreamSynchronize(of_second));
  NEED(cuCtxSetCurrent(context));
  Say("then_free", cuMemFreeAsync(p, stream));
  Say("wait_here", cuStreamSynchronize(stream));
}

// The CPU reads a 64-bit value in pinned memory: does it see one half without the other?
inline void Wide(const std::function<CUresult(CUdeviceptr to, uint64_t* value)>& write) {
  constexpr uint64_t kLow = 0x1'FFFFFFFF, kHigh = 0x2'00000000;
  constexpr int kWrites = 20'000;
  void* pinned = nullptr;
  NEED(cuMemHostAlloc(&pinned, 4 * kKiB, 0));
  auto* const word = static_cast<uint64_t*>(pinned);
  uint64_t* const values = word + 8;
  word[0] = values[0] = kLow;
  values[1] = kHigh;
  std::atomic<bool> ends{false};
  uint64_t torn = 0, changes = 0;
  std::thread reader([&] {
    uint64_t last = kLow;
    while (!ends.load(std::memory_order_relaxed)) {
      const uint64_t now = __atomic_load_n(word, __ATOMIC_RELAXED);
      torn += now != kLow && now != kHigh;
      changes += now != last;
      last = now;
    }
  });
  CUresult code = CUDA_SUCCESS;
  for (int i = 0; i < kWrites && code == CUDA_SUCCESS; ++i) {
    code = write(reinterpret_cast<CUdeviceptr>(word), &values[i % 2 == 0 ? 1 : 0]);
    if (i % 512 == 0) NEED(cuStreamSynchronize(stream));
  }
  NEED(cuStreamSynchronize(stream));
  ends = true;
  reader.join();
  Say("write", code);
  Say("seen", "%s", torn != 0 ? "halves" : "whole values");
  std::fprintf(stderr, "%s: %llu halves in %llu changes\n", group.c_str(), static_cast<unsigned long long>(torn),
               static_cast<unsigned long long>(changes));
}

// Answers of a node of values, and its changes in an executable graph.
inline void ValueNodes() {
  const CUdeviceptr p = Allocate(kMiB), managed = Managed(kMiB), pool = OfPool(nullptr, kMiB);
  CUstreamBatchMemOpParams list[2]{};
  const auto write = [](CUdeviceptr at, uint64_t value, CUstreamBatchMemOpType kind) {
    CUstreamBatchMemOpParams op{};
    op.writeValue.operation = kind;
    op.writeValue.address = at;
    op.writeValue.value64 = value;
    return op;
  };
  list[0] = write(p, 5, CU_STREAM_MEM_OP_WRITE_VALUE_32);
  list[1] = write(p + 64, 6, CU_STREAM_MEM_OP_WRITE_VALUE_32);
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{context, 1, list, 0}, got{};
  CUgraph graph = nullptr, child = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec program = nullptr;
  CUgraphNodeType type{};
  NEED(cuGraphCreate(&graph, 0));
  Say("add", cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &params));
  const CUresult typed = cuGraphNodeGetType(node, &type);
  Say("type", "%d %d", typed, type);
  Say("child", cuGraphChildGraphNodeGetGraph(node, &child));
  const CUresult asked = cuGraphBatchMemOpNodeGetParams(node, &got);
  Say("get", "%d count %u flags %u %s", asked, got.count, got.flags, got.ctx == context ? "context" : "other");
  NEED(cuGraphInstantiate(&program, graph, 0));
  params.count = 2;
  Say("exec_set_other_count", cuGraphExecBatchMemOpNodeSetParams(program, node, &params));
  Say("set_other_count", cuGraphBatchMemOpNodeSetParams(node, &params));
  params.count = 1;
  list[0] = write(p, 5, CU_STREAM_MEM_OP_WRITE_VALUE_64);
  Say("exec_set_other_width", cuGraphExecBatchMemOpNodeSetParams(program, node, &params));
  list[0] = write(p + 128, 9, CU_STREAM_MEM_OP_WRITE_VALUE_32);
  Say("exec_set_other_address", cuGraphExecBatchMemOpNodeSetParams(program, node, &params));
  list[0] = write(managed, 9, CU_STREAM_MEM_OP_WRITE_VALUE_32);
  Say("set_managed", cuGraphBatchMemOpNodeSetParams(node, &params));
  Say("exec_set_managed", cuGraphExecBatchMemOpNodeSetParams(program, node, &params));
  Say("enabled", cuGraphNodeSetEnabled(program, node, 0));
  // A captured batch: one node, or one for each value.
  list[0] = write(p, 5, CU_STREAM_MEM_OP_WRITE_VALUE_32);
  size_t nodes = 0;
  NEED(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  Say("captured", cuStreamBatchMemOp(stream, 2, list, 0));
  Say("captured_managed", cuStreamWriteValue32(stream, managed, 1, 0));
  Say("captured_pool", cuStreamWriteValue32(stream, pool, 1, 0));
  Say("end", cuStreamEndCapture(stream, &graph));
  if (graph != nullptr) NEED(cuGraphGetNodes(graph, nullptr, &nodes));
  Say("nodes", "%zu", nodes);
}

template <typename Call>
void SayWait(const char* what, Call call) {
  const auto begin = std::chrono::steady_clock::now();
  const CUresult code = call();
  const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  Say(what, "%d %s", code, ms > 50 ? "waits" : "at once");
}

// Does a free wait for work that a stream got before it was captured, itself or by another stream's event?
inline void FreeBesideCapture(bool is_joined) {
  const CUdeviceptr p = Allocate(64 * kMiB);
  CUevent event = nullptr;
  CUgraph graph = nullptr;
  NEED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  NEED(cuCtxSynchronize());
  std::thread opener = Close(stream, 100);
  const CUstream captured = is_joined ? other : stream;
  NEED(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
  if (is_joined) {
    NEED(cuEventRecord(event, other));
    NEED(cuStreamWaitEvent(stream, event, 0));
  }
  SayWait("free", [&] { return cuMemFree(p); });
  opener.join();
  if (is_joined) {
    NEED(cuEventRecord(event, stream));
    NEED(cuStreamWaitEvent(other, event, 0));
  }
  Say("end", cuStreamEndCapture(captured, &graph));
}

// A context that waits for an event: what waits, where no work was queued behind the wait?
inline void ContextWaits() {
  CUevent event = nullptr;
  NEED(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  const CUdeviceptr p = Allocate(kMiB);
  NEED(cuCtxSynchronize());
  std::thread opener = Close(stream, 300);
  NEED(cuEventRecord(event, stream));
  Say("wait", cuCtxWaitEvent(context, event));
  Say("query_other", cuStreamQuery(other));
  CUstream made = nullptr;
  NEED(cuStreamCreate(&made, CU_STREAM_NON_BLOCKING));
  Say("query_new", cuStreamQuery(made));
  NEED(cuMemsetD8Async(p, 1, 16, made));
  Say("query_new_with_work", cuStreamQuery(made));
  SayWait("alloc", [] { return Allocate(64 * kMiB) != 0 ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN; });
  SayWait("destroy_stream", [&] { return cuStreamDestroy(made); });
  SayWait("synchronize_other", [] { return cuStreamSynchronize(other); });
  opener.join();
  NEED(cuCtxSynchronize());
}

inline void AskOfPools() {
  for (const bool is_joined : {false, true})
    Ask(std::string("free_beside_capture.") + (is_joined ? "joined" : "own"), [=] { FreeBesideCapture(is_joined); });
  Ask("context_waits", ContextWaits);
  Ask("without_context", WithoutContext);
  for (const size_t most : {size_t{1}, kMiB, 3 * kMiB, 33 * kMiB, 64 * kMiB})
    Ask("pool_size." + std::to_string(most / kKiB) + "_KiB", [most] { LargestSize(most); });
  Ask("pool_size.managed", LargestSizeOfManaged);
  Ask("pool_by_pointer", PoolsByPointer);
  for (const bool has_access : {false, true}) {
    for (const bool of_pool : {false, true})
      Ask(std::string("peer_free.") + (of_pool ? "pool" : "alloc") + (has_access ? ".with_access" : ""),
          [=] { FreeByPeer(of_pool, has_access); });
  }
  // Apart from the group `barrier`, whose answers a card has given (test/engine/answers.txt).
  const StreamCall discard{"discard", [](StreamBlocks& b, CUstream s) {
                             size_t bytes = kMiB;
                             return cuMemDiscardBatchAsync(&b.managed, &bytes, 1, 0, s);
                           }};
  Ask("discard_barrier.in_legacy", [&] { Barrier(discard, false); });
  Ask("discard_barrier.behind_legacy", [&] { Barrier(discard, true); });
  Ask("wide.copy",
      [] { Wide([](CUdeviceptr to, uint64_t* value) { return cuMemcpyHtoDAsync(to, value, 8, stream); }); });
  Ask("wide.write_value",
      [] { Wide([](CUdeviceptr to, const uint64_t* value) { return cuStreamWriteValue64(stream, to, *value, 0); }); });
  Ask("wide.memsets", [] {
    Wide([](CUdeviceptr to, const uint64_t* value) {
      const CUresult code = cuMemsetD32Async(to, static_cast<unsigned>(*value), 1, stream);
      return code != CUDA_SUCCESS ? code : cuMemsetD32Async(to + 4, static_cast<unsigned>(*value >> 32), 1, stream);
    });
  });
  Ask("value_nodes", ValueNodes);
}
