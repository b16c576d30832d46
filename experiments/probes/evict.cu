// What bounds the rate of evictions of managed memory? The same bytes are evicted by the driver's call and by the
// request behind it (UVM_MIGRATE, number 51 of /dev/nvidia-uvm, as NVIDIA's open kernel modules have it). One thread or
// several do it, alone, beside fetches, and from a host function in a stream's order. At most 4 GiB of managed memory,
// and at most a quarter of the free memory.
//   nvcc -O2 -std=c++17 -arch=native -cudart shared experiments/probes/evict.cu -o evict -lcuda
#include <algorithm>
#include <atomic>
#include <string>

#include "requests.h"

namespace {

constexpr size_t kBytes = 2048 * kMiB;

// Moves [base, base + bytes) in pieces by requests of several threads. Returns milliseconds.
double RequestAll(uintptr_t base, size_t piece, int threads, const unsigned char* to, size_t bytes = kBytes) {
  std::atomic<size_t> next{0};
  std::atomic<int> failed{0};
  const double begin = Now();
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([&] {
      for (size_t at; (at = next.fetch_add(piece)) < bytes;)
        if (!Request(base + at, std::min(piece, bytes - at), to)) ++failed;
    });
  for (auto& t : pool) t.join();
  if (failed) std::printf("(%d failed) ", failed.load());
  return Now() - begin;
}

__global__ void Fill(uint64_t* p, size_t n, uint64_t seed) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += size_t{gridDim.x} * blockDim.x)
    p[i] = i * 0x9e3779b97f4a7c15ull + seed;
}
__global__ void Differs(const uint64_t* p, size_t n, uint64_t seed, unsigned long long* wrong) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < n; i += size_t{gridDim.x} * blockDim.x)
    if (p[i] != i * 0x9e3779b97f4a7c15ull + seed) atomicAdd(wrong, 1ull);
}

void Fetch(uintptr_t p, size_t bytes, CUstream stream = nullptr) {
  for (size_t at = 0; at < bytes; at += 64 * kMiB) OK(cuMemPrefetchAsync_v2(p + at, 64 * kMiB, Card(), 0, stream));
  OK(cuStreamSynchronize(stream));
}
double Evict(uintptr_t p, size_t piece, int threads, CUmemLocation to, size_t bytes = kBytes) {
  std::vector<CUstream> streams(threads);
  for (auto& s : streams) OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
  CUcontext context;
  OK(cuCtxGetCurrent(&context));
  std::atomic<size_t> next{0};
  const double begin = Now();
  std::vector<std::thread> pool;
  for (int t = 0; t < threads; ++t)
    pool.emplace_back([&, t] {
      OK(cuCtxSetCurrent(context));
      for (size_t at; (at = next.fetch_add(piece)) < bytes;) {
        const CUresult r = cuMemPrefetchAsync_v2(p + at, piece, to, 0, streams[t]);
        if (r != CUDA_SUCCESS) {
          std::printf("(refused: %d) ", r);
          return;
        }
      }
      OK(cuStreamSynchronize(streams[t]));
    });
  for (auto& t : pool) t.join();
  const double ms = Now() - begin;
  for (auto& s : streams) OK(cuStreamDestroy(s));
  return ms;
}
void LogRate(const char* what, double ms, size_t bytes = kBytes) {
  std::printf("%-64s %8.1f ms %6.1f GB/s\n", what, ms, bytes / ms / 1e6);
  std::fflush(stdout);
}

struct Job {
  uintptr_t base;
  size_t bytes;
  int threads;
};
void InOrder(void* job) {
  const Job* j = static_cast<Job*>(job);
  RequestAll(j->base, 16 * kMiB, j->threads, kHost, j->bytes);
}
void Nothing(void* at) { *static_cast<double*>(at) = Now(); }

}  // namespace

