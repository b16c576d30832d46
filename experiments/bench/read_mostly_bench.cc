// Weights that copies loaded and that library calls read in every step, in a live set larger than the budget, on the
// simulated GPU. Prints virtual microseconds a step, the first half left out, and on stderr the moved bytes.
//   read_mostly_bench NAME LIVE_MIB [STEPS]
// NAME:
// - reread: each operand is read 32 times, as in a batch
// - once: read once, as for one token
// - ahead: as reread, but the host never waits
// - written: as reread; in every eighth step a kernel without a known access set updates one of the weights
// - loaded: as written, by a copy
// - trained: as reread; a kernel updates every second weight in each step, so that others are evicted all the time
// - beside: as reread; in every eighth step a kernel without a known access set reads the weight that is used last, on
// a
//   stream of its own, during the step
// - beside-late: the same, after the step
// - graph: as reread, a step is a CUDA graph; graph-once, graph-ahead: likewise
// - graph-made: the weights are written by kernels, not loaded; graph-mixed: every second is
// - graph-loss, graph-made-loss: after each replay a kernel reduces the last output into a buffer of its own
#include <algorithm>
#include <string>

#include "experiments/bench/rig.h"

extern "C" {
int cublasSgemm_v2(void*, int, int, int, int, int, const void*, const void*, int, const void*, int, const void*, void*,
                   int);
int cublasSetStream_v2(void*, void*);
void cublasFakeSetPasses(unsigned);
}

namespace {

using simgpu_test::kMiB;

constexpr int kRows = 4096, kDepth = 2048, kBatch = 256;
constexpr uint64_t kWeight = 4ull * kRows * kDepth, kIn = 4ull * kDepth * kBatch, kOut = 4ull * kRows * kBatch;

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 2 ? argv[1] : "";
  const std::string names =
      "reread|once|ahead|written|loaded|trained|beside|beside-late|graph|graph-once|graph-ahead|graph-made|graph-mixed|"
      "graph-loss|"
      "graph-made-loss";
  if (name.empty() || ("|" + names + "|").find("|" + name + "|") == std::string::npos) {
    std::fprintf(stderr, "usage: read_mostly_bench %s LIVE_MIB [STEPS]\n", names.c_str());
    return 2;
  }
  const uint64_t count = (std::strtoull(argv[2], nullptr, 10) * kMiB - kIn - kOut) / kWeight;
  const int steps = std::max(1, argc > 3 ? std::atoi(argv[3]) : 40);
  sluice::bench::Rig rig;
  CUstream stream = rig.stream, other = rig.card.Stream();
  const auto update = [&](CUdeviceptr a) { rig.Update(a, kWeight, 100'000); };
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, kWeight, 0));
  std::vector<CUdeviceptr> weights;
  const auto load = [&](uint64_t i) { OK(cuMemcpyHtoDAsync(weights[i], host, kWeight, stream)); };
  for (uint64_t i = 0; i < count; ++i) {
    weights.push_back(rig.card.Unmanaged(kWeight));
    load(i);
    if (name.starts_with("graph-made") || (name == "graph-mixed" && i % 2)) update(weights[i]);
  }
  const CUdeviceptr in = rig.card.Unmanaged(kIn), out = rig.card.Unmanaged(kOut);
  const CUdeviceptr last = name.ends_with("loss") ? rig.card.Unmanaged(kOut) : 0;
  const CUdeviceptr loss = last ? rig.card.Unmanaged(kOut) : 0;
  OK(cuMemsetD8Async(in, 1, kIn, stream));
  cublasFakeSetPasses(name == "once" || name == "graph-once" ? 1 : 32);
  int handle = 0;
  const float alpha = 1, beta = 0;
  cublasSetStream_v2(&handle, stream);
  const auto pass = [&] {
    for (uint64_t i = 0; i < count; ++i) {
      const auto at = [](CUdeviceptr p) { return reinterpret_cast<void*>(p); };
      if (cublasSgemm_v2(&handle, 0, 0, kRows, kBatch, kDepth, &alpha, at(weights[i]), kRows, at(in), kDepth, &beta,
                         at(loss && i + 1 == count ? last : out), kRows) != 0)
        std::_Exit(3);
      if (name == "trained" && i % 2) update(weights[i]);
    }
  };
  CUgraphExec graph = nullptr;
  if (name.starts_with("graph")) {
    CUgraph captured = nullptr;
    pass();
    OK(cuStreamSynchronize(stream));
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    pass();
    OK(cuStreamEndCapture(stream, &captured));
    OK(cuGraphInstantiate(&graph, captured, 0));
  }
  const auto step = [&](int number) {
    if (graph) {
      OK(cuGraphLaunch(graph, stream));
    } else {
      pass();
    }
    if (loss) rig.Reduce(last, loss, kOut, 10'000);
    const uint64_t one = static_cast<uint64_t>(number) / 8 % count;
    if (number % 8 == 7 && name == "written") update(weights[one]);
    if (number % 8 == 7 && name == "loaded") load(one);
    if (number % 8 == 7 && name.starts_with("beside")) {
      if (name == "beside-late") OK(cuStreamSynchronize(stream));
      const simgpu_touch touch = simgpu_test::Read(weights[count - 1 - one], kWeight);
      simgpu_next_launch(&touch, 1, 100'000, 0);
      CUdeviceptr named = touch.address, none = 0;
      void* params[] = {&named, &none};
      OK(cuLaunchKernel(rig.two, 1, 1, 1, 1, 1, 1, 0, other, params, nullptr));
      OK(cuStreamSynchronize(other));
    }
    if (!name.ends_with("ahead")) OK(cuStreamSynchronize(stream));
  };
  int number = 0;
  while (number < steps / 2) step(number++);
  OK(cuStreamSynchronize(stream));
  const auto before = rig.card.Stats();
  const uint64_t ns = rig.card.Time([&] {
    while (number < steps) step(number++);
  });
  const auto after = rig.card.Stats();
  const int rest = steps - steps / 2;
  const auto mib = [&](uint64_t a, uint64_t b) { return static_cast<double>(b - a) / 0x1p20 / rest; };
  std::fprintf(stderr,
               "a step: %.0f MiB fetched, %.0f by faults, %.0f remote, %.0f evicted, %.0f written to duplicates; "
               "resident peak %.0f\n",
               mib(before.prefetch_in_bytes, after.prefetch_in_bytes), mib(before.fault_bytes, after.fault_bytes),
               mib(before.remote_bytes, after.remote_bytes), mib(before.prefetch_out_bytes, after.prefetch_out_bytes),
               mib(before.duplicate_write_bytes, after.duplicate_write_bytes),
               static_cast<double>(after.resident_peak_bytes) / 0x1p20);
  std::printf("%.1f\n", static_cast<double>(ns) / 1e3 / rest);
  return 0;
}
