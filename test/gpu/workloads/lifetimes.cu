// Legal programs whose contexts, order and lifetimes a hook may get wrong: lifetimes CASE
//
// Each case needs at most 4 GiB and prints one RESULT line: "wrong" counts wrong bytes and wrong answers, 0 where all
// is right. `held_mib` and `ms` are for comparison with a run without the hook. Budgets: everything fits, except where
// the case says so.
#include "lifetimes.h"
#include "waits_and_ends.h"

namespace {

// Copies a block on `copier` behind a delay, frees it, fills a new one: the host must have the old contents.
int FreeUnderCopy(CUstream copier) {
  const size_t n = 256 * kMiB;
  CUstream other = NewStream();
  const CUdeviceptr p = Alloc(n);
  OK(cuMemsetD8Async(p, 0xAA, n, other));
  OK(cuStreamSynchronize(other));
  void* host = Pinned(n);
  Delay(copier);
  OK(cuMemcpyDtoHAsync(host, p, n, copier));
  OK(cuMemFree(p));
  const CUdeviceptr q = Alloc(n);
  OK(cuMemsetD8Async(q, 0x55, n, other));
  OK(cuStreamSynchronize(other));
  OK(cuStreamSynchronize(copier));
  return Result(Wrong(host, n, 0xAA));
}

CUgreenCtx MakeGreen(CUdevice device) {
  CUdevResource all{}, part{};
  unsigned count = 1;
  OK(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
  OK(cuDevSmResourceSplitByCount(&part, &count, &all, nullptr, 0, 16));
  CUdevResourceDesc description = nullptr;
  OK(cuDevResourceGenerateDesc(&description, &part, 1));
  CUgreenCtx green = nullptr;
  OK(cuGreenCtxCreate(&green, description, device, CU_GREEN_CTX_DEFAULT_STREAM));
  return green;
}
CUstream GreenStream(CUgreenCtx green) {
  CUstream s = nullptr;
  OK(cuGreenCtxStreamCreate(&s, green, CU_STREAM_NON_BLOCKING, 0));
  return s;
}

// Work on a green context's stream while the primary context is current.
int GreenCopy() { return FreeUnderCopy(GreenStream(MakeGreen(0))); }

// The green context is destroyed while its work runs.
int GreenDestroy() {
  const size_t n = 256 * kMiB;
  CUgreenCtx green = MakeGreen(0);
  CUstream s = GreenStream(green), other = NewStream();
  const CUdeviceptr p = Alloc(n);
  OK(cuMemsetD8Async(p, 0xAA, n, other));
  OK(cuStreamSynchronize(other));
  void* host = Pinned(n);
  OK(cuMemcpyDtoHAsync(host, p, n, s));
  OK(cuStreamSynchronize(s));
  OK(cuStreamDestroy(s));
  OK(cuGreenCtxDestroy(green));
  OK(cuMemFree(p));
  size_t wrong = Wrong(host, n, 0xAA);
  for (int i = 0; i < 20; ++i) {
    const CUdeviceptr q = Alloc(n);
    OK(cuMemsetD8Async(q, i, n, other));
    OK(cuMemcpyDtoHAsync(host, q, n, other));
    OK(cuStreamSynchronize(other));
    wrong += Wrong(host, n, i);
    OK(cuMemFree(q));
  }
  return Result(wrong);
}

// 3 GiB of stream-ordered memory on a green stream: run in a budget of 1 GiB. The memory must count.
int GreenBudget() {
  CUstream s = GreenStream(MakeGreen(0));
  std::vector<CUdeviceptr> blocks;
  size_t before = 0, after = 0, total = 0, wrong = 0;
  OK(cuMemGetInfo(&before, &total));
  for (int i = 0; i < 12; ++i) {
    CUdeviceptr p = 0;
    OK(cuMemAllocAsync(&p, 256 * kMiB, s));
    OK(cuMemsetD8Async(p, i, 256 * kMiB, s));
    blocks.push_back(p);
  }
  OK(cuStreamSynchronize(s));
  OK(cuMemGetInfo(&after, &total));
  const size_t expected = before > 3072 * kMiB ? before - 3072 * kMiB : 0;
  wrong += after > expected + 64 * kMiB;
  void* host = Pinned(256 * kMiB);
  for (int i = 0; i < 12; ++i) {
    OK(cuMemcpyDtoH(host, blocks[i], 256 * kMiB));
    wrong += Wrong(host, 256 * kMiB, i);
  }
  return Result(wrong, (double)(before - after) / kMiB);
}

// A second context of the same GPU, whose memory is freed in between.
int TwoContexts() {
  CUcontext second = nullptr;
#if CUDA_VERSION >= 13000
  OK(cuCtxCreate(&second, nullptr, 0, 0));
#else
  OK(cuCtxCreate(&second, 0, 0));
#endif
  const CUdeviceptr w = Alloc(64 * kMiB);
  OK(cuCtxSetCurrent(g_context));
  const size_t n = 256 * kMiB;
  CUstream other = NewStream();
  const CUdeviceptr p = Alloc(n);
  OK(cuMemsetD8Async(p, 0xAA, n, other));
  OK(cuStreamSynchronize(other));
  void* host = Pinned(n);
  Delay(CU_STREAM_LEGACY);
  OK(cuMemcpyDtoHAsync(host, p, n, CU_STREAM_LEGACY));
  OK(cuMemFree(p));
  OK(cuCtxSetCurrent(second));
  OK(cuMemFree(w));
  Alloc(64 * kMiB);
  OK(cuCtxSetCurrent(g_context));
  const CUdeviceptr q = Alloc(n);
  OK(cuMemsetD8Async(q, 0x55, n, other));
  OK(cuStreamSynchronize(other));
  OK(cuStreamSynchronize(CU_STREAM_LEGACY));
  return Result(Wrong(host, n, 0xAA));
}

int LegacyBesideCapture() {
  CUstream captured = NewStream();
  std::thread([&] {
    OK(cuCtxSetCurrent(g_context));
    OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
  }).join();
  const int result = FreeUnderCopy(CU_STREAM_LEGACY);
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(captured, &graph));
  return result;
}

// The application discards managed memory behind a wait, and frees it.
int OwnDiscard() {
  const size_t n = 64 * kMiB;
  CUstream s = NewStream(), other = NewStream();
  CUdeviceptr p = 0;
  OK(cuMemAllocManaged(&p, n, CU_MEM_ATTACH_GLOBAL));
  OK(cuMemsetD8Async(p, 1, n, s));
  OK(cuStreamSynchronize(s));
  volatile uint32_t* const flag = static_cast<uint32_t*>(Pinned(4096));
  CUdeviceptr at = 0;
  OK(cuMemHostGetDevicePointer(&at, (void*)flag, 0));
  OK(cuStreamWaitValue32(s, at, 1, CU_STREAM_WAIT_VALUE_GEQ));
  CUdeviceptr pointers[] = {p};
  size_t sizes[] = {n};
  OK(cuMemDiscardBatchAsync(pointers, sizes, 1, 0, s));
  *flag = 1;  // cuMemFree waits for the context's work
  OK(cuMemFree(p));
  const CUdeviceptr q = Alloc(n);
  OK(cuMemsetD8Async(q, 0x77, n, other));
  OK(cuStreamSynchronize(other));
  OK(cuStreamSynchronize(s));
  void* host = Pinned(n);
  OK(cuMemcpyDtoH(host, q, n));
  return Result(Wrong(host, n, 0x77));
}

// A thread with a default stream of its own ends; blocks are created and ended afterwards. Budget: 4 GiB.
int ThreadEnds() {
  std::thread([] {
    OK(cuCtxSetCurrent(g_context));
    Delay(CU_STREAM_PER_THREAD, 1);
  }).join();
  CUstream s = NewStream();
  size_t before = 0, after = 0, total = 0;
  OK(cuMemGetInfo(&before, &total));
  for (int i = 0; i < 200; ++i) {
    const CUdeviceptr p = Alloc(128 * kMiB);
    OK(cuMemsetD8Async(p, i, 128 * kMiB, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemFree(p));
  }
  OK(cuMemGetInfo(&after, &total));
  return Result(0, ((double)before - (double)after) / kMiB);
}

// A stream-ordered free returns at once while the GPU waits for the host.
int FreeAsync() {
  CUstream user = NewStream(), blocked = NewStream(), freeing = NewStream();
  CUdeviceptr large = 0, small = 0;
  OK(cuMemAllocAsync(&large, 1024 * kMiB, user));
  OK(cuMemAllocAsync(&small, 64 * kMiB, user));
  OK(cuMemsetD8Async(large, 1, 1024 * kMiB, user));
  OK(cuStreamSynchronize(user));
  OK(cuMemFreeAsync(large, user));
  volatile uint32_t* const flag = static_cast<uint32_t*>(Pinned(4096));
  CUdeviceptr at = 0;
  OK(cuMemHostGetDevicePointer(&at, (void*)flag, 0));
  OK(cuStreamWaitValue32(blocked, at, 1, CU_STREAM_WAIT_VALUE_GEQ));
  const double begin = Ms();
  OK(cuMemFreeAsync(small, freeing));
  const double took = Ms() - begin;
  *flag = 1;
  OK(cuCtxSynchronize());
  return Result(took > 1000, 0, took);
}

// Default pools of host and managed memory (CUDA 13): the CPU writes their memory.
int HostPools() {
  size_t wrong = 0;
  CUstream s = NewStream();
  const struct {
    CUmemLocationType where;
    CUmemAllocationType type;
  } kinds[] = {{CU_MEM_LOCATION_TYPE_HOST, CU_MEM_ALLOCATION_TYPE_PINNED},
               {CU_MEM_LOCATION_TYPE_DEVICE, CU_MEM_ALLOCATION_TYPE_MANAGED}};
  for (const auto& kind : kinds) {
    CUmemLocation location{};
    location.type = kind.where;
    CUmemoryPool pool = nullptr;
    if (cuMemGetDefaultMemPool(&pool, &location, kind.type) != CUDA_SUCCESS) continue;
    for (const size_t n : {size_t{4096}, 8 * kMiB}) {
      CUdeviceptr p = 0;
      OK(cuMemAllocFromPoolAsync(&p, n, pool, s));
      OK(cuStreamSynchronize(s));
      std::memset((void*)p, 0x33, n);
      wrong += Wrong((void*)p, n, 0x33);
      OK(cuMemFreeAsync(p, s));
    }
  }
  OK(cuStreamSynchronize(s));
  return Result(wrong);
}

// Advice on a block that is freed; the next block is written by the GPU.
int AdviceLeft() {
  const size_t n = 256 * kMiB;
  CUstream s = NewStream();
  CUdeviceptr p = 0;
  OK(cuMemAllocManaged(&p, n, CU_MEM_ATTACH_GLOBAL));
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_HOST;
  OK(cuMemAdvise(p, n, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location));
  OK(cuMemsetD8Async(p, 1, n, s));
  OK(cuStreamSynchronize(s));
  OK(cuMemFree(p));
  const CUdeviceptr q = Alloc(n);
  OK(cuMemsetD8Async(q, 1, n, s));
  OK(cuStreamSynchronize(s));
  const double begin = Ms();
  for (int i = 0; i < 5; ++i) OK(cuMemsetD8Async(q, i, n, s));
  OK(cuStreamSynchronize(s));
  return Result(0, 0, Ms() - begin);
}

// Streams are created and destroyed. `held_mib`: growth of the process's resident set.
int StreamChurn() {
  const auto resident = [] {
    long pages = 0, kept = 0;
    FILE* const f = std::fopen("/proc/self/statm", "r");
    if (!f || std::fscanf(f, "%ld %ld", &pages, &kept) != 2) std::exit(4);
    std::fclose(f);
    return kept * 4096.0 / kMiB;
  };
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(Alloc(64 * kMiB));
  double before = 0, begin = 0;
  for (int i = 0; i < 1200; ++i) {
    if (i == 200) before = resident(), begin = Ms();
    CUstream s = NewStream();
    OK(cuMemsetD8Async(blocks[i % 16], i, 64 * kMiB, s));
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy(s));
  }
  return Result(0, resident() - before, (Ms() - begin) / 1000);
}

// Whole allocations of managed memory, as NVIDIA's sample UnifiedMemoryStreams attaches them.
int Attach() {
  CUstream s = NewStream();
  size_t wrong = 0;
  CUdeviceptr p = 0;
  OK(cuMemAllocManaged(&p, 8 * kMiB, CU_MEM_ATTACH_GLOBAL));
  wrong += cuStreamAttachMemAsync(s, p, 0, CU_MEM_ATTACH_SINGLE) != CUDA_SUCCESS;
  OK(cuStreamSynchronize(s));
  std::memset((void*)p, 5, 8 * kMiB);
  OK(cuMemsetD8Async(p, 6, 4 * kMiB, s));
  OK(cuStreamSynchronize(s));
  wrong += Wrong((void*)p, 4 * kMiB, 6) + Wrong((char*)p + 4 * kMiB, 4 * kMiB, 5);
  wrong += cuStreamAttachMemAsync(s, p, 0, CU_MEM_ATTACH_GLOBAL) != CUDA_SUCCESS;
  OK(cuStreamSynchronize(s));
  OK(cuMemFree(p));
  return Result(wrong);
}

// Answers of the driver to frees that it refuses, and to cuMemGetInfo with one output.
int Answers() {
  size_t wrong = 0, free_bytes = 0, total = 0, one = 0;
  const CUdeviceptr a = Alloc(4 * kMiB), b = Alloc(4 * kMiB), small = Alloc(4096);
  OK(cuMemFree(a));
  OK(cuMemFree(small));
  wrong += cuMemFree(a) != CUDA_ERROR_INVALID_VALUE;
  wrong += cuMemFree(small) != CUDA_ERROR_INVALID_VALUE;
  wrong += cuMemFree(b + 512) != CUDA_ERROR_INVALID_VALUE;
  OK(cuMemGetInfo(&free_bytes, &total));
  wrong += cuMemGetInfo(nullptr, &one) != CUDA_SUCCESS || one != total;
  return Result(wrong);
}

// Work, a free and a stream's end on GPU 0 while GPU 1 is current.
int OtherGpu() {
  int count = 0;
  OK(cuDeviceGetCount(&count));
  if (count < 2) {
    std::printf("SKIP one GPU\n");
    return 4;
  }
  CUcontext second = nullptr;
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  const size_t n = 256 * kMiB;
  CUstream s = NewStream(), other = NewStream();
  const CUdeviceptr p = Alloc(n), large = Alloc(1024 * kMiB);
  OK(cuMemsetD8Async(p, 0xAA, n, other));
  OK(cuStreamSynchronize(other));
  void* host = Pinned(n);
  Delay(s);
  OK(cuCtxSetCurrent(second));
  OK(cuMemcpyDtoHAsync(host, p, n, s));
  OK(cuMemFree(large));
  OK(cuStreamDestroy(s));
  OK(cuCtxSetCurrent(g_context));
  OK(cuMemFree(p));
  const CUdeviceptr q = Alloc(n);
  OK(cuMemsetD8Async(q, 0x55, n, other));
  OK(cuStreamSynchronize(other));
  OK(cuCtxSynchronize());
  size_t wrong = Wrong(host, n, 0xAA);
  for (int i = 0; i < 60; ++i) {
    const CUdeviceptr block = Alloc(128 * kMiB);
    OK(cuMemsetD8Async(block, i, 128 * kMiB, other));
    OK(cuStreamSynchronize(other));
    OK(cuMemFree(block));
  }
  return Result(wrong);
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, int (*)()> cases = {
      {"green_copy", GreenCopy},
      {"green_destroy", GreenDestroy},
      {"green_budget", GreenBudget},
      {"two_contexts", TwoContexts},
      {"legacy_beside_capture", LegacyBesideCapture},
      {"own_discard", OwnDiscard},
      {"thread_ends", ThreadEnds},
      {"free_async", FreeAsync},
      {"host_pools", HostPools},
      {"advice_left", AdviceLeft},
      {"stream_churn", StreamChurn},
      {"attach", Attach},
      {"answers", Answers},
      {"other_gpu", OtherGpu},
      {"early_returns", EarlyReturns},
      {"resident_kernel", ResidentKernel},
      {"late_threads", LateThreads},
      {"reset_released", ResetReleased},
      {"contexts_by_threads", ContextsByThreads},
      {"graph_memory", GraphMemory},
      {"copies_of_other_contexts", CopiesOfOtherContexts},
      {"free_beside_capture", FreeBesideCapture},
  };
  const auto it = cases.find(argc == 2 ? argv[1] : "");
  if (it == cases.end()) {
    for (const auto& [name, run] : cases) std::printf("%s\n", name.c_str());
    return 64;
  }
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&g_context, 0));
  OK(cuCtxSetCurrent(g_context));
  Delay(CU_STREAM_LEGACY, 0.001);  // loads the kernel
  OK(cuCtxSynchronize());
  return it->second();
}
