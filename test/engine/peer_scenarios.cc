// Copies and memsets of one GPU in memory of another, of a program that enables no peer access.
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kBlock = 32 * kMiB;

// One launch of a graph that the function fills.
void LaunchOnce(CUstream s, const std::function<void(CUgraph)>& fill) {
  CUgraph graph = nullptr;
  CUgraphExec exec = nullptr;
  OK(cuGraphCreate(&graph, 0));
  fill(graph);
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphLaunch(exec, s));
  OK(cuStreamSynchronize(s));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
}

CUDA_MEMCPY3D Box(CUdeviceptr to, CUdeviceptr from) {
  CUDA_MEMCPY3D box{};
  box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  box.dstDevice = to;
  box.srcDevice = from;
  box.WidthInBytes = box.srcPitch = box.dstPitch = kMiB;
  box.Height = box.srcHeight = box.dstHeight = kBlock / kMiB;
  box.Depth = 1;
  return box;
}

}  // namespace

// GPU 1 uses blocks of GPU 0, which stay there, within that GPU's budget. COPIES: the kind of call; one kind a process,
// since the first copy decides for all later ones. UNUSED: GPU 0 has queued nothing, and its blocks were never written.
SCENARIO(copies_of_another_gpu) {
  const char* const wanted = std::getenv("COPIES");
  const std::string kind = wanted != nullptr ? wanted : "copy";
  const bool is_unused = std::getenv("UNUSED") != nullptr;
  Card first(0);
  std::vector<CUdeviceptr> blocks;
  for (uint32_t i = 0; i < 12; ++i) blocks.push_back(Alloc(kBlock));
  if (!is_unused) {
    CUstream s0 = first.Stream();
    for (uint32_t i = 0; i < 12; ++i) first.Named(s0, {Write(blocks[i], kBlock, i + 1)});
    OK(cuStreamSynchronize(s0));
  }
  Card second(1);
  CUstream s1 = second.Stream();
  const CUdeviceptr own = Alloc(kBlock);
  second.Named(s1, {Write(own, kBlock, 50)});
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, kBlock, 0));
  std::memset(host, 9, kBlock);
  const auto use = [&](CUdeviceptr block, bool writes) {
    const CUdeviceptr to = writes ? block : own, from = writes ? own : block;
    if (kind == "copy") {
      OK(cuMemcpyDtoDAsync(to, from, kBlock, s1));
    } else if (kind == "synchronous") {
      OK(cuMemcpyDtoD(to, from, kBlock));
    } else if (kind == "peer") {
      const CUcontext target = writes ? first.context : second.context;
      OK(cuMemcpyPeerAsync(to, target, from, writes ? second.context : first.context, kBlock, s1));
    } else if (kind == "box") {
      const CUDA_MEMCPY3D box = Box(to, from);
      OK(cuMemcpy3DAsync(&box, s1));
    } else if (kind == "batch") {
      CUdeviceptr targets[] = {to}, sources[] = {from};
      size_t sizes[] = {kBlock}, index = 0;
      CUmemcpyAttributes how{};
      how.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
      OK(cuMemcpyBatchAsync(targets, sources, sizes, 1, &how, &index, 1, s1));
    } else if (kind == "host") {
      OK(writes ? cuMemcpyHtoDAsync(block, host, kBlock, s1) : cuMemcpyDtoHAsync(host, block, kBlock, s1));
    } else if (kind == "memset") {
      OK(cuMemsetD8Async(block, writes ? 3 : 4, kBlock, s1));
    } else if (kind == "captured") {
      CUgraph captured = nullptr;
      OK(cuStreamBeginCapture(s1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
      OK(cuMemcpyDtoDAsync(to, from, kBlock, s1));
      OK(cuStreamEndCapture(s1, &captured));
      CUgraphNode child = nullptr;
      LaunchOnce(s1, [&](CUgraph graph) { OK(cuGraphAddChildGraphNode(&child, graph, nullptr, 0, captured)); });
      OK(cuGraphDestroy(captured));
    } else if (kind == "host_node") {
      CUDA_MEMCPY3D box = Box(to, from);
      (writes ? box.srcMemoryType : box.dstMemoryType) = CU_MEMORYTYPE_HOST;
      writes ? box.srcHost = host : box.dstHost = host;
      CUgraphNode node = nullptr;
      LaunchOnce(s1, [&](CUgraph graph) { OK(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &box, second.context)); });
    } else if (kind == "changed_node") {  // with the other GPU's context current
      CUDA_MEMCPY3D box = Box(own, own);
      CUgraphNode node = nullptr;
      LaunchOnce(s1, [&](CUgraph graph) {
        OK(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &box, second.context));
        box = Box(to, from);
        OK(cuCtxSetCurrent(first.context));
        OK(cuGraphMemcpyNodeSetParams(node, &box));
        OK(cuCtxSetCurrent(second.context));
      });
    } else if (kind == "memset_node") {
      CUgraphNodeParams params{};
      params.type = CU_GRAPH_NODE_TYPE_MEMSET;
      params.memset = {block, kBlock, 7, 1, kBlock, 1, second.context};
      CUgraphNode node = nullptr;
      LaunchOnce(s1, [&](CUgraph graph) { OK(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params)); });
    } else {
      EXPECT(!"a known kind");
    }
    OK(cuCtxSynchronize());
    if (Budget() == 0) return;
    EXPECT(first.Stats(1).resident_bytes <= kBlock + 4 * kMiB);
  };
  for (size_t i = 0; i < blocks.size(); ++i) use(blocks[i], is_unused || i % 2 == 0);
  PrintDigest("own", own, kBlock);
  OK(cuCtxSetCurrent(first.context));
  for (const CUdeviceptr block : blocks) PrintDigest("block", block, kBlock);
  // Its own work corrects what others' writes brought above the budget.
  CUstream s0 = first.Stream();
  for (int i = 0; i < 4; ++i) first.Named(s0, {Read(blocks[0], kBlock)});
  OK(cuCtxSynchronize());
  if (Budget() != 0) EXPECT(first.Stats(0).resident_bytes <= Budget() + kBlock);
}
