// cuBLAS, cublasLt and cuDNN in miniature, for the simulated card: FAKE_BLAS, FAKE_LT or FAKE_DNN. Each call launches
// one kernel whose parameters name nothing (but see cublasFakeNames), as if all pointers lay in a table on the card,
// and which must not fault on the call's operands: only the call's own arguments can have told the engine.
#include <cuda.h>
#include <cudnn.h>
#include <dlfcn.h>

#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "simgpu/simgpu.h"
#include "test/libraries/fake_getters.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using sluice::libraries::test::FakeGetter;

uint64_t g_named = 0;  // what the kernel's parameter names
int g_described = 0;   // whether it is given a TMA descriptor

int Launch(const std::vector<simgpu_touch>& touches, CUstream stream = nullptr,
           uint32_t flags = SIMGPU_MUST_BE_RESIDENT) {
  static CUfunction function = [] {
    CUmodule module = nullptr;
    CUfunction f = nullptr;
    cuModuleLoadData(&module, "simgpu-module 1\nkernel library_kernel params 8 ns 20000\n");
    cuModuleGetFunction(&f, module, "library_kernel");
    return f;
  }();
  CUtensorMap map{};
  CUfunction launched = function;
  void* parameters[] = {&g_named, &map};
  if (g_described && !touches.empty()) {  // its first operand by a TMA descriptor, in rows of 8 KiB
    static CUfunction described = [] {
      CUmodule module = nullptr;
      CUfunction f = nullptr;
      cuModuleLoadData(&module, "simgpu-module 1\nkernel described_kernel params 8,128 ns 20000\n");
      cuModuleGetFunction(&f, module, "described_kernel");
      return f;
    }();
    const cuuint64_t dims[] = {4096, touches[0].length / 8192}, strides[] = {8192};
    const cuuint32_t box[] = {64, 64}, steps[] = {1, 1};
    if (cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, reinterpret_cast<void*>(touches[0].address),
                               dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                               CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) != CUDA_SUCCESS)
      return 13;
    launched = described;
  }
  simgpu_next_launch(touches.data(), touches.size(), 50000, flags);
  return cuLaunchKernel(launched, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr) == CUDA_SUCCESS ? 0 : 13;
}
simgpu_touch Read(const void* p, uint64_t n) { return {reinterpret_cast<uintptr_t>(p), n, SIMGPU_READ, 0}; }
[[maybe_unused]] simgpu_touch Update(const void* p, uint64_t n) {
  return {reinterpret_cast<uintptr_t>(p), n, SIMGPU_READ | SIMGPU_WRITE, 0};
}
simgpu_touch Write(const void* p, uint64_t n) { return {reinterpret_cast<uintptr_t>(p), n, SIMGPU_WRITE, 0}; }
// A matrix of floats to the byte: lines (columns, or rows where these are consecutive) of `line` elements, `ld` apart.
[[maybe_unused]] void Lines(const void* p, int64_t line, int64_t lines, int64_t ld, uint32_t access,
                            std::vector<simgpu_touch>* touches) {
  if (ld == line) line *= lines, lines = lines > 0;
  for (int64_t i = 0; line > 0 && i < lines; ++i) {
    const auto at = reinterpret_cast<uintptr_t>(p) + 4 * static_cast<uint64_t>(i * ld);
    touches->push_back({at, 4 * static_cast<uint64_t>(line), access, 0});
  }
}

}  // namespace

