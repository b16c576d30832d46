// Copies between two GPUs of a program that enables no peer access.
#include <functional>
#include <vector>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kBlock = 32 * kMiB;

// The graph's one launch in the stream.
void LaunchOnce(CUgraph graph, CUstream s) {
  CUgraphExec exec = nullptr;
  OK(cuGraphInstantiate(&exec, graph, 0));
  OK(cuGraphLaunch(exec, s));
  OK(cuStreamSynchronize(s));
  OK(cuGraphExecDestroy(exec));
  OK(cuGraphDestroy(graph));
}

}  // namespace

// GPU 1 copies from and to blocks of GPU 0, which stay there, within that GPU's budget.
SCENARIO(copies_of_another_gpu) {
  Card first(0);
  CUstream s0 = first.Stream();
  std::vector<CUdeviceptr> blocks;
  for (uint32_t i = 0; i < 12; ++i) {
    blocks.push_back(Alloc(kBlock));
    first.Named(s0, {Write(blocks[i], kBlock, i + 1)});
  }
  OK(cuStreamSynchronize(s0));
  Card second(1);
  CUstream s1 = second.Stream();
  const CUdeviceptr own = Alloc(kBlock);
  second.Named(s1, {Write(own, kBlock, 50)});
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.WidthInBytes = rows.srcPitch = rows.dstPitch = kMiB;
  rows.Height = kBlock / kMiB;
  const std::vector<std::function<void(CUdeviceptr, CUdeviceptr)>> copies = {
      [&](CUdeviceptr to, CUdeviceptr from) { OK(cuMemcpyDtoDAsync(to, from, kBlock, s1)); },
      [&](CUdeviceptr to, CUdeviceptr from) { OK(cuMemcpyDtoD(to, from, kBlock)); },
      [&](CUdeviceptr to, CUdeviceptr from) {
        const bool is_out = to == own;
        OK(cuMemcpyPeerAsync(to, is_out ? second.context : first.context, from, is_out ? first.context : second.context,
                             kBlock, s1));
      },
      [&](CUdeviceptr to, CUdeviceptr from) {
        rows.dstDevice = to;
        rows.srcDevice = from;
        OK(cuMemcpy2DAsync(&rows, s1));
      },
      [&](CUdeviceptr to, CUdeviceptr from) {
        CUgraph graph = nullptr;
        OK(cuStreamBeginCapture(s1, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        OK(cuMemcpyDtoDAsync(to, from, kBlock, s1));
        OK(cuStreamEndCapture(s1, &graph));
        LaunchOnce(graph, s1);
      },
      [&](CUdeviceptr to, CUdeviceptr from) {
        CUgraph graph = nullptr;
        CUgraphNode node = nullptr;
        CUDA_MEMCPY3D box{};
        box.srcMemoryType = box.dstMemoryType = CU_MEMORYTYPE_DEVICE;
        box.dstDevice = to;
        box.srcDevice = from;
        box.WidthInBytes = kBlock;
        box.Height = box.Depth = 1;
        OK(cuGraphCreate(&graph, 0));
        OK(cuGraphAddMemcpyNode(&node, graph, nullptr, 0, &box, second.context));
        LaunchOnce(graph, s1);
      },
  };
  for (size_t i = 0; i < 2 * copies.size(); ++i) {
    const auto& copy = copies[i % copies.size()];
    i < copies.size() ? copy(own, blocks[i]) : copy(blocks[i], own);
    OK(cuCtxSynchronize());
    if (Budget() == 0) continue;
    EXPECT(first.Stats(1).resident_bytes <= kBlock + 4 * kMiB);
    EXPECT(first.Stats(0).resident_bytes <= Budget());
  }
  PrintDigest("own", own, kBlock);
  OK(cuCtxSetCurrent(first.context));
  for (const CUdeviceptr block : blocks) PrintDigest("block", block, kBlock);
}
