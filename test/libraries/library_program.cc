// A program that calls the fake libraries on operands inside one large block that was evicted. Unhooked and hooked it
// must do the same. Hooked, the kernels must not fault, and no more than the operands may be fetched.
#include <cudnn.h>
#include <dlfcn.h>

#include "test/libraries/program.h"

namespace {

using namespace simgpu_test;              // NOLINT(google-build-using-namespace): helpers of the test
using namespace sluice::libraries::test;  // NOLINT(google-build-using-namespace)

constexpr uint64_t kBlock = 640 * kMiB, kOther = 512 * kMiB;
CUdeviceptr g_block, g_other;
Card* g_card;

// Uses the other block, which evicts the first, and measures the bytes that are fetched for `call`.
template <typename Call>
void Case(const char* name, uint64_t operands, Call call) {
  for (int i = 0; i < 2; ++i) {
    Touch(*g_card, Read(g_other, kOther));
    OK(cuCtxSynchronize());
  }
  const uint64_t before = g_card->Stats().prefetch_in_bytes;
  EXPECT(call() == 0);
  OK(cuCtxSynchronize());
  const uint64_t in = g_card->Stats().prefetch_in_bytes - before;
  std::fprintf(stderr, "%s: %llu MiB fetched\n", name, static_cast<unsigned long long>(in >> 20));
  // Whole chunks of 2 MiB; the block that holds the operands is many times as large.
  if (UnderPressure()) EXPECT(in <= operands + 16 * kMiB);
}

void* At(uint64_t mebibyte) { return reinterpret_cast<void*>(g_block + mebibyte * kMiB); }

}  // namespace

int main() {
  Card card;
  g_card = &card;
  g_block = card.Unmanaged(kBlock);
  g_other = card.Unmanaged(kOther);
  Touch(card, Write(g_block, kBlock));  // contents, so that fetched bytes have to be copied
  int handle = 0;
  const float alpha = 1, beta = 0;
  auto gemm = [&](auto function) {
    return function(&handle, 0, 0, 1448, 1448, 1448, &alpha, At(64), 1448, At(128), 1448, &beta, At(192), 1448);
  };
  Case("cublas 13, linked", 24 * kMiB, [&] { return gemm(&cublasSgemm_v2); });
  void* other_version = dlopen("libcublas.so.12", RTLD_NOW | RTLD_LOCAL);
  EXPECT(other_version != nullptr);
  auto* const version = reinterpret_cast<int (*)()>(dlsym(other_version, "cublasFakeVersion"));
  EXPECT(version && version() == 12);
  auto* const gemm12 = reinterpret_cast<decltype(&cublasSgemm_v2)>(dlsym(other_version, "cublasSgemm_v2"));
  Case("cublas 12, looked up", 24 * kMiB, [&] { return gemm(gemm12); });

  const Layout layout{14, 2048, 2048, 2048};
  MatmulDesc operation;
  Case("cublasLt", 28 * kMiB, [&] {
    auto* l = const_cast<Layout*>(&layout);
    return cublasLtMatmul(&handle, &operation, &alpha, At(256), l, At(300), l, &beta, At(340), l, At(340), l, nullptr,
                          At(380), 4 << 20, nullptr);
  });
  TensorDescriptor tensor{CUDNN_DATA_HALF, {4, 64, 128, 128}, {1048576, 16384, 128, 1}};
  Case("cudnn, legacy", 16 * kMiB, [&] {
    const float one = 1;
    return cudnnAddTensor(nullptr, &alpha, Opaque(&tensor), At(400), &one, Opaque(&tensor), At(440));
  });

  auto make = [](cudnnBackendDescriptorType_t type) {
    cudnnBackendDescriptor_t d = nullptr;
    EXPECT(cudnnBackendCreateDescriptor(type, &d) == CUDNN_STATUS_SUCCESS);
    return d;
  };
  auto put = [](cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t n,
                const void* at) { EXPECT(cudnnBackendSetAttribute(d, name, type, n, at) == CUDNN_STATUS_SUCCESS); };
  auto of = [&](int64_t id) {
    cudnnBackendDescriptor_t t = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    const cudnnDataType_t type = CUDNN_DATA_HALF;
    const int64_t dims[] = {2048, 2048}, strides[] = {2048, 1};
    put(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    put(t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 2, dims);
    put(t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 2, strides);
    put(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    return t;
  };
  cudnnBackendDescriptor_t x = of(1), y = of(2), relu = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR),
                           graph = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
                           engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR),
                           configuration = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR),
                           plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  put(relu, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &x);
  put(relu, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &y);
  put(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &relu);
  put(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &graph);
  put(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
  put(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &configuration);
  EXPECT(cudnnBackendFinalize(plan) == CUDNN_STATUS_SUCCESS);
  cudnnBackendDescriptor_t pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  const int64_t ids[] = {1, 2};
  void* const pointers[] = {At(480), At(520)};
  put(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 2, ids);
  put(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 2, pointers);
  Case("cudnn, graph", 16 * kMiB, [&] { return cudnnBackendExecute(nullptr, plan, pack); });

  // Two matrices of 4 MiB, by three arrays that are copied from the host.
  const void *a[] = {At(550), At(555)}, *b[] = {At(560), At(565)};
  void* c[] = {At(570), At(575)};
  auto* const arrays = static_cast<char*>(At(600));
  OK(cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(arrays), a, sizeof a));
  OK(cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(arrays) + 4096, b, sizeof b));
  OK(cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(arrays) + 8192, c, sizeof c));
  Case("cublas, pointer arrays", 24 * kMiB, [&] {
    return cublasSgemmBatched(&handle, 0, 0, 1024, 1024, 1024, &alpha, reinterpret_cast<const void* const*>(arrays),
                              1024, reinterpret_cast<const void* const*>(arrays + 4096), 1024, &beta,
                              reinterpret_cast<void* const*>(arrays + 8192), 1024, 2);
  });

  // A workspace of the library's own: the kernel names it, the call does not. It stays resident, and is counted.
  const CUdeviceptr workspace = card.Unmanaged(4 * kMiB);
  cublasFakeSetNamedMemory(reinterpret_cast<void*>(workspace));
  Case("cublas, a workspace of its own", 28 * kMiB, [&] { return gemm(&cublasSgemm_v2); });
  cublasFakeSetNamedMemory(nullptr);

  // The program gets the library's error.
  EXPECT(cublasSgemm_v2(&handle, 0, 0, -1, 1, 1, &alpha, At(0), 1, At(1), 1, &beta, At(2), 1) == 7);
  for (cudnnBackendDescriptor_t d : {x, y, relu, graph, engine, configuration, plan, pack})
    cudnnBackendDestroyDescriptor(d);
  std::puts("done");
  return 0;
}
