// A card under test: context, streams, launches with given touches. Every call is checked.
#ifndef SIMGPU_TESTS_CARD_H_
#define SIMGPU_TESTS_CARD_H_

#include <cuda.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "../simgpu.h"

namespace simgpu_test {

constexpr uint64_t kMiB = 1 << 20, kGiB = 1 << 30;

inline void Check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  cuGetErrorName(result, &name);
  std::fprintf(stderr, "%s gave %s\n", what, name == nullptr ? "?" : name);
  std::exit(70);
}
#define OK(call) simgpu_test::Check((call), #call)

class Card {
 public:
  explicit Card(int device = 0) : device_(device) {
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    OK(cuModuleLoadData(&module,
                        "simgpu-module 1\n"
                        "kernel empty params 8 ns 1000\n"
                        "kernel work params 8,8 ns 20000\n"
                        "read p0 0 p1\n"
                        "update p0 0 64\n"));
    OK(cuModuleGetFunction(&empty, module, "empty"));
    OK(cuModuleGetFunction(&work, module, "work"));
  }
  ~Card() {
    if (module != nullptr) cuModuleUnload(module);
    cuDevicePrimaryCtxRelease(device_);
  }
  Card(const Card&) = delete;
  Card& operator=(const Card&) = delete;

  // Everything in the primary context ends, the card's module too.
  void Reset() {
    OK(cuDevicePrimaryCtxReset(device_));
    module = nullptr;
  }
  CUstream Stream() {
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
  }
  CUdeviceptr Managed(uint64_t bytes) {
    CUdeviceptr p;
    OK(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL));
    return p;
  }
  CUdeviceptr Unmanaged(uint64_t bytes) {
    CUdeviceptr p;
    OK(cuMemAlloc(&p, bytes));
    return p;
  }
  // One launch that touches exactly these ranges.
  void Launch(CUstream s, const std::vector<simgpu_touch>& touches, uint64_t ns = 20000, uint32_t flags = 0) {
    simgpu_next_launch(touches.data(), touches.size(), ns, flags);
    uint64_t nothing = 0;
    void* params[] = {&nothing};
    OK(cuLaunchKernel(empty, 1, 1, 1, 1, 1, 1, 0, s, params, nullptr));
  }
  struct simgpu_stats Stats(int device = 0) {
    struct simgpu_stats s{};
    s.size = sizeof s;
    if (simgpu_stats(device, &s) != 0) std::exit(71);
    return s;
  }
  void Prefetch(CUstream s, CUdeviceptr p, uint64_t n, bool to_card) {
    CUmemLocation l{};
    l.type = to_card ? CU_MEM_LOCATION_TYPE_DEVICE : CU_MEM_LOCATION_TYPE_HOST;
    OK(cuMemPrefetchAsync(p, n, l, 0, s));
  }
  void Discard(CUstream s, CUdeviceptr p, uint64_t n) {
    size_t size = n;
    OK(cuMemDiscardBatchAsync(&p, &size, 1, 0, s));
  }
  // Virtual nanoseconds until all work is done.
  template <class F>
  uint64_t Time(F f) {
    OK(cuCtxSynchronize());
    const uint64_t from = simgpu_now_ns();
    f();
    OK(cuCtxSynchronize());
    return simgpu_now_ns() - from;
  }
  template <class F>
  uint64_t HostTime(F f) {
    const uint64_t from = simgpu_now_ns();
    f();
    return simgpu_now_ns() - from;
  }

  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction empty = nullptr, work = nullptr;

 private:
  int device_;
};

inline simgpu_touch Read(CUdeviceptr p, uint64_t n, uint32_t object = 0) { return {p, n, SIMGPU_READ, object}; }
inline simgpu_touch Write(CUdeviceptr p, uint64_t n, uint32_t object = 0) { return {p, n, SIMGPU_WRITE, object}; }
inline simgpu_touch Update(CUdeviceptr p, uint64_t n, uint32_t object = 0) {
  return {p, n, SIMGPU_READ | SIMGPU_WRITE, object};
}

}  // namespace simgpu_test

#endif  // SIMGPU_TESTS_CARD_H_
