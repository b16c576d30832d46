// Nodes of values whose memory changes, from and to memory that is oversubscribed.
#include <dlfcn.h>

#include <filesystem>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

CUstreamBatchMemOpParams WriteOf(CUdeviceptr at, uint64_t value, bool is_wide = false) {
  CUstreamBatchMemOpParams op{};
  op.writeValue.operation = is_wide ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
  op.writeValue.address = at;
  op.writeValue.value64 = value;
  return op;
}
CUstreamBatchMemOpParams WaitOf(CUdeviceptr at, uint32_t value) {
  CUstreamBatchMemOpParams op{};
  op.waitValue = {CU_STREAM_MEM_OP_WAIT_VALUE_32, at, {value}, CU_STREAM_WAIT_VALUE_GEQ, 0};
  return op;
}

// A word in a large block, one in a small block, and one in pinned memory, each for two values.
struct Words {
  static constexpr uint64_t kBytes = 64 * kMiB, kOther = 800 * kMiB;
  Card card;
  CUstream stream = card.Stream();
  CUdeviceptr large = Alloc(kBytes) + 5 * kMiB, small = Alloc(64), other = Alloc(kOther), pinned = 0;
  uint32_t* host = nullptr;

  Words() {
    OK(cuMemHostAlloc(reinterpret_cast<void**>(&host), 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&pinned, host, 0));
  }
  // The places of the second value of a node are 64 bytes behind.
  std::array<CUdeviceptr, 3> Places() const { return {large, small, pinned}; }

  void Clear() {
    for (const CUdeviceptr place : Places()) OK(cuMemsetD8Async(place, 0, 64, stream));
    card.Named(stream, {Write(other, kOther, 77)});
    OK(cuStreamSynchronize(stream));
  }
  void Run(const char* what, CUgraphExec exec) {
    Clear();
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    std::printf("%s:", what);
    for (const CUdeviceptr place : Places()) {
      std::array<uint32_t, 16> words{};
      OK(cuMemcpyDtoH(words.data(), place, 64));
      for (const size_t i : {0, 1, 8, 9}) std::printf(" %x", words.at(i));
    }
    std::puts("");
  }
};

CUgraphNode Add(CUgraph graph, CUcontext context, std::vector<CUstreamBatchMemOpParams> list) {
  const CUDA_BATCH_MEM_OP_NODE_PARAMS params{context, static_cast<unsigned>(list.size()), list.data(), 0};
  CUgraphNode node = nullptr;
  OK(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &params));
  return node;
}

// From each kind of memory to each, in an executable graph.
void ChangeMemory(Words& w, unsigned count) {
  for (const CUdeviceptr from : w.Places()) {
    for (const CUdeviceptr to : w.Places()) {
      const auto list = [count](CUdeviceptr first, CUdeviceptr second, uint64_t value) {
        std::vector values{WriteOf(first, value), WriteOf(second + 32, 5ull << 40 | (value + 1), true)};
        values.resize(count);
        return values;
      };
      CUgraph graph = nullptr, next = nullptr;
      CUgraphExec exec = nullptr;
      OK(cuGraphCreate(&graph, 0));
      CUgraphNode const node = Add(graph, w.card.context, list(from, from, 1));
      OK(cuGraphInstantiate(&exec, graph, 0));
      w.Run("made", exec);
      const auto set = [&](const std::vector<CUstreamBatchMemOpParams>& values) {
        auto copy = values;
        const CUDA_BATCH_MEM_OP_NODE_PARAMS params{w.card.context, static_cast<unsigned>(copy.size()), copy.data(), 0};
        return cuGraphExecBatchMemOpNodeSetParams(exec, node, &params);
      };
      OK(set(list(to, from, 3)));
      w.Run("one of two set", exec);
      OK(set(list(to, to, 5)));
      w.Run("set", exec);
      auto back = list(from, to, 7);
      CUgraphNodeParams general{};
      general.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
      general.memOp = {w.card.context, count, back.data(), 0};
      OK(cuGraphExecNodeSetParams(exec, node, &general));
      w.Run("set back", exec);
      OK(cuGraphCreate(&next, 0));
      Add(next, w.card.context, list(to, to, 9));
      CUgraphExecUpdateResultInfo info{};
      OK(cuGraphExecUpdate(exec, next, &info));
      w.Run("updated", exec);
      OK(cuGraphExecUpdate(exec, graph, &info));
      w.Run("updated back", exec);
      // The count stays (H200, driver 580).
      auto more = list(to, to, 11);
      more.push_back(WriteOf(to + 8, 13));
      EXPECT(set(more) == CUDA_ERROR_INVALID_VALUE);
      if (count > 1) EXPECT(set({WriteOf(to, 11)}) == CUDA_ERROR_INVALID_VALUE);
      w.Run("refused", exec);
      OK(cuGraphExecDestroy(exec));
      OK(cuGraphDestroy(graph));
      OK(cuGraphDestroy(next));
    }
  }
}

}  // namespace

