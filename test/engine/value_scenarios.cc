// Values that streams and graphs write and wait for, in memory that is oversubscribed.
#include <thread>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

// A consumer's stream waits for words that a producer's stream writes, in a block that is oversubscribed.
struct ValuesInLargeBlock {
  static constexpr uint64_t kBytes = 32 * kMiB, kOther = 800 * kMiB;
  Card card;
  CUstream consumer = card.Stream(), producer = card.Stream();
  CUdeviceptr words = Alloc(64 * kMiB) + 5 * kMiB, data = Alloc(kBytes), result = Alloc(kBytes), other = Alloc(kOther);

  ValuesInLargeBlock() {
    OK(cuMemsetD8(words, 0, kMiB));
    OK(cuMemsetD8(result, 0, kBytes));
    Crowd();
  }
  void Crowd() {
    card.Named(producer, {Write(other, kOther, 77)});
    OK(cuStreamSynchronize(producer));
  }
  void Consume(const char* what) {
    OK(cuMemcpyDtoDAsync(result, data, kBytes, consumer));
    OK(cuStreamSynchronize(consumer));
    PrintDigest(what, result, kBytes);
  }
  void Produce(uint64_t number) { card.Named(producer, {Write(data, kBytes, number)}, 5'000'000); }
};

}  // namespace

SCENARIO(waits_for_values_in_large_blocks) {
  ValuesInLargeBlock v;
  for (uint32_t round = 1; round <= 3; ++round) {
    OK(cuStreamWaitValue32(v.consumer, v.words, round, CU_STREAM_WAIT_VALUE_GEQ));
    v.Produce(round);
    OK(cuStreamWriteValue32(v.producer, v.words, round, 0));
    v.Consume("at least");
    v.Crowd();
  }
  OK(cuStreamWaitValue64(v.consumer, v.words + 64, (1ull << 40) + 1, CU_STREAM_WAIT_VALUE_EQ));
  v.Produce(4);
  OK(cuStreamWriteValue64(v.producer, v.words + 64, 1ull << 40, 0));
  OK(cuStreamWriteValue64(v.producer, v.words + 64, (1ull << 40) + 1, 0));
  v.Consume("equal");
  v.Crowd();
  OK(cuStreamWaitValue32(v.consumer, v.words + 128, 6, CU_STREAM_WAIT_VALUE_AND));
  v.Produce(5);
  OK(cuStreamWriteValue32(v.producer, v.words + 128, 9, 0));
  OK(cuStreamWriteValue32(v.producer, v.words + 128, 4, 0));
  v.Consume("and");
  OK(cuMemsetD32Async(v.words + 192, 0xFFFFFFFFu, 1, v.producer));
  OK(cuStreamSynchronize(v.producer));
  OK(cuStreamWaitValue32(v.consumer, v.words + 192, 0xF, CU_STREAM_WAIT_VALUE_NOR));
  v.Produce(6);
  OK(cuStreamWriteValue32(v.producer, v.words + 192, 0xF0, 0));
  v.Consume("nor");
}

