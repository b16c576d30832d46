// Common to the benches of single access patterns: a simulated GPU whose clock advances while a thread sleeps, a
// stream, and a kernel with two pointer parameters that touches given ranges.
#ifndef SLUICE_EXPERIMENTS_BENCH_RIG_H_
#define SLUICE_EXPERIMENTS_BENCH_RIG_H_

#include "simgpu/tests/card.h"
#include "trace/replay/sleep.h"

namespace sluice::bench {

struct Rig {
  simgpu_test::Card card;
  CUstream stream = card.Stream();
  CUfunction two = nullptr;

  Rig() {
    sluice::replay::SleepOnSimulatedClock(&simgpu_advance_host);
    CUmodule module = nullptr;
    OK(cuModuleLoadData(&module, "simgpu-module 1\nkernel two params 8,8 ns 20000\n"));
    OK(cuModuleGetFunction(&two, module, "two"));
  }

  // An update that reads its operand many times, so that it has to be resident. The shape distinguishes launches.
  void Update(CUdeviceptr at, uint64_t bytes, uint64_t ns, unsigned shape = 1) {
    simgpu_touch touch = simgpu_test::Update(at, bytes);
    touch.access |= SIMGPU_PASSES(32);
    simgpu_next_launch(&touch, 1, ns, 0);
    CUdeviceptr none = 0;
    void* params[] = {&at, &none};
    OK(cuLaunchKernel(two, shape, 1, 1, 1, 1, 1, 0, stream, params, nullptr));
  }

  // Reads one, writes the other.
  void Reduce(CUdeviceptr from, CUdeviceptr to, uint64_t bytes, uint64_t ns) {
    const simgpu_touch touches[] = {simgpu_test::Read(from, bytes), simgpu_test::Write(to, bytes)};
    simgpu_next_launch(touches, 2, ns, 0);
    void* params[] = {&from, &to};
    OK(cuLaunchKernel(two, 64, 1, 1, 1, 1, 1, 0, stream, params, nullptr));
  }
};

}  // namespace sluice::bench

#endif  // SLUICE_EXPERIMENTS_BENCH_RIG_H_