SCENARIO(nodes_of_values_change_their_memory) {
  Words w;
  ChangeMemory(w, 2);
}
SCENARIO(nodes_of_one_value_change_their_memory) {
  Words w;
  ChangeMemory(w, 1);
}

// Captured; and a node that begins with a wait, whose values are written in their order.
SCENARIO(captured_values_change_their_memory) {
  Words w;
  for (const bool waits : {false, true}) {
    std::vector<CUgraph> graphs;
    for (const CUdeviceptr place : w.Places()) {
      CUgraph graph = nullptr;
      OK(cuStreamBeginCapture(w.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
      if (waits) {
        for (const auto& op : {WaitOf(w.pinned + 16, 0), WriteOf(w.pinned + 16, 1), WriteOf(place, 2),
                               WaitOf(w.pinned + 16, 1), WriteOf(place, 3)}) {
          CUstreamBatchMemOpParams one = op;
          OK(cuStreamBatchMemOp(w.stream, 1, &one, 0));
        }
      } else {
        OK(cuStreamWriteValue32(w.stream, place, 1, 0));
        OK(cuStreamWriteValue64(w.stream, place + 32, 5ull << 40 | 2, 0));
      }
      OK(cuStreamEndCapture(w.stream, &graph));
      graphs.push_back(graph);
    }
    for (CUgraph from : graphs) {
      CUgraphExec exec = nullptr;
      OK(cuGraphInstantiate(&exec, from, 0));
      w.Run("captured", exec);
      for (CUgraph to : graphs) {
        CUgraphExecUpdateResultInfo info{};
        OK(cuGraphExecUpdate(exec, to, &info));
        w.Run("updated", exec);
      }
      OK(cuGraphExecDestroy(exec));
    }
    for (CUgraph graph : graphs) OK(cuGraphDestroy(graph));
  }
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  OK(cuGraphCreate(&graph, 0));
  CUgraphNode const node = Add(graph, w.card.context, {WaitOf(w.pinned + 16, 0), WriteOf(w.pinned + 16, 1)});
  OK(cuGraphInstantiate(&exec, graph, 0));
  w.Run("waits", exec);
  std::vector<CUstreamBatchMemOpParams> list{WaitOf(w.pinned + 16, 0), WriteOf(w.large, 2)};
  const CUDA_BATCH_MEM_OP_NODE_PARAMS params{w.card.context, 2, list.data(), 0};
  OK(cuGraphExecBatchMemOpNodeSetParams(exec, node, &params));
  w.Run("waits, set", exec);
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
}

// By a library whose memory is not oversubscribed, into memory that is. Replays write the captured values, whatever was
// written by others meanwhile.
SCENARIO(captured_writes_of_nccl_repeat) {
  Words w;
  const std::string file = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "engine_nccl/libnccl.so.2";
  void* const library = dlopen(file.c_str(), RTLD_NOW);
  EXPECT(library);
  using Writer = CUresult(CUstream, CUdeviceptr, cuuint64_t);
  std::vector<CUgraphExec> graphs;
  for (const char* name : {"nccl_write", "nccl_write_two"}) {
    auto* const write = reinterpret_cast<Writer*>(dlsym(library, name));
    CUgraph graph = nullptr;
    OK(cuStreamBeginCapture(w.stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(write(w.stream, w.large, 1));
    OK(write(w.stream, w.small + 32, 3));
    OK(cuStreamEndCapture(w.stream, &graph));
    OK(cuGraphInstantiate(&graphs.emplace_back(), graph, 0));
    OK(cuGraphDestroy(graph));
  }
  for (uint32_t round = 0; round < 3; ++round) {
    for (CUgraphExec exec : graphs) {
      w.Run("replayed", exec);
      for (uint64_t i = 0; i < 2000; ++i) {
        OK(cuStreamWriteValue64(w.stream, w.large + 64, 100 + i, 0));
        if (i % 100 == 99) OK(cuStreamSynchronize(w.stream));
      }
    }
  }
  for (CUgraphExec exec : graphs) OK(cuGraphExecDestroy(exec));
}
