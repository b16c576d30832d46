// Buffers that each step overwrites before it uses them, in a live set larger than the budget, on the simulated GPU.
// Prints virtual microseconds a step and MiB fetched, the first half left out.
//   overwrite_bench NAME LIVE_MIB [STEPS]
// NAME: cleared (each buffer by a memset, then two kernels), copied (from pinned host memory, then a kernel), ahead (as
// cleared, but the host never waits: all work is queued long before), late (as cleared, each buffer used six buffers
// after its memset), alone (no overwrites: the cost of the switch itself).
#include <algorithm>
#include <string>

#include "experiments/bench/rig.h"

namespace {

using simgpu_test::kMiB;

constexpr uint64_t kBuffer = 32 * kMiB;

}  // namespace

int main(int argc, char** argv) {
  const std::string name = argc > 2 ? argv[1] : "";
  if (name != "cleared" && name != "copied" && name != "ahead" && name != "late" && name != "alone") {
    std::fprintf(stderr, "usage: overwrite_bench cleared|copied|ahead|late|alone LIVE_MIB [STEPS]\n");
    return 2;
  }
  const uint64_t buffers = std::strtoull(argv[2], nullptr, 10) * kMiB / kBuffer;
  const int steps = std::max(1, argc > 3 ? std::atoi(argv[3]) : 40);
  sluice::bench::Rig rig;
  CUstream stream = rig.stream;
  std::vector<CUdeviceptr> p;
  const auto use = [&](uint64_t i, unsigned shape) { rig.Update(p[i], kBuffer, 500'000, shape); };
  for (uint64_t i = 0; i < buffers; ++i) {
    p.push_back(rig.card.Unmanaged(kBuffer));
    OK(cuMemsetD8Async(p.back(), 1, kBuffer, stream));
  }
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, kBuffer, 0));
  const auto step = [&] {
    for (uint64_t i = 0; i < buffers; ++i) {
      if (name == "copied") {
        OK(cuMemcpyHtoDAsync(p[i], host, kBuffer, stream));
      } else if (name != "alone") {
        OK(cuMemsetD8Async(p[i], 0, kBuffer, stream));
      }
      const uint64_t at = name == "late" ? (i + buffers - std::min<uint64_t>(6, buffers - 1)) % buffers : i;
      use(at, 1 + static_cast<unsigned>(at));
      if (name != "copied") use(at, 1000 + static_cast<unsigned>(at));
    }
    if (name != "ahead") OK(cuStreamSynchronize(stream));
  };
  for (int i = 0; i < steps / 2; ++i) step();
  const int rest = steps - steps / 2;
  OK(cuStreamSynchronize(stream));
  const auto before = rig.card.Stats();
  const uint64_t ns = rig.card.Time([&] {
    for (int i = 0; i < rest; ++i) step();
  });
  const auto after = rig.card.Stats();
  std::printf(  // NOLINTNEXTLINE(clang-analyzer-optin.taint.TaintedDiv): at least one step is measured
      "%.1f %.1f\n", static_cast<double>(ns) / 1e3 / rest,
      static_cast<double>(after.prefetch_in_bytes + after.fault_bytes - before.prefetch_in_bytes - before.fault_bytes) /
          0x1p20 / rest);
  return 0;
}