// The word holds the awaited value until the stream itself has changed it.
SCENARIO(waits_see_no_earlier_value) {
  ValuesInLargeBlock v;
  OK(cuMemsetD32(v.words, 5, 1));
  v.Produce(1);
  OK(cuStreamSynchronize(v.producer));
  CUevent cleared = nullptr;
  OK(cuEventCreate(&cleared, CU_EVENT_DISABLE_TIMING));
  v.card.Named(v.consumer, {Update(v.result, ValuesInLargeBlock::kBytes, 1)}, 20'000'000);
  OK(cuMemsetD32Async(v.words, 0, 1, v.consumer));
  OK(cuEventRecord(cleared, v.consumer));
  OK(cuStreamWaitValue32(v.consumer, v.words, 5, CU_STREAM_WAIT_VALUE_EQ));
  OK(cuMemcpyDtoDAsync(v.result, v.data, ValuesInLargeBlock::kBytes, v.consumer));
  OK(cuStreamWaitEvent(v.producer, cleared, 0));
  v.Produce(2);
  OK(cuStreamWriteValue32(v.producer, v.words, 5, 0));
  OK(cuStreamSynchronize(v.consumer));
  PrintDigest("behind the second value", v.result, ValuesInLargeBlock::kBytes);
  // By one call of both kinds, in both directions.
  CUstreamBatchMemOpParams ask[2]{}, answer[2]{};
  ask[0].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, v.words + 256, {1}, 0, 0};
  ask[1].waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32, v.words + 260, {1}, CU_STREAM_WAIT_VALUE_GEQ, 0};
  answer[0].waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32, v.words + 256, {1}, CU_STREAM_WAIT_VALUE_GEQ, 0};
  answer[1].writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, v.words + 260, {1}, 0, 0};
  OK(cuStreamBatchMemOp(v.consumer, 2, ask, 0));
  v.Produce(3);
  OK(cuStreamBatchMemOp(v.producer, 2, answer, 0));
  v.Consume("asked and answered");
}

// The stream comes to its wait after an hour of work. Nothing asks the driver about that meanwhile.
SCENARIO(wait_behind_an_hour_of_work) {
  ValuesInLargeBlock v;
  constexpr uint64_t kHour = 3'600'000'000'000;
  v.card.Named(v.consumer, {Update(v.result, ValuesInLargeBlock::kBytes, 1)}, kHour);
  OK(cuStreamWaitValue32(v.consumer, v.words, 1, CU_STREAM_WAIT_VALUE_GEQ));
  v.Produce(1);
  OK(cuStreamWriteValue32(v.producer, v.words, 1, 0));
  v.Consume("behind an hour");
}

