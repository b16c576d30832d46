// Library calls in captured graphs: operands that no kernel parameter names must be resident at each launch of the
// graph, of its clones and of graphs that contain it. The engine logs the operands of each graph at DEBUG;
// graphs_test.py compares these lines with the order of the cases here.
#include <cstring>
#include <thread>
#include <vector>

#include "test/libraries/program.h"

namespace {

using namespace simgpu_test;              // NOLINT(google-build-using-namespace): helpers of the test
using namespace sluice::libraries::test;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kBlock = 640 * kMiB, kOther = 1020 * kMiB;
constexpr int kSide = 1448;  // squared, in floats: a little less than 8 MiB
CUdeviceptr g_block, g_other;
Card* g_card;
CUstream g_stream;

int Gemm(uint64_t a, uint64_t b, uint64_t c, int side = kSide) {
  static int handle = 0;
  static const float alpha = 1, beta = 0;
  const auto at = [](uint64_t mebibyte) { return reinterpret_cast<void*>(g_block + mebibyte * kMiB); };
  return cublasSgemm_v2(&handle, 0, 0, side, side, side, &alpha, at(a), side, at(b), side, &beta, at(c), side);
}

// The work that these calls queue, as a graph.
template <typename Calls>
CUgraph Captured(CUstream stream, Calls calls) {
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  EXPECT(cublasSetStream_v2(nullptr, stream) == 0);
  EXPECT(calls() == 0);
  OK(cuStreamEndCapture(stream, &graph));
  EXPECT(cublasSetStream_v2(nullptr, nullptr) == 0);
  return graph;
}

// Destroys the graph before its executable form is launched.
CUgraphExec Instantiated(CUgraph graph) {
  CUgraphExec executable = nullptr;
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  return executable;
}

// Uses the other block, which evicts the first, then launches the graph; twice. `wanted`: MiB that must be fetched.
void Case(const char* name, uint64_t wanted, CUgraphExec executable, bool last = true) {
  for (int i = 0; i < 2; ++i) {
    for (int k = 0; k < 2; ++k) Touch(*g_card, Read(g_other, kOther));
    OK(cuCtxSynchronize());
    const uint64_t before = g_card->Stats().prefetch_in_bytes;
    OK(cuGraphLaunch(executable, g_stream));
    OK(cuStreamSynchronize(g_stream));
    const uint64_t in = g_card->Stats().prefetch_in_bytes - before;
    std::fprintf(stderr, "%s: %llu MiB fetched\n", name, static_cast<unsigned long long>(in >> 20));
    if (UnderPressure()) EXPECT(in <= (wanted + 6) * kMiB && in + 6 * kMiB >= wanted * kMiB);
  }
  if (last) OK(cuGraphExecDestroy(executable));
}

CUgraphNode NodeOf(CUgraph graph, size_t index) {
  size_t count = 0;
  OK(cuGraphGetNodes(graph, nullptr, &count));
  std::vector<CUgraphNode> nodes(count);
  OK(cuGraphGetNodes(graph, nodes.data(), &count));
  EXPECT(index < count);
  return nodes[index];
}

// A graph with this one as its only node. Destroys the original.
CUgraph Holding(CUgraph child) {
  CUgraph graph = nullptr;
  CUgraphNode node = nullptr;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
  OK(cuGraphDestroy(child));
  return graph;
}

CUgraph Cloned(CUgraph graph) {
  CUgraph clone = nullptr;
  OK(cuGraphClone(&clone, graph));
  OK(cuGraphDestroy(graph));
  return clone;
}

// The kernel names another block now, with unknown access.
CUDA_KERNEL_NODE_PARAMS Naming(CUgraphNode node, const CUdeviceptr* block, void** parameters) {
  CUDA_KERNEL_NODE_PARAMS params{};
  OK(cuGraphKernelNodeGetParams(node, &params));
  parameters[0] = const_cast<CUdeviceptr*>(block);
  params.kernelParams = parameters;
  return params;
}

void Threads() {
  cublasFakeSetMode("faults", nullptr, nullptr);  // the threads evict each other's operands
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 32; ++i) {
    threads.emplace_back([i] {
      OK(cuCtxSetCurrent(g_card->context));
      CUstream stream = nullptr;
      OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      for (uint64_t round = 0; round < 4; ++round) {
        CUgraph graph = Captured(stream, [&] { return Gemm(16 * i, 16 * i + 4, 16 * i + 8 + round, 256); });
        CUgraphExec executable = Instantiated(round % 2 ? Cloned(graph) : graph);
        OK(cuGraphLaunch(executable, stream));
        OK(cuStreamSynchronize(stream));
        OK(cuGraphExecDestroy(executable));
      }
      OK(cuStreamDestroy(stream));
    });
  }
  for (std::thread& thread : threads) thread.join();
  cublasFakeSetMode("overwrite", nullptr, nullptr);
}

}  // namespace

