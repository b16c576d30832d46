// Launches a second with the misuse detector; the goal is a million on one core. Measured in the process' CPU time,
// since machines are shared, and in real time.
#include <time.h>

#include <chrono>

#include "card.h"

using namespace simgpu_test;  // NOLINT(google-build-using-namespace)

int main() {
  Card card;
  CUstream s = card.Stream();
  constexpr int kTensors = 64;
  constexpr uint64_t kSize = 4 * kMiB;
  CUdeviceptr p = card.Managed(kTensors * kSize);
  for (int i = 0; i < kTensors; ++i) card.Launch(s, {Write(p + static_cast<uint64_t>(i) * kSize, kSize)});
  OK(cuStreamSynchronize(s));
  uint64_t nothing = 0;
  void* params[] = {&nothing};
  const auto run = [&](const char* what, int count, auto prepare) {
    double best = 0, on_core = 0;
    const auto core = [] {
      timespec t;
      clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) / 1e9;
    };
    for (int round = 0; round < 5; ++round) {
      const double begin = core();
      const auto from = std::chrono::steady_clock::now();
      for (int i = 0; i < count; ++i) {
        prepare(i);
        OK(cuLaunchKernel(card.empty, 1, 1, 1, 1, 1, 1, 0, s, params, nullptr));
      }
      OK(cuStreamSynchronize(s));
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
      best = std::max(best, count / seconds);
      on_core = std::max(on_core, count / (core() - begin));
    }
    std::printf("%-48s %8.2f million launches/s of one core, %.2f by the clock\n", what, on_core / 1e6, best / 1e6);
    return on_core;
  };
  run("no touches", 500000, [](int) {});
  const double three = run("3 tensors of 4 MiB, 2 read and 1 written", 500000, [&](int i) {
    const auto at = [&](int k) { return p + static_cast<uint64_t>((i * 5 + k) % kTensors) * kSize; };
    const simgpu_touch touches[] = {Read(at(0), kSize), Read(at(1), kSize), Write(at(2), kSize)};
    simgpu_next_launch(touches, 3, 5000, 0);
  });
  run("1 tensor of 256 MiB", 200000, [&](int) {
    const simgpu_touch touches[] = {Read(p, kTensors * kSize)};
    simgpu_next_launch(touches, 1, 5000, 0);
  });
  return three >= 1e6 ? 0 : 3;
}
