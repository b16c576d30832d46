// The cost of cuBLAS' and cuDNN's entries to the calling thread while all memory fits. The libraries are fakes
// (test/libraries/fake_library.cc) that return at once. Run it with and without the hook in turn; the difference is the
// hook's cost. Prints one RESULT line of JSON, nanoseconds a call.
#include <cuda.h>
#include <cudnn.h>
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

extern "C" {
int cublasSgemm_v2(void*, int, int, int, int, int, const void*, const void*, int, const void*, int, const void*, void*,
                   int);
int cublasSetStream_v2(void*, void*);
int cublasSetWorkspace_v2(void*, void*, size_t);
}

namespace {

// Median of batches, which hides the clock's cost and other programs.
template <typename Call>
double Nanoseconds(Call call) {
  constexpr int kBatch = 2000;
  std::vector<double> times;
  for (int batch = 0; batch < 401; ++batch) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < kBatch; ++i) call();
    times.push_back(std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() /
                    kBatch);
  }
  std::nth_element(times.begin(), times.begin() + 200, times.end());
  return times[200];
}

void Check(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "library_micro: %s\n", what);
  std::exit(1);
}

}  // namespace

int main() {
  CUdevice device = 0;
  CUcontext context = nullptr;
  Check(cuInit(0) == CUDA_SUCCESS && cuDeviceGet(&device, 0) == CUDA_SUCCESS &&
            cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS && cuCtxSetCurrent(context) == CUDA_SUCCESS,
        "no device");
  CUdeviceptr block = 0;
  Check(cuMemAlloc(&block, 64 << 20) == CUDA_SUCCESS, "no memory");
  int handle = 0;
  const float alpha = 1, beta = 0;
  void* const memory = reinterpret_cast<void*>(block);
  // Refused by its sizes, so that it launches nothing. 8 of its 14 arguments are on the stack.
  const auto gemm = [&](auto function) {
    return function(&handle, 0, 0, -1, 1, 1, &alpha, memory, 1, memory, 1, &beta, memory, 1);
  };
  Check(gemm(&cublasSgemm_v2) == 7, "the fake library is not the first in LD_LIBRARY_PATH");
  auto* const looked_up = reinterpret_cast<decltype(&cublasSgemm_v2)>(
      dlsym(dlopen("libcublas.so.13", RTLD_NOW | RTLD_NOLOAD), "cublasSgemm_v2"));
  Check(looked_up != nullptr && gemm(looked_up) == 7, "dlsym does not find cublasSgemm_v2");
  const double linked = Nanoseconds([&] { gemm(&cublasSgemm_v2); });
  const double by_name = Nanoseconds([&] { gemm(looked_up); });
  const double stream = Nanoseconds([&] { cublasSetStream_v2(&handle, nullptr); });
  const double workspace = Nanoseconds([&] { cublasSetWorkspace_v2(&handle, memory, 1 << 20); });
  // As cuDNN's frontend does for each execution.
  const double pack = Nanoseconds([&] {
    cudnnBackendDescriptor_t d = nullptr;
    const int64_t ids[] = {1, 2, 3};
    void* const pointers[] = {memory, memory, memory};
    cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &d);
    cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 3, ids);
    cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers);
    cudnnBackendSetAttribute(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &memory);
    cudnnBackendFinalize(d);
    cudnnBackendDestroyDescriptor(d);
  });
  std::printf(
      "RESULT {\"gemm_linked_ns\": %.1f, \"gemm_looked_up_ns\": %.1f, \"set_stream_ns\": %.1f, "
      "\"set_workspace_ns\": %.1f, \"variant_pack_ns\": %.1f}\n",
      linked, by_name, stream, workspace, pack);
  return 0;
}
