// Common to the tests of virtual time: rates, profiles, resident memory.
#ifndef SIMGPU_TESTS_TIMING_H_
#define SIMGPU_TESTS_TIMING_H_

#include <catch2/catch_test_macros.hpp>
#include <cstdlib>

#include "card.h"

namespace simgpu_test {

inline double Gbps(uint64_t bytes, uint64_t ns) { return static_cast<double>(bytes) / static_cast<double>(ns); }

// A process has one profile, set by its first test. ctest runs each test in a process of its own.
inline bool IsProfile(const char* name, uint64_t memory, int gpus) {
  setenv("SIMGPU_PROFILE", name, 1);
  OK(cuInit(0));
  size_t total = 0;
  int count = 0;
  OK(cuDeviceTotalMem(&total, 0));
  OK(cuDeviceGetCount(&count));
  return total == memory && count == gpus;
}
#define NEED_PROFILE(name, memory, gpus) \
  if (!IsProfile(name, memory, gpus))    \
  SKIP("needs the profile " name ", and this process has another one: run it by ctest")

// Makes [p, p+n) resident.
inline void Populate(Card& card, CUstream s, CUdeviceptr p, uint64_t n) {
  card.Launch(s, {Write(p, n)});
  OK(cuStreamSynchronize(s));
}

}  // namespace simgpu_test

#endif  // SIMGPU_TESTS_TIMING_H_