// Words in oversubscribed and in small memory, by one node.
SCENARIO(graphs_that_write_values) {
  ValuesInLargeBlock v;
  const CUdeviceptr small = Alloc(64);
  OK(cuMemsetD8(small, 0, 64));
  for (const bool is_general : {false, true}) {
    CUstreamBatchMemOpParams list[4]{};
    for (unsigned i = 0; i < 4; ++i) {
      list[i].writeValue.operation = i == 1 ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
      list[i].writeValue.address = (i == 2 ? small : v.words + 4096 * i) + (is_general ? 16 : 0);
      list[i].writeValue.value64 = 0x500000000 + i + 1;
    }
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr, copy = nullptr;
    OK(cuGraphCreate(&graph, 0));
    if (is_general) {
      CUgraphNodeParams params{};
      params.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
      params.memOp = {v.card.context, 4, list, 0};
      OK(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
    } else {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS params{v.card.context, 4, list, 0};
      OK(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &params));
    }
    CUDA_MEMCPY3D moved{};
    moved.srcMemoryType = moved.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    moved.srcDevice = v.words;
    moved.dstDevice = v.result;
    moved.WidthInBytes = kMiB;
    moved.Height = moved.Depth = 1;
    OK(cuGraphAddMemcpyNode(&copy, graph, &node, 1, &moved, v.card.context));
    CUgraphExec exec = nullptr;
    OK(cuGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; ++i) {
      OK(cuMemsetD8Async(v.words, 0, kMiB, v.consumer));
      OK(cuGraphLaunch(exec, v.consumer));
      OK(cuStreamSynchronize(v.consumer));
      PrintDigest("result", v.result, kMiB);
      PrintDigest("small", small, 64);
      v.Crowd();
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
  }
}

// A node that writes values into oversubscribed memory answers as the program made it, in copies of its graph, too.
SCENARIO(nodes_of_values_answer_as_such) {
  ValuesInLargeBlock v;
  const CUdeviceptr small = Alloc(64);
  const auto write = [](CUdeviceptr at, uint64_t value, bool is_wide = false) {
    CUstreamBatchMemOpParams op{};
    op.writeValue.operation = is_wide ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
    op.writeValue.address = at;
    op.writeValue.value64 = value;
    return op;
  };
  const auto print = [&](const char* what, CUgraphNode node) {
    CUgraphNodeType type{};
    CUgraph child = nullptr;
    CUDA_BATCH_MEM_OP_NODE_PARAMS got{};
    OK(cuGraphNodeGetType(node, &type));
    OK(cuGraphBatchMemOpNodeGetParams(node, &got));
    std::printf("%s: type %d child %d count %u", what, type, cuGraphChildGraphNodeGetGraph(node, &child), got.count);
    for (unsigned i = 0; i < got.count; ++i)
      std::printf(", %d at %" PRIx64 " %" PRIu64, got.paramArray[i].operation,
                  static_cast<uint64_t>(got.paramArray[i].writeValue.address) % 65536,
                  static_cast<uint64_t>(got.paramArray[i].writeValue.value64));
    std::printf(" context %d\n", got.ctx == v.card.context);
  };
  const auto run = [&](const char* what, CUgraphExec exec) {
    OK(cuMemsetD8Async(v.words, 0, kMiB, v.consumer));
    OK(cuMemsetD8Async(small, 0, 64, v.consumer));
    OK(cuGraphLaunch(exec, v.consumer));
    OK(cuStreamSynchronize(v.consumer));
    Print(what, simgpu_digest(v.words, kMiB) ^ simgpu_digest(small, 64));
    v.Crowd();
  };
  std::vector<CUstreamBatchMemOpParams> list{write(v.words, 1), write(v.words + 64, 5ull << 40 | 2, true)};
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{v.card.context, 2, list.data(), 0};
  CUgraph graph = nullptr, clone = nullptr, outer = nullptr;
  CUgraphNode node = nullptr, cloned = nullptr, around = nullptr;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &params));
  print("made", node);
  OK(cuGraphClone(&clone, graph));
  OK(cuGraphNodeFindInClone(&cloned, node, clone));
  print("clone", cloned);
  CUgraphExec exec = nullptr, of_clone = nullptr, of_outer = nullptr;
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphInstantiate(&of_clone, clone, 0));
  run("made", exec);
  // Executable graphs change apart, and from their graphs.
  list[0] = write(v.words + 4096, 3);
  OK(cuGraphExecBatchMemOpNodeSetParams(exec, node, &params));
  list[1].writeValue.value64 = 6ull << 40;
  CUgraphNodeParams general{};
  general.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  general.memOp = {v.card.context, 2, list.data(), 0};
  OK(cuGraphExecNodeSetParams(of_clone, cloned, &general));
  print("changed where it runs", node);
  run("changed", exec);
  run("clone changed", of_clone);
  // The node itself, to more values and other memory.
  list = {write(small, 7), write(v.words + 8, 8), write(small + 8, 9, true)};
  params = {v.card.context, 3, list.data(), 0};
  OK(cuGraphBatchMemOpNodeSetParams(node, &params));
  print("set", node);
  print("clone as before", cloned);
  run("as before", exec);
  list = {write(small, 7), write(small + 8, 9)};
  general.memOp = {v.card.context, 2, list.data(), 0};
  OK(cuGraphNodeSetParams(node, &general));
  print("set to other memory", node);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphInstantiate(&exec, graph, 0));
  run("other memory", exec);
  list = {write(v.words + 12, 10), write(v.words + 16, 11)};
  OK(cuGraphNodeSetParams(node, &general));
  // As the child of another graph; updated by a graph of the same shape.
  OK(cuGraphCreate(&outer, 0));
  OK(cuGraphAddChildGraphNode(&around, outer, nullptr, 0, graph));
  OK(cuGraphInstantiate(&of_outer, outer, 0));
  CUgraph inner = nullptr;
  size_t count = 1;
  CUgraphNode inside = nullptr;
  OK(cuGraphChildGraphNodeGetGraph(around, &inner));
  OK(cuGraphGetNodes(inner, &inside, &count));
  print("in a child", inside);
  run("in a child", of_outer);
  CUgraphExecUpdateResultInfo info{};
  OK(cuGraphBatchMemOpNodeSetParams(cloned, &params));
  print("clone set", cloned);
  list = {write(v.words + 12, 12), write(v.words + 16, 11, true)};  // the operations of the executable graph
  params = {v.card.context, 2, list.data(), 0};
  OK(cuGraphBatchMemOpNodeSetParams(cloned, &params));
  OK(cuGraphExecUpdate(of_clone, clone, &info));
  run("updated", of_clone);
  // Many changes: the words of earlier ones are used again.
  for (uint32_t i = 0; i < 3000; ++i) {
    list[0] = write(v.words + 20, i);
    OK(cuGraphExecBatchMemOpNodeSetParams(of_clone, cloned, &params));
    OK(cuGraphBatchMemOpNodeSetParams(node, &params));
    OK(cuGraphLaunch(of_clone, v.consumer));
    if (i % 700 == 0) run("changed often", of_clone);
  }
  for (const CUgraphExec each : {exec, of_clone, of_outer}) OK(cuGraphExecDestroy(each));
  for (const CUgraph each : {graph, clone, outer}) OK(cuGraphDestroy(each));
  OK(cuStreamSynchronize(v.consumer));
  // Captured.
  OK(cuStreamBeginCapture(v.consumer, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuMemsetD8Async(v.result, 1, 64, v.consumer));
  OK(cuStreamWriteValue32(v.consumer, v.words + 24, 13, 0));
  OK(cuStreamWriteValue64(v.consumer, v.words + 32, 7ull << 40 | 14, 0));
  OK(cuMemcpyDtoDAsync(v.result, v.words, 4096, v.consumer));
  OK(cuStreamEndCapture(v.consumer, &graph));
  std::array<CUgraphNode, 8> nodes{};
  count = nodes.size();
  OK(cuGraphGetNodes(graph, nodes.data(), &count));
  std::printf("captured nodes %zu\n", count);
  for (size_t i = 0; i < count; ++i) {
    CUgraphNodeType type{};
    OK(cuGraphNodeGetType(nodes.at(i), &type));
    if (type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) print("captured", nodes.at(i));
  }
  OK(cuGraphInstantiate(&exec, graph, 0));
  run("captured", exec);
  PrintDigest("result", v.result, 4096);
}