#ifdef FAKE_BLAS
EXPORT int cublasFakeVersion() { return FAKE_BLAS; }
// The kernels of calls to come name this, as a library's own workspace is named.
EXPORT void cublasFakeNames(const void* memory) { g_named = reinterpret_cast<uintptr_t>(memory); }
EXPORT int cublasGetPointerMode_v2(void* handle, int* mode) {
  return reinterpret_cast<int (*)(void*, int*)>(FakeGetter("cublasGetPointerMode_v2"))(handle, mode);
}
// How calls to come make their result, with which stream and event beside the handle's own.
std::string g_way = "overwrite";
thread_local CUstream g_stream = nullptr;
CUstream g_side = nullptr;
CUevent g_event = nullptr;
// What another thread does between two launches.
void (*g_between)() = nullptr;
EXPORT void cublasFakeBetween(void (*work)()) { g_between = work; }
EXPORT void cublasFakeOthers() {
  if (!g_between) return;
  std::thread(g_between).join();
  simgpu_advance_host(1'000'000'000);  // what had to leave has left
}
EXPORT void cublasFakeWay(const char* way, void* side, void* event) {
  g_way = way;
  g_side = static_cast<CUstream>(side);
  g_event = static_cast<CUevent>(event);
}
// Calls to come read each operand so often, and may find it anywhere.
uint32_t g_passes = 0;
EXPORT void cublasFakePasses(unsigned passes) { g_passes = passes; }
EXPORT void cublasFakeDescribes(int on) { g_described = on; }
EXPORT int cublasSgemm_v2(void*, int ta, int tb, int m, int n, int k, const void*, const void* a, int lda,
                          const void* b, int ldb, const void* beta, void* c, int ldc) {
  if (g_way.starts_with("exactly")) {
    if (m < 0 || n < 0 || k < 0 || (m && n && (!c || (k && (!a || !b))))) return 7;
    if (m == 0 || n == 0) return 0;
    std::vector<simgpu_touch> touches;
    if (k) Lines(a, ta ? k : m, ta ? m : k, lda, SIMGPU_READ, &touches);
    if (k) Lines(b, tb ? n : k, tb ? k : n, ldb, SIMGPU_READ, &touches);
    Lines(c, m, n, ldc, *static_cast<const float*>(beta) != 0 ? SIMGPU_READ | SIMGPU_WRITE : SIMGPU_WRITE, &touches);
    return Launch(touches, g_stream, g_way == "exactly" ? SIMGPU_MUST_BE_RESIDENT : 0);
  }
  const auto size = [](int x, int y) { return uint64_t{4} * static_cast<uint64_t>(x) * static_cast<uint64_t>(y); };
  if (m < 0) return 7;
  simgpu_touch ra = Read(a, size(m, k)), rb = Read(b, size(k, n));
  const uint64_t bytes = size(m, n), half = bytes / 2;
  char* const to = static_cast<char*>(c);
  const auto at = reinterpret_cast<CUdeviceptr>(c);
  if (g_way == "faults") return Launch({ra, rb, Write(c, bytes)}, g_stream, 0);
  if (g_way == "update") return Launch({ra, rb, Update(c, bytes)}, g_stream);
  if (g_way == "write, then update" || g_way == "write, wait, then update") {
    const int first = Launch({ra, rb, Write(c, bytes)}, g_stream, 0);
    if (g_way != "write, then update") cublasFakeOthers();
    return first != 0 ? first : Launch({ra, Update(c, bytes)}, g_stream, 0);
  }
  if (g_way == "memset, then update") {
    if (cuMemsetD8Async(at, 0, bytes, g_stream) != CUDA_SUCCESS) return 13;
    return Launch({ra, rb, Update(c, bytes)}, g_stream);
  }
  if (g_way == "clear half, then write the rest") {
    if (cuMemsetD8Async(at, 5, half, g_stream) != CUDA_SUCCESS) return 13;
    return Launch({ra, rb, Write(to + half, bytes - half)}, g_stream);
  }
  if (g_way == "side writes half") {
    if (cuEventRecord(g_event, g_stream) != CUDA_SUCCESS || cuStreamWaitEvent(g_side, g_event, 0) != CUDA_SUCCESS)
      return 13;
    const int first = Launch({ra, Write(c, half)}, g_stream);
    const int second = Launch({rb, Write(to + half, bytes - half)}, g_side, 0);  // not the stream that it came for
    if (cuEventRecord(g_event, g_side) != CUDA_SUCCESS || cuStreamWaitEvent(g_stream, g_event, 0) != CUDA_SUCCESS)
      return 13;
    return first != 0 ? first : second;
  }
  if (g_passes) {
    ra.access |= SIMGPU_PASSES(g_passes);
    rb.access |= SIMGPU_PASSES(g_passes);
  }
  return Launch({ra, rb, Write(c, bytes)}, g_stream, g_passes ? 0 : SIMGPU_MUST_BE_RESIDENT);
}
EXPORT int cublasSetStream_v2(void*, void* stream) {
  g_stream = static_cast<CUstream>(stream);
  return 0;
}
EXPORT int cublasSetWorkspace_v2(void*, void*, size_t) { return 0; }
// What batched calls to come update besides: what they find by pointers that nobody saw.
const void* g_unseen = nullptr;
uint64_t g_unseen_bytes = 0;
EXPORT void cublasFakeUnseen(const void* memory, uint64_t bytes) { g_unseen = memory, g_unseen_bytes = bytes; }
EXPORT int cublasSgemmBatched(void*, int, int, int m, int n, int k, const void*, const void* const*, int,
                              const void* const*, int, const void*, void* const* c, int, int batch) {
  (void)m, (void)n, (void)k, (void)batch;
  if (g_unseen) return Launch({Read(c, 8), Update(g_unseen, g_unseen_bytes)}, g_stream, 0);
  return Launch({Read(c, 8)}, g_stream);
}
#endif

#ifdef FAKE_LT
#define GETTER(name)                                                                                                 \
  EXPORT int name(void* of, int attribute, void* to, size_t room, size_t* written) {                                 \
    return reinterpret_cast<int (*)(void*, int, void*, size_t, size_t*)>(FakeGetter(#name))(of, attribute, to, room, \
                                                                                            written);                \
  }
GETTER(cublasLtMatrixLayoutGetAttribute)
GETTER(cublasLtMatmulDescGetAttribute)
// Whether calls to come have cuBLAS make the result, and go over it themselves.
int g_inner = 0;  // 2: with others' work in between; 3: they touch what their layouts say, to the byte; 4: or by faults
EXPORT void cublasLtFakeInner(int inner) { g_inner = inner; }
EXPORT int cublasLtMatmul(void* handle, void* op, const void* alpha, const void* a, void* al, const void* b, void* bl,
                          const void* beta, const void* c, void* cl, void* d, void* dl, const void*, void* workspace,
                          size_t bytes, void* stream) {
  if (g_inner >= 3) {
    std::vector<simgpu_touch> touches;
    const auto* const operation = static_cast<const sluice::libraries::test::MatmulDesc*>(op);
    const auto add = [&touches](const void* p, const void* layout, uint32_t access) {
      const auto* l = static_cast<const sluice::libraries::test::Layout*>(layout);
      const auto rows = static_cast<int64_t>(l->rows), columns = static_cast<int64_t>(l->columns);
      for (int64_t i = 0; i < l->batch; ++i) {
        const auto* at = static_cast<const char*>(p) + 4 * i * l->stride;
        Lines(at, l->order == 0 ? rows : columns, l->order == 0 ? columns : rows, l->ld, access, &touches);
      }
    };
    for (const void* layout : {al, bl, cl, dl}) {
      if (!layout || !static_cast<const sluice::libraries::test::Layout*>(layout)->alive) return 7;
    }
    if (!a || !b || !d) return 7;
    add(a, al, SIMGPU_READ), add(b, bl, SIMGPU_READ), add(d, dl, SIMGPU_WRITE);
    if (*static_cast<const float*>(beta) != 0) add(c, cl, SIMGPU_READ);
    if (operation->epilogue & 4) {
      touches.push_back(Read(operation->bias, 4 * static_cast<const sluice::libraries::test::Layout*>(dl)->rows));
    }
    if (bytes) touches.push_back(Write(workspace, bytes));
    return Launch(touches, static_cast<CUstream>(stream), g_inner == 3 ? SIMGPU_MUST_BE_RESIDENT : 0);
  }
  const auto size = [](const void* layout) {
    const auto* l = static_cast<const sluice::libraries::test::Layout*>(layout);
    return l->rows * l->columns * (l->type == 0 ? 4 : 2);
  };
  if (g_inner) {
    auto* const gemm =
        reinterpret_cast<int (*)(void*, int, int, int, int, int, const void*, const void*, int, const void*, int,
                                 const void*, void*, int)>(dlsym(RTLD_DEFAULT, "cublasSgemm_v2"));
    const auto n = static_cast<int>(static_cast<const sluice::libraries::test::Layout*>(dl)->rows);
    const int status = gemm ? gemm(handle, 0, 0, n, n, n, alpha, a, n, b, n, beta, d, n) : 1;
    auto* const others = reinterpret_cast<void (*)()>(dlsym(RTLD_DEFAULT, "cublasFakeOthers"));
    if (g_inner == 2 && others) others();
    return status != 0 ? status : Launch({Read(a, size(al)), Read(b, size(bl)), Update(d, size(dl))}, nullptr, 0);
  }
  return Launch({Read(a, size(al)), Read(b, size(bl)), Write(d, size(dl)), Write(workspace, bytes)});
}
#endif

#ifdef FAKE_DNN
EXPORT cudnnStatus_t cudnnGetTensorNdDescriptor(const cudnnTensorDescriptor_t d, int room, cudnnDataType_t* type,
                                                int* rank, int dims[], int strides[]) {
  return reinterpret_cast<decltype(&cudnnGetTensorNdDescriptor)>(FakeGetter("cudnnGetTensorNdDescriptor"))(
      d, room, type, rank, dims, strides);
}
EXPORT cudnnStatus_t cudnnAddTensor(cudnnHandle_t, const void*, const cudnnTensorDescriptor_t ad, const void* a,
                                    const void*, const cudnnTensorDescriptor_t, void* c) {
  const auto* t = reinterpret_cast<const sluice::libraries::test::TensorDescriptor*>(ad);
  const uint64_t bytes = static_cast<uint64_t>(t->dims[0]) * static_cast<uint64_t>(t->strides[0]) * 2;
  return static_cast<cudnnStatus_t>(
      Launch({Read(a, bytes), {reinterpret_cast<uintptr_t>(c), bytes, SIMGPU_READ | SIMGPU_WRITE, 0}}));
}
struct FakeNode {
  int type;
  std::vector<uint64_t> pointers;
};
EXPORT cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* out) {
  *out = new FakeNode{type, {}};
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t, int64_t count, const void* at) {
  if (name == CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS) {
    const auto* p = static_cast<const uint64_t*>(at);
    static_cast<FakeNode*>(d)->pointers.assign(p, p + count);
  }
  return CUDNN_STATUS_SUCCESS;
}
EXPORT cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type, int64_t room, int64_t* count,
                                              void* to) {
  return reinterpret_cast<decltype(&cudnnBackendGetAttribute)>(FakeGetter("cudnnBackendGetAttribute"))(d, name, type,
                                                                                                       room, count, to);
}
EXPORT cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }
EXPORT cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete static_cast<FakeNode*>(d);
  return CUDNN_STATUS_SUCCESS;
}
// Tensors of 8 MiB: the first is read, the second written.
EXPORT cudnnStatus_t cudnnBackendExecute(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t pack) {
  const auto& p = static_cast<FakeNode*>(pack)->pointers;
  return static_cast<cudnnStatus_t>(
      Launch({Read(reinterpret_cast<void*>(p[0]), 8 << 20), Write(reinterpret_cast<void*>(p[1]), 8 << 20)}));
}
#endif
