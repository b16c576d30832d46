// The start of lifetimes.cu: checks, allocations, a delay on a stream, the RESULT line.
#ifndef SLUICE_TEST_GPU_WORKLOADS_LIFETIMES_H_
#define SLUICE_TEST_GPU_WORKLOADS_LIFETIMES_H_

#include <cuda.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#define OK(call)                                                                            \
  do {                                                                                      \
    const CUresult result_ = (call);                                                        \
    if (result_ != CUDA_SUCCESS) {                                                          \
      std::fprintf(stderr, "%s:%d: %s gave %d\n", __FILE__, __LINE__, #call, (int)result_); \
      std::exit(3);                                                                         \
    }                                                                                       \
  } while (0)

inline CUcontext g_context;  // of all files

namespace {

constexpr size_t kMiB = 1 << 20;

// Spins for `ns`, so that the work behind it is queued before it runs.
__global__ void Spin(unsigned long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}

CUdeviceptr Alloc(size_t bytes) {
  CUdeviceptr p = 0;
  OK(cuMemAlloc(&p, bytes));
  return p;
}
CUstream NewStream() {
  CUstream s = nullptr;
  OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  return s;
}
void* Pinned(size_t bytes) {
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_DEVICEMAP));
  std::memset(host, 0, bytes);
  return host;
}
double Ms() {
  using namespace std::chrono;
  return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
}
void Delay(CUstream s, double ms = 60) { Spin<<<1, 1, 0, (cudaStream_t)s>>>((unsigned long long)(ms * 1e6)); }

size_t Wrong(const void* host, size_t bytes, unsigned char expected) {
  size_t wrong = 0;
  for (size_t i = 0; i < bytes; ++i) wrong += static_cast<const unsigned char*>(host)[i] != expected;
  return wrong;
}
int Result(size_t wrong, double held_mib = 0, double ms = 0) {
  std::printf("RESULT {\"wrong\": %zu, \"held_mib\": %.0f, \"ms\": %.2f}\n", wrong, held_mib, ms);
  return wrong != 0;
}

}  // namespace

#endif  // SLUICE_TEST_GPU_WORKLOADS_LIFETIMES_H_