// Another stream reads a value of 64 bits while it changes: never half of it. Launches change it, too.
SCENARIO(values_of_64_bits_change_at_once) {
  ValuesInLargeBlock v;
  constexpr uint64_t kLow = 0x1'FFFFFFFF, kHigh = 0x2'00000000;
  constexpr int kRounds = 300, kReads = 8;
  void* pinned = nullptr;
  OK(cuMemHostAlloc(&pinned, kMiB, 0));
  auto* const seen = static_cast<uint64_t*>(pinned);
  uint64_t last = 0;
  std::array<CUgraphExec, 2> exec{};
  for (size_t i = 0; i < 2; ++i) {
    CUstreamBatchMemOpParams op{};
    op.writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_64, v.words, {0}, 0, 0};
    op.writeValue.value64 = i == 0 ? kHigh : kLow;
    const CUDA_BATCH_MEM_OP_NODE_PARAMS params{v.card.context, 1, &op, 0};
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    OK(cuGraphCreate(&graph, 0));
    OK(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &params));
    OK(cuGraphInstantiate(&exec.at(i), graph, 0));
    OK(cuGraphDestroy(graph));
  }
  size_t halves = 0;
  for (const bool by_graph : {false, true}) {
    OK(cuStreamWriteValue64(v.producer, v.words, kLow, 0));
    OK(cuStreamSynchronize(v.producer));
    for (size_t round = 0; round < kRounds; ++round) {
      // The reads begin at another time in each round.
      v.card.Named(v.consumer, {Read(v.other, 4096, 77)}, 100 * (1 + round % 200));
      if (by_graph) {
        OK(cuGraphLaunch(exec.at(round % 2), v.producer));
      } else {
        OK(cuStreamWriteValue64(v.producer, v.words, round % 2 == 0 ? kHigh : kLow, 0));
      }
      for (size_t i = 0; i < kReads; ++i) OK(cuMemcpyDtoHAsync(seen + i, v.words, 8, v.consumer));
      OK(cuCtxSynchronize());
      for (size_t i = 0; i < kReads; ++i) halves += seen[i] != kLow && seen[i] != kHigh;
    }
    OK(cuMemcpyDtoH(&last, v.words, 8));
    std::printf("halves %zu, last %" PRIx64 "\n", halves, last);
  }
}

