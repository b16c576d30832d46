// The cost of read-mostly advice: a GiB of managed memory is advised, duplicated on the card, read, dropped, withdrawn
// and written. Each line prints a step and its milliseconds. A write to a duplicate (43 s a GiB) covers 16 MiB only.
//   nvcc -O2 -arch=native experiments/probes/read_mostly.cu -o probe && timeout -k 2 60 ./probe
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                                \
  do {                                                                                             \
    const cudaError_t e = (call);                                                                  \
    if (e != cudaSuccess) {                                                                        \
      std::fprintf(stderr, "read_mostly.cu:%d: %s: %s\n", __LINE__, #call, cudaGetErrorString(e)); \
      std::exit(1);                                                                                \
    }                                                                                              \
  } while (0)

__global__ void Read(const uint4* p, size_t n, unsigned* out) {
  unsigned sum = 0;
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
    sum += p[i].x;
  if (sum == 0x12345678u) *out = sum;
}
__global__ void Write(uint4* p, size_t n) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
    p[i].y += 1;
}

namespace {

constexpr size_t kBytes = size_t{1} << 30, kChunk = size_t{2} << 20;
char* g_p = nullptr;
unsigned* g_out = nullptr;

cudaMemLocation At(bool card) { return {card ? cudaMemLocationTypeDevice : cudaMemLocationTypeHost, 0}; }

template <typename F>
void Timed(const char* what, F f) {
  CHECK(cudaDeviceSynchronize());
  const auto begin = std::chrono::steady_clock::now();
  f();
  CHECK(cudaDeviceSynchronize());
  std::printf("%s: %.3f ms\n", what,
              std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  std::fflush(stdout);
}

void Move(bool card) { CHECK(cudaMemPrefetchAsync(g_p, kBytes, At(card), 0, nullptr)); }
void AdviseAll(cudaMemoryAdvise advice, size_t piece) {
  for (size_t at = 0; at < kBytes; at += piece) CHECK(cudaMemAdvise(g_p + at, piece, advice, At(true)));
}
void ReadAll() { Read<<<1024, 256>>>(reinterpret_cast<uint4*>(g_p), kBytes / 16, g_out); }
void WriteSome(size_t bytes) { Write<<<1024, 256>>>(reinterpret_cast<uint4*>(g_p), bytes / 16); }

}  // namespace

int main() {
  size_t free_bytes = 0, total = 0;
  CHECK(cudaMemGetInfo(&free_bytes, &total));
  if (free_bytes / 4 < kBytes) {
    std::fprintf(stderr, "read_mostly: a GiB is more than a quarter of the free memory\n");
    return 1;
  }
  CHECK(cudaMallocManaged(&g_p, kBytes));
  CHECK(cudaMalloc(&g_out, 4));
  Move(true);
  std::vector<char> host(kBytes, 1);
  CHECK(cudaMemcpy(g_p, host.data(), kBytes, cudaMemcpyHostToDevice));
  Timed("to the host, first time", [] { Move(false); });
  Timed("fetch", [] { Move(true); });
  Timed("to the host again", [] { Move(false); });
  Timed("advise, in host memory, one call", [] { AdviseAll(cudaMemAdviseSetReadMostly, kBytes); });
  Timed("fetch of a duplicate", [] { Move(true); });
  Timed("read", ReadAll);
  Timed("drop the duplicate (prefetch to the host)", [] { Move(false); });
  Timed("fetch again", [] { Move(true); });
  Timed("drop in calls of 2 MiB", [] {
    for (size_t at = 0; at < kBytes; at += kChunk) CHECK(cudaMemPrefetchAsync(g_p + at, kChunk, At(false), 0, nullptr));
  });
  Timed("withdraw in host memory, one call", [] { AdviseAll(cudaMemAdviseUnsetReadMostly, kBytes); });
  Timed("advise in host memory, calls of 2 MiB", [] { AdviseAll(cudaMemAdviseSetReadMostly, kChunk); });
  Timed("fetch", [] { Move(true); });
  Timed("withdraw while duplicated, one call", [] { AdviseAll(cudaMemAdviseUnsetReadMostly, kBytes); });
  Timed("read after that (which copy remained?)", ReadAll);
  Timed("fetch after that", [] { Move(true); });
  Timed("write after that", [] { WriteSome(kBytes); });
  Timed("advise on the card, one call", [] { AdviseAll(cudaMemAdviseSetReadMostly, kBytes); });
  Timed("to the host (first duplicate there)", [] { Move(false); });
  Timed("fetch", [] { Move(true); });
  Timed("withdraw while duplicated, calls of 2 MiB", [] { AdviseAll(cudaMemAdviseUnsetReadMostly, kChunk); });
  Timed("write 256 MiB after withdrawing", [] { WriteSome(kBytes / 4); });
  Timed("to the host", [] { Move(false); });
  Timed("advise in host memory", [] { AdviseAll(cudaMemAdviseSetReadMostly, kBytes); });
  Timed("fetch", [] { Move(true); });
  // If the card is the preferred location, does its copy remain after the withdrawal, so that no access faults?
  Timed("prefer the card while duplicated, calls of 2 MiB",
        [] { AdviseAll(cudaMemAdviseSetPreferredLocation, kChunk); });
  Timed("withdraw while duplicated and preferred, calls of 2 MiB",
        [] { AdviseAll(cudaMemAdviseUnsetReadMostly, kChunk); });
  Timed("prefer nothing, calls of 2 MiB", [] { AdviseAll(cudaMemAdviseUnsetPreferredLocation, kChunk); });
  Timed("read after that (which copy remained?)", ReadAll);
  Timed("write after that", [] { WriteSome(kBytes); });
  Timed("to the host", [] { Move(false); });
  Timed("advise in host memory", [] { AdviseAll(cudaMemAdviseSetReadMostly, kBytes); });
  Timed("fetch", [] { Move(true); });
  Timed("write 16 MiB of a duplicate", [] { WriteSome(size_t{16} << 20); });
  CHECK(cudaFree(g_p));
  return 0;
}