int main() {
  cudaFree(nullptr);
  Guard(2 * kBytes);
  CUdeviceptr p, q;
  OK(cuMemAllocManaged(&p, kBytes, CU_MEM_ATTACH_GLOBAL));
  OK(cuMemAllocManaged(&q, kBytes, CU_MEM_ATTACH_GLOBAL));
  const size_t n = kBytes / 8;
  auto fill = [&](CUdeviceptr at, uint64_t seed) {
    Fetch(at, kBytes);
    Fill<<<1024, 256>>>(reinterpret_cast<uint64_t*>(at), n, seed);
    cudaDeviceSynchronize();
  };
  unsigned long long* wrong;
  cudaMalloc(&wrong, 8);
  auto check = [&](CUdeviceptr at, uint64_t seed) {
    cudaMemset(wrong, 0, 8);
    Differs<<<1024, 256>>>(reinterpret_cast<uint64_t*>(at), n, seed, wrong);
    unsigned long long count;
    cudaMemcpy(&count, wrong, 8, cudaMemcpyDeviceToHost);
    if (count) std::printf("WRONG VALUES: %llu\n", count);
  };
  fill(p, 1);
  fill(q, 2);
  LogRate("host pages made: first eviction", Evict(p, 64 * kMiB, 1, Host()));
  Evict(q, 64 * kMiB, 1, Host());

  FindSpace(p);

  char what[128];
  for (int round = 0; round < 2; ++round) {
    for (int threads : {1, 4}) {
      fill(p, 1);
      std::snprintf(what, sizeof what, "driver's call, 64 MiB, %d thread(s)", threads);
      LogRate(what, Evict(p, 64 * kMiB, threads, Host()));
    }
    for (size_t piece : {64, 16, 4, 2})
      for (int threads : {1, 2, 4, 8, 14}) {
        if (piece < 16 && threads != 1 && threads != 4) continue;
        fill(p, 1);
        std::snprintf(what, sizeof what, "request itself, %zu MiB, %d thread(s)", piece, threads);
        LogRate(what, RequestAll(p, piece * kMiB, threads, kHost));
      }
    check(p, 1);
    // Each piece an allocation of its own.
    {
      std::vector<CUdeviceptr> pieces(kBytes / (64 * kMiB));
      for (CUdeviceptr& piece : pieces) OK(cuMemAllocManaged(&piece, 64 * kMiB, CU_MEM_ATTACH_GLOBAL));
      for (int threads : {0, 1, 2, 3, 4, 6, 8, 14}) {
        for (CUdeviceptr piece : pieces) {
          OK(cuMemPrefetchAsync_v2(piece, 64 * kMiB, Card(), 0, nullptr));
          Fill<<<1024, 256>>>(reinterpret_cast<uint64_t*>(piece), 64 * kMiB / 8, 3);
        }
        OK(cuCtxSynchronize());
        std::atomic<size_t> next{0};
        const double begin = Now();
        if (threads == 0) {
          for (CUdeviceptr piece : pieces) OK(cuMemPrefetchAsync_v2(piece, 64 * kMiB, Host(), 0, nullptr));
          OK(cuCtxSynchronize());
        }
        std::vector<std::thread> pool;
        for (int t = 0; t < threads; ++t)
          pool.emplace_back([&] {
            for (size_t i; (i = next++) < pieces.size();) Check(Request(pieces[i], 64 * kMiB, kHost), "request");
          });
        for (auto& t : pool) t.join();
        std::snprintf(what, sizeof what, "allocations of 64 MiB, %s %d",
                      threads ? "requests by threads:" : "driver's call", threads);
        LogRate(what, Now() - begin);
      }
      for (CUdeviceptr piece : pieces) OK(cuMemFree(piece));
    }
    for (int threads : {1, 2, 4}) {
      Evict(p, 64 * kMiB, 1, Host());
      std::snprintf(what, sizeof what, "request itself to the card, 64 MiB, %d thread(s)", threads);
      LogRate(what, RequestAll(p, 64 * kMiB, threads, card));
    }
    RequestAll(p, 64 * kMiB, 1, kHost);
    LogRate("request to the host for host-resident memory, 64 MiB, 1 thread", RequestAll(p, 64 * kMiB, 1, kHost));
    fill(p, 1);
    LogRate("driver's call, HOST_NUMA 0, 64 MiB, 1 thread",
            Evict(p, 64 * kMiB, 1, Host(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0)));
    fill(p, 1);
    LogRate("driver's call, HOST_NUMA_CURRENT, 64 MiB, 1 thread",
            Evict(p, 64 * kMiB, 1, Host(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)));
    // Both directions at once.
    for (int threads : {0, 1, 2, 4, 8}) {
      fill(p, 1);
      Evict(q, 64 * kMiB, 1, Host());
      const double begin = Now();
      double in_ms = 0, out_ms = 0;
      CUcontext context;
      OK(cuCtxGetCurrent(&context));
      CUstream in;
      OK(cuStreamCreate(&in, CU_STREAM_NON_BLOCKING));
      std::thread fetch([&] {
        OK(cuCtxSetCurrent(context));
        Fetch(q, kBytes, in);
        in_ms = Now() - begin;
      });
      if (threads)
        RequestAll(p, 16 * kMiB, threads, kHost);
      else
        Evict(p, 64 * kMiB, 1, Host());
      out_ms = Now() - begin;
      fetch.join();
      std::snprintf(what, sizeof what, "both directions, out by %s %d: out %.1f in %.1f ms",
                    threads ? "requests" : "the driver's call", threads, out_ms, in_ms);
      LogRate(what, std::max(out_ms, in_ms), 2 * kBytes);
      OK(cuStreamDestroy(in));
    }
    check(p, 1);
    check(q, 2);
    // In a stream's order.
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int threads : {1, 4, 8}) {
      fill(p, 1);
      const double begin = Now();
      std::vector<Job> jobs;
      for (size_t at = 0; at < kBytes; at += 64 * kMiB) jobs.push_back({p + at, 64 * kMiB, threads});
      for (Job& job : jobs) OK(cuLaunchHostFunc(stream, InOrder, &job));
      const double queued = Now() - begin;
      OK(cuStreamSynchronize(stream));
      std::snprintf(what, sizeof what, "host functions of 64 MiB, %d thread(s) each (queued in %.2f ms)", threads,
                    queued);
      LogRate(what, Now() - begin);
    }
    std::vector<double> at(64);
    const double begin = Now();
    for (double& a : at) OK(cuLaunchHostFunc(stream, Nothing, &a));
    OK(cuStreamSynchronize(stream));
    std::printf("64 empty host functions: %.3f ms, first %.3f ms after the call\n", Now() - begin, at[0] - begin);
    OK(cuStreamDestroy(stream));
    // With the card mapped (accessed-by), as remotely accessed memory is evicted.
    fill(p, 1);
    OK(cuMemAdvise_v2(p, kBytes, CU_MEM_ADVISE_SET_ACCESSED_BY, Card()));
    LogRate("accessed-by set: driver's call, 64 MiB, 1 thread", Evict(p, 64 * kMiB, 1, Host()));
    fill(p, 1);
    LogRate("accessed-by set: request, 16 MiB, 4 threads", RequestAll(p, 16 * kMiB, 4, kHost));
    fill(p, 1);
    OK(cuMemAdvise_v2(p, kBytes, CU_MEM_ADVISE_UNSET_ACCESSED_BY, Card()));
    // The time without bytes to copy.
    {
      CUdeviceptr at = p;
      size_t size = kBytes;
      Fetch(p, kBytes);
      OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
      OK(cuMemDiscardBatchAsync(&at, &size, 1, 0, stream));
      OK(cuStreamSynchronize(stream));
      LogRate("discarded before: request, 64 MiB, 1 thread", RequestAll(p, 64 * kMiB, 1, kHost));
      Fetch(p, kBytes);
      OK(cuMemDiscardBatchAsync(&at, &size, 1, 0, stream));
      OK(cuStreamSynchronize(stream));
      LogRate("discarded before: request, 16 MiB, 4 threads", RequestAll(p, 16 * kMiB, 4, kHost));
      OK(cuStreamDestroy(stream));
    }
  }
  cudaDeviceSynchronize();
  std::printf("%s\n", cudaGetErrorString(cudaGetLastError()));
  return 0;
}
