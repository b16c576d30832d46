// Launches a second of real time, misuse detector on: the goal is a million on one core.
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
    double best = 0;
    for (int round = 0; round < 5; ++round) {
      const auto from = std::chrono::steady_clock::now();
      for (int i = 0; i < count; ++i) {
        prepare(i);
        OK(cuLaunchKernel(card.empty, 1, 1, 1, 1, 1, 1, 0, s, params, nullptr));
      }
      OK(cuStreamSynchronize(s));
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - from).count();
      best = std::max(best, count / seconds);
    }
    std::printf("%-48s %8.2f million launches/s\n", what, best / 1e6);
    return best;
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