// A call that waits for the GPU holds the driver's lock meanwhile. The engine's reads of words do not wait for it.
SCENARIO(values_are_seen_beside_a_call_that_waits) {
  ValuesInLargeBlock v;
  CUdevResource all{}, part{};
  unsigned count = 1;
  OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
  OK(cuDevSmResourceSplitByCount(&part, &count, &all, nullptr, 0, 16));
  CUdevResourceDesc description = nullptr;
  OK(cuDevResourceGenerateDesc(&description, &part, 1));
  for (uint32_t round = 1; round <= 20; ++round) {
    OK(cuStreamWaitValue32(v.consumer, v.words, round, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWaitValue64(v.consumer, v.words + 64, round, CU_STREAM_WAIT_VALUE_EQ));
    v.Produce(round);
    OK(cuStreamWriteValue32(v.producer, v.words, round, 0));
    OK(cuStreamWriteValue64(v.producer, v.words + 64, round, 0));
    CUgreenCtx green = nullptr;
    OK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    v.Consume("seen");
    OK(cuGreenCtxDestroy(green));
  }
}

// Many waits at a time, of streams of two threads; the words lie in one page.
SCENARIO(many_waits_for_values) {
  ValuesInLargeBlock v;
  constexpr uint32_t kWaits = 700;  // more than one page of cells
  std::vector<CUstream> streams;
  for (int i = 0; i < 8; ++i) streams.push_back(v.card.Stream());
  for (uint32_t i = 0; i < kWaits; ++i)
    OK(cuStreamWaitValue32(streams[i % 8], v.words + 4 * i, i + 1, CU_STREAM_WAIT_VALUE_EQ));
  std::thread other([&] {
    OK(cuCtxSetCurrent(v.card.context));
    for (uint32_t i = 0; i < kWaits; ++i) OK(cuStreamWriteValue32(v.producer, v.words + 4 * i, i + 1, 0));
  });
  other.join();
  for (const CUstream one : streams) {
    OK(cuStreamSynchronize(one));
    OK(cuStreamDestroy(one));
  }
  std::puts("all over");
}

// Small blocks of pools are memory of cuMemAlloc's kind here, where the driver takes values.
SCENARIO(pool_memory_takes_no_stream_values) {
  Card card;
  CUstream s = card.Stream();
  for (const size_t bytes : {size_t{64}, size_t{256} << 10, size_t{16} << 20}) {
    CUdeviceptr block = 0;
    OK(cuMemAllocAsync(&block, bytes, s));
    CUstreamBatchMemOpParams write{};
    write.writeValue = {CU_STREAM_MEM_OP_WRITE_VALUE_32, block + 8, {1}, 0, 0};
    const CUDA_BATCH_MEM_OP_NODE_PARAMS values{card.context, 1, &write, 0};
    CUgraph graph = nullptr;
    CUgraphNode node = nullptr;
    OK(cuGraphCreate(&graph, 0));
    std::printf("%zu bytes: %d %d %d %d %d %d\n", bytes, cuStreamWriteValue32(s, block, 1, 0),
                cuStreamWriteValue64(s, block, 1, 0), cuStreamWaitValue32(s, block, 0, CU_STREAM_WAIT_VALUE_GEQ),
                cuStreamWaitValue64(s, block, 0, CU_STREAM_WAIT_VALUE_GEQ), cuStreamBatchMemOp(s, 1, &write, 0),
                cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &values));
    OK(cuGraphDestroy(graph));
    OK(cuMemFreeAsync(block, s));
  }
  OK(cuStreamSynchronize(s));
}
