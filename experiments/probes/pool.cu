// A program that allocates once, 3 times a budget, and cuts its blocks out of that allocation. Each round runs over all
// blocks with a kernel that gets a pointer into the allocation and a length. Run it alone and under sluice:
//   nvcc -O2 -std=c++17 -arch=native -cudart shared experiments/probes/pool.cu -o pool
//   timeout -k 2 60 build/bin/sluice run --gpu-memory 1Gi [--prefetch off] -- ./pool 3072
// Prints milliseconds of each round of 64 MiB blocks, and whether the sum is right.
#include <cuda_runtime.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#define CHECK(call)                                                                         \
  do {                                                                                      \
    const cudaError_t e = (call);                                                           \
    if (e != cudaSuccess) {                                                                 \
      std::fprintf(stderr, "pool.cu:%d: %s: %s\n", __LINE__, #call, cudaGetErrorString(e)); \
      std::exit(1);                                                                         \
    }                                                                                       \
  } while (0)

__global__ void Fill(uint4* p, size_t n) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
    p[i] = make_uint4(1, 2, 3, 4);
}
__global__ void Add(uint4* p, size_t n) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
    uint4 v = p[i];
    v.x += 1;
    p[i] = v;
  }
}
__global__ void Wrong(const uint4* p, size_t n, unsigned x, unsigned* wrong) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x)
    if (p[i].x != x || p[i].w != 4) atomicAdd(wrong, 1);
}

int main(int argc, char** argv) {
  constexpr size_t kBlock = size_t{64} << 20, kRounds = 24;
  const size_t blocks = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 3072) / 64;
  char* all = nullptr;
  unsigned *wrong = nullptr, found = 0;
  CHECK(cudaMalloc(&all, blocks * kBlock));
  CHECK(cudaMalloc(&wrong, 4));
  CHECK(cudaMemset(wrong, 0, 4));
  const auto block = [&](size_t i) { return reinterpret_cast<uint4*>(all + i * kBlock); };
  for (size_t i = 0; i < blocks; ++i) Fill<<<512, 256>>>(block(i), kBlock / 16);
  CHECK(cudaDeviceSynchronize());
  const auto begin = std::chrono::steady_clock::now();
  size_t rounds = 0;
  for (; rounds < kRounds && std::chrono::steady_clock::now() - begin < std::chrono::seconds(20); ++rounds) {
    const auto from = std::chrono::steady_clock::now();
    for (size_t i = 0; i < blocks; ++i) Add<<<1024, 256>>>(block(i), kBlock / 16);
    CHECK(cudaDeviceSynchronize());
    std::printf("%.1f ", std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - from).count());
    std::fflush(stdout);
  }
  for (size_t i = 0; i < blocks; ++i)
    Wrong<<<256, 256>>>(block(i), kBlock / 16, static_cast<unsigned>(1 + rounds), wrong);
  CHECK(cudaMemcpy(&found, wrong, 4, cudaMemcpyDeviceToHost));
  std::printf("ms a round; %u words are wrong\n", found);
  return found != 0;
}
