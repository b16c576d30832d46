// Shared by the scenarios: a GPU, launches whose parameters name the memory that they touch, checks, digests.
//
// A scenario prints its results (digests, bytes, codes) on stdout. The tests run it without the hook, hooked at full
// budget and hooked under pressure, and the three must print the same. The simulated GPU reports misuse.
#ifndef SLUICE_TEST_ENGINE_SCENARIO_H_
#define SLUICE_TEST_ENGINE_SCENARIO_H_

#include <array>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "simgpu/tests/card.h"

extern "C" CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                        unsigned, CUstream, void**, void**);

namespace scenario {

using simgpu_test::kGiB;
using simgpu_test::kMiB;
using simgpu_test::Read;
using simgpu_test::Update;
using simgpu_test::Write;

#define EXPECT(condition)                                                                 \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: not true: %s\n", __FILE_NAME__, __LINE__, #condition); \
      std::_Exit(3);                                                                      \
    }                                                                                     \
  } while (false)

inline std::map<std::string, void (*)()>& All() {
  static std::map<std::string, void (*)()> all;
  return all;
}
struct Registration {
  Registration(const char* name, void (*run)()) { All().emplace(name, run); }
};
#define SCENARIO(name)                                                  \
  static void name();                                                   \
  static const scenario::Registration registration_##name(#name, name); \
  static void name()

// The budget in force; 0 where the hook is absent.
inline uint64_t Budget() {
  const char* text = std::getenv("SLUICE_GPU_MEMORY");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 0;
}

// A context that is current.
inline CUresult CreateContext(CUcontext* context, CUdevice gpu) {
#if CUDA_VERSION >= 13000
  return cuCtxCreate(context, nullptr, 0, gpu);
#else
  return cuCtxCreate(context, 0, gpu);
#endif
}

class Card : public simgpu_test::Card {
 public:
  explicit Card(int device = 0) : simgpu_test::Card(device) {
    OK(cuModuleLoadData(&named, "simgpu-module 1\nkernel named params 8,8,8,8,8,8,8,8 ns 20000\n"));
    OK(cuModuleGetFunction(&eight, named, "named"));
  }
  // A launch that touches exactly these ranges, and whose parameters name them (eight at most).
  CUresult TryNamed(CUstream s, const std::vector<simgpu_touch>& touches, uint64_t ns = 20000, bool ptsz = false) {
    simgpu_next_launch(touches.data(), touches.size(), ns, 0);
    std::array<uint64_t, 8> words{};
    std::array<void*, 8> params{};
    for (size_t i = 0; i < 8; ++i) {
      if (i < touches.size()) words.at(i) = touches[i].address;
      params.at(i) = &words.at(i);
    }
    const auto launch = ptsz ? cuLaunchKernel_ptsz : cuLaunchKernel;
    return launch(eight, 1, 1, 1, 1, 1, 1, 0, s, params.data(), nullptr);
  }
  void Named(CUstream s, const std::vector<simgpu_touch>& touches, uint64_t ns = 20000) {
    OK(TryNamed(s, touches, ns));
  }
  CUmodule named = nullptr;
  CUfunction eight = nullptr;
};

inline CUdeviceptr Alloc(uint64_t bytes) {
  CUdeviceptr p = 0;
  OK(cuMemAlloc(&p, bytes));
  return p;
}

inline void Print(const char* what, uint64_t value) { std::printf("%s %" PRIx64 "\n", what, value); }
inline void PrintDigest(const char* what, CUdeviceptr p, uint64_t bytes) {
  OK(cuCtxSynchronize());
  Print(what, simgpu_digest(p, bytes));
}

}  // namespace scenario

#endif  // SLUICE_TEST_ENGINE_SCENARIO_H_