int main() {
  Card card;
  g_card = &card;
  g_block = card.Unmanaged(kBlock);
  g_stream = card.Stream();
  const CUdeviceptr small = card.Unmanaged(16 * kMiB);
  cublasFakeSetMode("overwrite", nullptr, nullptr);
  // While everything fits, on a stream that no work has used.
  CUgraphExec early = Instantiated(Captured(g_stream, [] { return Gemm(0, 16, 32); }));
  card.Unmanaged(400 * kMiB);  // more than the budget: from here on, launches fetch their operands
  g_other = card.Unmanaged(kOther);
  Touch(card, Write(g_block, kBlock));
  Touch(card, Write(small, 16 * kMiB));
  OK(cuCtxSynchronize());
  Touch(card, Write(g_other, kOther));
  Case("captured while all fitted", 24, early);
  const auto two = [] {
    const int first = Gemm(64, 128, 192);
    return first != 0 ? first : Gemm(64, 192, 256);
  };
  // A and B are only read; the second call reads the first one's result.
  Case("two calls", 32, Instantiated(Captured(g_stream, two)));
  Case("a clone", 32, Instantiated(Cloned(Captured(g_stream, two))));
  Case("a child", 32, Instantiated(Holding(Captured(g_stream, two))));
  Case("a clone of a child's child", 32, Instantiated(Cloned(Holding(Holding(Captured(g_stream, two))))));

  // The update's operands are fetched, the first ones are not.
  CUgraphExec updated = Instantiated(Captured(g_stream, [] { return Gemm(0, 16, 32); }));
  CUgraph next = Captured(g_stream, [] { return Gemm(300, 316, 300); });
  CUgraphExecUpdateResultInfo info{};
  OK(cuGraphExecUpdate(updated, next, &info));
  OK(cuGraphDestroy(next));
  Case("an update", 16, updated);

  // One node is updated: with the same parameters it keeps the captured call's set, with others these alone count.
  CUgraph graph = Captured(g_stream, two);
  CUgraphExec executable = nullptr;
  OK(cuGraphInstantiate(&executable, graph, 0));
  CUgraphNode node = NodeOf(graph, 0);
  void* parameters[1];
  CUDA_KERNEL_NODE_PARAMS params{};
  OK(cuGraphKernelNodeGetParams(node, &params));
  const CUdeviceptr nothing = 0;
  params = Naming(node, &nothing, parameters);
  OK(cuGraphExecKernelNodeSetParams(executable, node, &params));
  Case("a node as it was", 32, executable, false);
  params = Naming(node, &small, parameters);
  CUgraphNodeParams any{};
  any.type = CU_GRAPH_NODE_TYPE_KERNEL;
  std::memcpy(&any.kernel, &params, sizeof any.kernel);
  for (int i = 0; i < 100; ++i) OK(cuGraphExecNodeSetParams(executable, node, &any));
  Case("a node with other parameters", 40, executable);
  // The same before instantiation.
  OK(cuGraphKernelNodeSetParams(node, &params));
  Case("other parameters before", 40, Instantiated(graph));
  graph = Captured(g_stream, two);
  OK(cuGraphDestroyNode(NodeOf(graph, 0)));
  Case("without its first node", 24, Instantiated(graph));

  // A capture that fails leaves nothing behind.
  CUstream side = card.Stream();
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  OK(cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  OK(cuEventRecord(event, g_stream));
  OK(cuStreamWaitEvent(side, event, 0));
  EXPECT(cublasSetStream_v2(nullptr, side) == 0);
  EXPECT(two() == 0);
  EXPECT(cublasSetStream_v2(nullptr, nullptr) == 0);
  EXPECT(cuStreamEndCapture(g_stream, &graph) == CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  Threads();
  std::puts("done");
  return 0;
}
