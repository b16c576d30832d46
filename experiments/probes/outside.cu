// The card's free memory, by NVML, after calls that take memory without an allocation call: limits of the context, and
// graphs whose nodes allocate. The engine asks the driver for a graph's memory right after its launch
// (CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), so the probe also prints whether that value has risen by then.
//   nvcc -O2 -std=c++17 -arch=native -cudart shared experiments/probes/outside.cu -o outside -lcuda -lnvidia-ml
#include <cuda.h>
#include <nvml.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

constexpr double kMiB = 1 << 20;
nvmlDevice_t card;
uint64_t last = 0;

void Check(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "%s failed\n", what);
  std::exit(1);
}
#define OK(call) Check((call) == CUDA_SUCCESS, #call)

uint64_t GraphMemory(CUgraphMem_attribute attribute) {
  uint64_t bytes = 0;
  OK(cuDeviceGetGraphMemAttribute(0, attribute, &bytes));
  return bytes;
}

void LogChange(const char* after) {
  nvmlMemory_t memory{};
  Check(nvmlDeviceGetMemoryInfo(card, &memory) == NVML_SUCCESS, "nvmlDeviceGetMemoryInfo");
  std::printf("%-52s %+9.1f MiB  graphs: %.0f used, %.0f reserved\n", after,
              (static_cast<double>(memory.used) - static_cast<double>(last)) / kMiB,
              GraphMemory(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) / kMiB,
              GraphMemory(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) / kMiB);
  last = memory.used;
}

__global__ void Nothing() {}
__global__ void Heap() { std::free(std::malloc(64)); }
__global__ void Print(int n) {
  if (n > 1) printf("%d\n", n);
}
__global__ void Spin(uint64_t cycles) {
  for (const int64_t begin = clock64(); clock64() - begin < static_cast<int64_t>(cycles);) {
  }
}

}  // namespace

int main() {
  Check(nvmlInit() == NVML_SUCCESS && nvmlDeviceGetHandleByIndex(0, &card) == NVML_SUCCESS, "NVML");
  cudaFree(nullptr);
  Nothing<<<1, 1>>>();
  cudaDeviceSynchronize();
  LogChange("context and a kernel");
  OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 256 << 20));
  LogChange("malloc heap of 256 MiB set");
  Heap<<<1, 1>>>();
  cudaDeviceSynchronize();
  LogChange("a kernel that allocates ran");
  OK(cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 64 << 20));
  LogChange("printf's buffer of 64 MiB set");
  Print<<<1, 1>>>(1);
  cudaDeviceSynchronize();
  LogChange("a kernel that can print ran");
  OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 16 << 10));
  LogChange("stack of 16 KiB set");
  Nothing<<<1, 1>>>();
  cudaDeviceSynchronize();
  LogChange("a kernel ran");
  OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 1 << 10));
  Nothing<<<1, 1>>>();
  cudaDeviceSynchronize();
  LogChange("stack of 1 KiB set, a kernel ran");

  CUstream stream;
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 2; ++i) {
    CUgraph graph;
    CUgraphExec executable;
    CUdeviceptr block = 0;
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&block, 256 << 20, stream));
    OK(cuMemsetD8Async(block, 1, 256 << 20, stream));
    OK(cuMemFreeAsync(block, stream));
    OK(cuStreamEndCapture(stream, &graph));
    LogChange("graph captured, allocates and frees 256 MiB");
    OK(cuGraphInstantiate(&executable, graph, 0));
    LogChange("instantiated");
    if (i == 1) {
      OK(cuGraphUpload(executable, stream));
      LogChange("uploaded, not waited for");
    }
    Spin<<<1, 1, 0, stream>>>(uint64_t{400} << 20);
    OK(cuGraphLaunch(executable, stream));
    LogChange("launched behind a kernel of 0.2 s, not waited for");
    OK(cuStreamSynchronize(stream));
    LogChange("waited for");
    OK(cuGraphExecDestroy(executable));
    OK(cuGraphDestroy(graph));
    LogChange("destroyed");
    OK(cuDeviceGraphMemTrim(0));
    LogChange("trimmed");
  }
}
