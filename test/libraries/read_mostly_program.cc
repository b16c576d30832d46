// Read-mostly duplicates: weights that copies load and library calls read, and everything that may write them. Before
// any write, the advice must be withdrawn. Prints digests, which must be those of the run without the hook. DUPLICATES:
// the advice is expected.
#include <dlfcn.h>

#include <vector>

#include "test/engine/report.h"
#include "test/libraries/program.h"

namespace {

using namespace simgpu_test;              // NOLINT(google-build-using-namespace): helpers of the test
using namespace sluice::libraries::test;  // NOLINT(google-build-using-namespace)

// 35 matrices of a little less than 8 MiB in a block. Each case has its own, since memory that was written while it was
// a duplicate gets no advice for long.
constexpr uint64_t kMatrix = 8 * kMiB, kBlock = 35 * kMatrix, kOther = 512 * kMiB, kRight = 33, kResult = 34;
constexpr int kSide = 1448;
CUdeviceptr g_block, g_other;
Card* g_card;
CUstream g_stream;
uint64_t g_left = 0;  // the left operand of the case
std::vector<char> g_host(kBlock, 3);

// Without the hook the memory is not managed, and has no advice.
bool IsAdvised(CUdeviceptr at) { return simgpu_read_mostly(at, 2 * kMiB) != 0; }
bool AreDuplicatesExpected() { return std::getenv("DUPLICATES") != nullptr; }
CUdeviceptr At(uint64_t matrix) { return g_block + matrix * kMatrix; }
CUdeviceptr Left() { return At(g_left); }

int Multiply(CUdeviceptr left, CUdeviceptr right, CUdeviceptr result) {
  static int handle = 0;
  static const float alpha = 1, beta = 0;
  const auto pointer = [](CUdeviceptr at) { return reinterpret_cast<void*>(at); };
  return cublasSgemm_v2(&handle, 0, 0, kSide, kSide, kSide, &alpha, pointer(left), kSide, pointer(right), kSide, &beta,
                        pointer(result), kSide);
}
int Multiply() { return Multiply(Left(), At(kRight), At(kResult)); }

void EvictBlock() {
  for (int i = 0; i < 2; ++i) Touch(*g_card, Read(g_other, kOther));
  OK(cuCtxSynchronize());
}

void Load(CUdeviceptr at, uint64_t bytes) { OK(cuMemcpyHtoD(at, g_host.data(), bytes)); }

// Loads the case's matrix, evicts it, and has a call fetch it: as a duplicate.
void MakeDuplicate() {
  Load(Left(), kMatrix);
  Load(At(kRight), kMatrix);
  EvictBlock();
  EXPECT(Multiply() == 0);
  OK(cuCtxSynchronize());
}

// Runs `work` on the next matrix, at least on its first bytes. `ends`: the advice must be withdrawn before the work
// begins.
template <typename Work>
void Case(const char* name, bool ends, Work work) {
  ++g_left;
  MakeDuplicate();
  EXPECT(IsAdvised(Left()) == AreDuplicatesExpected());
  EXPECT(!IsAdvised(At(kResult)));  // the call writes it
  const auto before = g_card->Stats();
  work();
  EXPECT(IsAdvised(Left()) == (AreDuplicatesExpected() && !ends));
  OK(cuCtxSynchronize());
  const auto after = g_card->Stats();
  std::fprintf(stderr, "%s: %llu bytes of duplicates written, %llu evicted while in use\n", name,
               static_cast<unsigned long long>(after.duplicate_write_bytes - before.duplicate_write_bytes),
               static_cast<unsigned long long>(after.evicted_in_use_bytes - before.evicted_in_use_bytes));
  EXPECT(after.duplicate_write_bytes == before.duplicate_write_bytes);
  std::printf("%s %llx\n", name, static_cast<unsigned long long>(simgpu_digest(g_block, kBlock)));
}

CUgraphExec Captured(int (*calls)()) {
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(cublasSetStream_v2(nullptr, g_stream) == 0);
  EXPECT(calls() == 0);
  OK(cuStreamEndCapture(g_stream, &graph));
  EXPECT(cublasSetStream_v2(nullptr, nullptr) == 0);
  OK(cuGraphInstantiate(&executable, graph, 0));
  return executable;
}

// The calls are the body of a condition that is true.
CUgraphExec Conditional(int (*calls)()) {
  CUgraph graph = nullptr, body = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec executable = nullptr;
  CUgraphNodeParams params{};
  params.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  params.conditional.type = CU_GRAPH_COND_TYPE_IF;
  params.conditional.size = 1;
  params.conditional.ctx = g_card->context;
  OK(cuGraphCreate(&graph, 0));
  OK(cuGraphConditionalHandleCreate(&params.conditional.handle, graph, g_card->context, 1,
                                    CU_GRAPH_COND_ASSIGN_DEFAULT));
  OK(cuGraphAddNode(&node, graph, nullptr, nullptr, 0, &params));
  OK(cuStreamBeginCaptureToGraph(g_stream, params.conditional.phGraph_out[0], nullptr, nullptr, 0,
                                 CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT(cublasSetStream_v2(nullptr, g_stream) == 0);
  EXPECT(calls() == 0);
  OK(cuStreamEndCapture(g_stream, &body));
  EXPECT(cublasSetStream_v2(nullptr, nullptr) == 0);
  OK(cuGraphInstantiate(&executable, graph, 0));
  return executable;
}

void Launch(CUgraphExec executable) {
  OK(cuGraphLaunch(executable, g_stream));
  OK(cuStreamSynchronize(g_stream));
}

}  // namespace

int main() {
  Card card;
  g_card = &card;
  g_stream = card.Stream();
  cublasFakeSetPasses(32);
  // While everything fits, accesses are not tracked: a kernel may have written memory that was copied before it.
  const CUdeviceptr early = card.Unmanaged(kMatrix);
  Load(early, kMatrix);
  g_block = card.Unmanaged(kBlock);
  Touch(card, Write(g_block, kBlock));
  Load(At(0), kMatrix);
  Load(At(kRight), kMatrix);
  g_other = card.Unmanaged(kOther);
  Touch(card, Write(g_other, kOther));
  EvictBlock();
  EXPECT(Multiply() == 0);
  EXPECT(IsAdvised(At(0)) == AreDuplicatesExpected());
  EvictBlock();
  EXPECT(Multiply(early, At(kRight), At(kResult)) == 0);
  EXPECT(!IsAdvised(early));
  // Readers of all kinds.
  Case("read by a call", false, [] { EXPECT(Multiply() == 0); });
  Case("read by copies", false, [] {
    OK(cuMemcpyDtoH(g_host.data(), Left(), 4096));
    OK(cuMemcpyDtoD(At(kResult), Left(), kMatrix));
  });
  Case("read by a graph", false, [] { Launch(Captured([] { return Multiply(); })); });
  Case("read in the body of a condition", false, [] { Launch(Conditional([] { return Multiply(); })); });
  // As on Hopper, where the kernels of matrix products get TMA descriptors of their operands.
  cublasFakeSetTensorMaps(1);
  Case("read by descriptor", false, [] { EXPECT(Multiply() == 0); });
  Case("read by a graph's descriptor", false, [] { Launch(Captured([] { return Multiply(); })); });
  cublasFakeSetTensorMaps(0);
  // Writers, known and unknown.
  Case("named by a kernel", true, [] { Touch(*g_card, Update(Left(), kMatrix)); });
  Case("written by a call", true, [] { EXPECT(Multiply(At(kRight), At(kRight), Left()) == 0); });
  Case("memset", true, [] { OK(cuMemsetD8Async(Left(), 1, 4096, g_stream)); });
  Case("copied into", true, [] { OK(cuMemcpyHtoDAsync(Left(), g_host.data(), 4096, g_stream)); });
  Case("copied into whole", true, [] { Load(Left(), kMatrix); });
  Case("copied into from the device", true, [] { OK(cuMemcpyDtoD(Left(), At(kResult), 4096)); });
  Case("rows", true, [] { OK(cuMemsetD2D8(Left(), 8192, 2, 4096, 4)); });
  Case("a batch of copies", true, [] {
    CUdeviceptr to[] = {At(kResult), Left() + 512}, from[] = {g_other, g_other + kMiB};
    size_t sizes[] = {4096, 4096}, index = 0;
    CUmemcpyAttributes attributes{};
    attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    auto* const batch =
        reinterpret_cast<decltype(&cuMemcpyBatchAsync_v2)>(dlsym(RTLD_DEFAULT, "cuMemcpyBatchAsync_v2"));
    const CUresult result = batch ? batch(to, from, sizes, 2, &attributes, &index, 1, g_stream) : CUDA_ERROR_NOT_FOUND;
    if (result == CUDA_ERROR_NOT_FOUND) OK(cuMemcpyDtoDAsync(to[1], from[1], sizes[1], g_stream));  // an older driver
    EXPECT(result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_FOUND);
  });
  Case("written by a graph", true, [] { Launch(Captured([] { return Multiply(At(kRight), At(kRight), Left()); })); });
  Case("written in the body of a condition", true,
       [] { Launch(Conditional([] { return Multiply(At(kRight), At(kRight), Left()); })); });
  Case("cleared by a graph", true,
       [] { Launch(Captured([] { return static_cast<int>(cuMemsetD8Async(Left(), 1, 4096, g_stream)); })); });
  Case("named by a graph's kernel", true, [] {
    Launch(Captured([] {
      simgpu_touch touch = Update(Left(), kMatrix);
      simgpu_next_launch(&touch, 1, 20000, 0);
      uint64_t words[] = {touch.address, 0};
      void* parameters[] = {&words[0], &words[1]};
      return static_cast<int>(cuLaunchKernel(g_card->work, 1, 1, 1, 1, 1, 1, 0, g_stream, parameters, nullptr));
    }));
  });
  const auto unseen = [] {
    static int handle = 0;
    static const float alpha = 1, beta = 0;
    const auto arrays = reinterpret_cast<void* const*>(At(kResult));  // kernels wrote them
    cublasFakeSetUnseenMemory(reinterpret_cast<void*>(Left()), kMatrix);
    const int status = cublasSgemmBatched(&handle, 0, 0, kSide, kSide, kSide, &alpha, arrays, kSide, arrays, kSide,
                                          &beta, arrays, kSide, 1);
    cublasFakeSetUnseenMemory(nullptr, 0);
    return status;
  };
  Case("written by a call through unseen pointers", true, [&] { EXPECT(unseen() == 0); });
  Case("the same in a graph", true, [&] { Launch(Captured(+unseen)); });
  // The launches of CUDA 3: earlier calls set the function's parameters, one by one.
  CUfunction writes = nullptr;
  CUmodule module = nullptr;
  OK(cuModuleLoadData(&module, "simgpu-module 1\nkernel writes params 8 ns 20000\nupdate p0 0 8388608\n"));
  OK(cuModuleGetFunction(&writes, module, "writes"));
  const auto old = [&](auto launch) {
    CUdeviceptr left = Left();
    OK(cuFuncSetBlockShape(writes, 1, 1, 1));
    OK(cuParamSetSize(writes, 8));
    OK(cuParamSetv(writes, 0, &left, 8));
    launch();
  };
  Case("written by cuLaunch", true, [&] { old([&] { OK(cuLaunch(writes)); }); });
  Case("written by cuLaunchGrid", true, [&] { old([&] { OK(cuLaunchGrid(writes, 2, 1)); }); });
  Case("written by cuLaunchGridAsync", true, [&] { old([&] { OK(cuLaunchGridAsync(writes, 2, 1, g_stream)); }); });
  Case("written by a stream value", true, [] { OK(cuStreamWriteValue32(g_stream, Left() + 4096, 7, 0)); });
  const CUgraphExec writer =
      Captured([] { return static_cast<int>(cuStreamWriteValue64(g_stream, At(g_left + 1) + 4096, 7, 0)); });
  Case("written by a graph value", true, [&] { Launch(writer); });
  // Frees and new allocations. With a framework that reports its allocations, memory outside them is free.
  Case("allocated, by a report", true, [] {
    scenario::Report(g_block, static_cast<long>(kBlock));
    Touch(*g_card, Write(g_block, kBlock));
  });
  Case("freed, by a report", true, [] {
    scenario::Report(g_block, -static_cast<long>(kBlock));
    EXPECT(!IsAdvised(Left()));
    scenario::Report(g_block, static_cast<long>(kBlock));
    Touch(*g_card, Write(g_block, kBlock));
  });
  Case("freed", true, [&] {
    OK(cuMemFree(g_block));
    g_block = card.Unmanaged(kBlock);
    EXPECT(!IsAdvised(Left()));
    Touch(card, Write(g_block, kBlock));
  });
  // Memory that the host may write.
  const CUdeviceptr managed = card.Managed(kMatrix);
  Load(managed, kMatrix);
  EvictBlock();
  EXPECT(Multiply(managed, At(kRight), At(kResult)) == 0);
  EXPECT(!IsAdvised(managed));
  int cards = 0;
  OK(cuDeviceGetCount(&cards));
  if (cards > 1) {
    CUcontext second = nullptr;
    OK(cuDevicePrimaryCtxRetain(&second, 1));
    Case("a peer may use it", true, [&] {
      OK(cuCtxSetCurrent(second));
      OK(cuCtxEnablePeerAccess(card.context, 0));
      OK(cuCtxSetCurrent(card.context));
      EXPECT(!IsAdvised(Left()));
      MakeDuplicate();
    });
  }
  std::puts("done");
  return 0;
}
