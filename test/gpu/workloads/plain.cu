// A CUDA C program (runtime API, static or shared): buffers that together exceed its budget when it is hooked, kernels
// with interior pointers, copies in both directions, all values checked on the host.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                          \
  do {                                                                                       \
    const cudaError_t e = (call);                                                            \
    if (e != cudaSuccess) {                                                                  \
      std::fprintf(stderr, "plain.cu:%d: %s: %s\n", __LINE__, #call, cudaGetErrorString(e)); \
      std::exit(1);                                                                          \
    }                                                                                        \
  } while (0)

struct Pair {
  const unsigned* from;
  unsigned* to;
};

__global__ void Mix(Pair p, size_t n, unsigned factor) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) {
    p.to[i] = p.to[i] * factor + p.from[i];
  }
}

int main() {
  const size_t n = size_t(64) << 20;  // 256 MiB each
  const int count = 10, rounds = 3;
  std::vector<unsigned*> parts(count);
  std::vector<std::vector<unsigned>> expected(count, std::vector<unsigned>(1024));
  std::vector<unsigned> host(n);
  cudaStream_t streams[2];
  for (auto& s : streams) CHECK(cudaStreamCreate(&s));
  for (int b = 0; b < count; ++b) {
    CHECK(cudaMalloc(&parts[b], n * sizeof(unsigned)));
    for (size_t i = 0; i < n; ++i) host[i] = unsigned(i * 2654435761u) + unsigned(b);
    for (size_t i = 0; i < 1024; ++i) expected[b][i] = host[i * (n / 1024)];
    CHECK(cudaMemcpy(parts[b], host.data(), n * sizeof(unsigned), cudaMemcpyHostToDevice));
  }
  for (int r = 0; r < rounds; ++r) {
    for (int b = 0; b < count; ++b) {
      const int other = (b + 1) % count;
      // Interior pointers in a struct passed by value: two halves in two streams.
      for (int h = 0; h < 2; ++h) {
        Mix<<<1024, 256, 0, streams[h]>>>(Pair{parts[other] + h * n / 2, parts[b] + h * n / 2}, n / 2, unsigned(r + 3));
      }
      CHECK(cudaGetLastError());
      for (size_t i = 0; i < 1024; ++i) expected[b][i] = expected[b][i] * unsigned(r + 3) + expected[other][i];
    }
  }
  CHECK(cudaDeviceSynchronize());
  unsigned long long sum = 0;
  for (int b = 0; b < count; ++b) {
    CHECK(cudaMemcpy(host.data(), parts[b], n * sizeof(unsigned), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < 1024; ++i) {
      if (host[i * (n / 1024)] != expected[b][i]) {
        std::fprintf(stderr, "part %d word %zu is %u, not %u\n", b, i * (n / 1024), host[i * (n / 1024)],
                     expected[b][i]);
        return 1;
      }
      sum += expected[b][i];
    }
    CHECK(cudaFree(parts[b]));
  }
  std::printf("RESULT {\"values\": [%llu], \"live_bytes\": %llu, \"step_ms\": []}\n", sum,
              static_cast<unsigned long long>(count * n * sizeof(unsigned)));
  return 0;
}
