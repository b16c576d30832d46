// A CUDA graph whose nodes use more memory than the budget, on the simulated GPU. One layer after the other reads its
// weights and updates an activation that all share. Prints virtual microseconds a replay, the first half left out.
//   graph_bench NAME LIVE_MIB [REPLAYS]
// NAME: once (weights are read once, as for one token), reread (eight times, as for a batch), foreach (PyTorch's struct
// of tensors: each node works on one of the eight tensors that it names).
#include <algorithm>
#include <cstring>
#include <string>

#include "simgpu/tests/card.h"
#include "trace/replay/sleep.h"

namespace {

using simgpu_test::kMiB;

constexpr uint64_t kLayer = 16 * kMiB, kHot = 32 * kMiB;

// hooklib/libraries/extents/torch_kernels.h
struct TensorList {
  uint64_t addresses[1][110];
  int64_t numel_for_tensor[110];
  uint8_t block_to_tensor[320];
  int block_to_chunk[320];
  int start_tensor_this_launch;
};
constexpr const char* kForeach =
    "_ZN2at6native25multi_tensor_apply_kernelINS1_18TensorListMetadataILi1EEENS1_"
    "21BinaryOpScalarFunctorIfLi1ELi1ELi0EEE"
    "JSt10multipliesIfEfEEEvT_T0_DpT1_";

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 2 ? argv[1] : "";
  if (name != "once" && name != "reread" && name != "foreach") {
    std::fprintf(stderr, "usage: graph_bench once|reread|foreach LIVE_MIB [REPLAYS]\n");
    return 2;
  }
  const uint64_t layers = std::strtoull(argv[2], nullptr, 10) * kMiB / kLayer;
  const int replays = std::max(1, argc > 3 ? std::atoi(argv[3]) : 60);
  simgpu_test::Card card;
  sluice::replay::SleepOnSimulatedClock(&simgpu_advance_host);
  CUstream stream = card.Stream();
  CUmodule module = nullptr;
  CUfunction two = nullptr, foreach = nullptr;
  const std::string image = std::string("simgpu-module 1\nkernel two params 8,8 ns 20000\nkernel ") + kForeach +
                            " params 3368,1,1,4 ns 20000\n";
  OK(cuModuleLoadData(&module, image.c_str()));
  OK(cuModuleGetFunction(&two, module, "two"));
  OK(cuModuleGetFunction(&foreach, module, kForeach));
  const auto launch = [&](CUdeviceptr a, CUdeviceptr b, const std::vector<simgpu_touch>& touches) {
    simgpu_next_launch(touches.data(), touches.size(), 20000, 0);
    void* params[] = {&a, &b};
    OK(cuLaunchKernel(two, 1, 1, 1, 1, 1, 1, 0, stream, params, nullptr));
  };
  const CUdeviceptr hot = card.Unmanaged(kHot);
  launch(hot, 0, {simgpu_test::Write(hot, kHot)});
  std::vector<CUdeviceptr> weights;
  for (uint64_t i = 0; i < layers; ++i) {
    weights.push_back(card.Unmanaged(kLayer));
    launch(weights.back(), 0, {simgpu_test::Write(weights.back(), kLayer)});
  }
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  for (uint64_t i = 0; i < layers; ++i) {
    const CUdeviceptr at = weights[i];
    if (name == "foreach") {
      TensorList list;
      std::memset(&list, 0, sizeof list);
      std::vector<simgpu_touch> touches;
      for (uint64_t t = 0; t < 8; ++t) {
        list.addresses[0][t] = weights[(i / 8 * 8 + t) % layers];
        list.numel_for_tensor[t] = kLayer / 4;
      }
      constexpr uint64_t kChunk = 65536;  // elements of a block
      for (uint64_t block = 0; block < 64; ++block) {
        list.block_to_tensor[block] = static_cast<uint8_t>(i % 8);
        list.block_to_chunk[block] = static_cast<int>(block);
      }
      touches.push_back(simgpu_test::Update(at, 64 * kChunk * 4));
      simgpu_next_launch(touches.data(), touches.size(), 20000, 0);
      char none = 0;
      float scale = 2;
      void* params[] = {&list, &none, &none, &scale};
      OK(cuLaunchKernel(foreach, 64, 1, 1, 512, 1, 1, 0, stream, params, nullptr));
    } else {
      simgpu_touch read = simgpu_test::Read(at, kLayer);
      if (name == "reread") read.access |= SIMGPU_PASSES(8);
      launch(at, hot, {read, simgpu_test::Update(hot, kHot)});
    }
  }
  OK(cuStreamEndCapture(stream, &graph));
  OK(cuGraphInstantiate(&executable, graph, 0));
  const auto replay = [&](int n) {
    for (int i = 0; i < n; ++i) {
      OK(cuGraphLaunch(executable, stream));
      OK(cuStreamSynchronize(stream));
    }
  };
  replay(replays / 2);
  const auto before = card.Stats();
  const auto measured = replays - replays / 2;
  const uint64_t ns = card.Time([&] { replay(measured); });
  const auto after = card.Stats();
  // NOLINTNEXTLINE(clang-analyzer-optin.taint.TaintedDiv): at least one is measured
  const auto mib = [&](uint64_t a, uint64_t b) { return static_cast<double>(b - a) / 0x1p20 / measured; };
  std::fprintf(stderr, "a replay: %.0f MiB fetched, %.0f by faults, %.0f remote, %.0f evicted\n",
               mib(before.prefetch_in_bytes, after.prefetch_in_bytes), mib(before.fault_bytes, after.fault_bytes),
               mib(before.remote_bytes, after.remote_bytes), mib(before.prefetch_out_bytes, after.prefetch_out_bytes));
  std::printf("%.1f\n", static_cast<double>(ns) / 1e3 / measured);
  return 0;
}
