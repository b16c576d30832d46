// Which threads run a stream's deferred work? Does a slow host function delay prefetches and host functions of other
// streams? How fast does a host function evict by requests (evict.cu) with a pool of threads, alone and beside deferred
// fetches? At most 4 GiB of managed memory, and at most a quarter of the free memory.
//   nvcc -O2 -std=c++17 -arch=native -cudart shared experiments/probes/host_functions.cu -o host_functions -lcuda
#include "requests.h"

namespace {

constexpr size_t kBlock = 64 * kMiB, kBlocks = 32;

struct Job {
  Pool* pool;
  std::vector<Piece> pieces;
};
void Run(void* job) { static_cast<Job*>(job)->pool->Run(static_cast<Job*>(job)->pieces); }
void Sleep(void*) { usleep(30000); }
void Stamp(void* at) { *static_cast<double*>(at) = Now(); }
__global__ void Spin(uint64_t ns) {
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  while (now - begin < ns);
}
double Until(CUstream s) {
  while (cuStreamQuery(s) == CUDA_ERROR_NOT_READY) {
  }
  return Now();
}

}  // namespace

int main() {
  cudaFree(nullptr);
  Guard(2 * kBlocks * kBlock);
  std::vector<CUdeviceptr> p(kBlocks), q(kBlocks);
  for (auto* list : {&p, &q})
    for (CUdeviceptr& block : *list) {
      OK(cuMemAllocManaged(&block, kBlock, CU_MEM_ATTACH_GLOBAL));
      OK(cuMemPrefetchAsync_v2(block, kBlock, Card(), 0, nullptr));
      OK(cuMemsetD8Async(block, 7, kBlock, nullptr));
      OK(cuMemPrefetchAsync_v2(block, kBlock, Host(), 0, nullptr));
    }
  OK(cuCtxSynchronize());
  FindSpace(p[0]);
  const CUstream app = Make(), a = Make(), b = Make(), c = Make(), d = Make();
  CUevent e;
  OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  for (int round = 0; round < 2; ++round) {
    // 1: a host function of 30 ms on a, behind a kernel of 2 ms. Beside it a deferred fetch on b, a host function on c,
    // and a deferred eviction on d.
    double at_c = 0;
    for (size_t i = 0; i < 4; ++i) OK(cuMemPrefetchAsync_v2(q[i], kBlock, Card(), 0, nullptr));
    OK(cuCtxSynchronize());
    double begin = Now();
    Spin<<<1, 1, 0, app>>>(2000000);
    OK(cuEventRecord(e, app));
    for (CUstream s : {a, b, c, d}) OK(cuStreamWaitEvent(s, e, 0));
    OK(cuLaunchHostFunc(a, Sleep, nullptr));
    OK(cuMemPrefetchAsync_v2(p[0], kBlock, Card(), 0, b));
    OK(cuLaunchHostFunc(c, Stamp, &at_c));
    OK(cuMemPrefetchAsync_v2(q[0], kBlock, Host(), 0, d));
    const double b_over = Until(b) - begin, d_over = Until(d) - begin, a_over = Until(a) - begin;
    std::printf(
        "host function of 30 ms over after %.1f; deferred fetch %.1f, host function of another stream %.1f, "
        "deferred eviction %.1f ms\n",
        a_over, b_over, at_c - begin, d_over);
    OK(cuCtxSynchronize());
    // 2: deferred evictions and fetches by the driver's calls.
    for (int both = 0; both < 2; ++both) {
      for (CUdeviceptr block : p) OK(cuMemPrefetchAsync_v2(block, kBlock, Card(), 0, nullptr));
      for (CUdeviceptr block : q) OK(cuMemPrefetchAsync_v2(block, kBlock, Host(), 0, nullptr));
      OK(cuCtxSynchronize());
      begin = Now();
      Spin<<<1, 1, 0, app>>>(1000000);
      OK(cuEventRecord(e, app));
      for (CUstream s : {a, b}) OK(cuStreamWaitEvent(s, e, 0));
      for (size_t i = 0; i < 16; ++i) {
        OK(cuMemPrefetchAsync_v2(p[i], kBlock, Host(), 0, a));
        if (both) OK(cuMemPrefetchAsync_v2(q[i], kBlock, Card(), 0, b));
      }
      double a_ms = 0, b_ms = 0;
      while (!a_ms || !b_ms) {
        if (!b_ms && cuStreamQuery(b) == CUDA_SUCCESS) b_ms = Now() - begin;
        if (!a_ms && cuStreamQuery(a) == CUDA_SUCCESS) a_ms = Now() - begin;
      }
      std::printf("1 GiB evicted by deferred calls%s: %.1f ms, fetched %.1f ms\n", both ? " beside 1 GiB fetched" : "",
                  a_ms - 1, b_ms - 1);
    }
    // 3: evictions by host functions.
    for (int others : {0, 1, 3, 5}) {
      for (int blocks_a_job : {1, 4}) {
        for (int both = 0; both < 2; ++both) {
          Pool pool(others);
          for (CUdeviceptr block : p) OK(cuMemPrefetchAsync_v2(block, kBlock, Card(), 0, nullptr));
          for (CUdeviceptr block : q) OK(cuMemPrefetchAsync_v2(block, kBlock, Host(), 0, nullptr));
          OK(cuCtxSynchronize());
          std::vector<Job> jobs;
          for (size_t i = 0; i < 16; i += blocks_a_job) {
            Job job{&pool, {}};
            for (size_t at = 0; at < kBlock; at += 8 * kMiB)
              for (int k = 0; k < blocks_a_job; ++k) job.pieces.push_back({p[i + k] + at, 8 * kMiB});
            jobs.push_back(job);
          }
          begin = Now();
          Spin<<<1, 1, 0, app>>>(1000000);
          OK(cuEventRecord(e, app));
          for (CUstream s : {a, b}) OK(cuStreamWaitEvent(s, e, 0));
          for (Job& job : jobs) OK(cuLaunchHostFunc(a, Run, &job));
          for (size_t i = 0; both && i < 16; ++i) OK(cuMemPrefetchAsync_v2(q[i], kBlock, Card(), 0, b));
          double a_ms = 0, b_ms = 0;
          while (!a_ms || !b_ms) {
            if (!b_ms && cuStreamQuery(b) == CUDA_SUCCESS) b_ms = Now() - begin;
            if (!a_ms && cuStreamQuery(a) == CUDA_SUCCESS) a_ms = Now() - begin;
          }
          std::printf("1 GiB evicted by host functions of %d x 64 MiB, %d threads%s: %.1f ms, fetched %.1f ms\n",
                      blocks_a_job, others + 1, both ? " beside 1 GiB fetched" : "", a_ms - 1, b_ms - 1);
        }
      }
    }
  }
  OK(cuCtxSynchronize());
  return 0;
}
