// More cases of lifetimes.cu: calls that must not wait, and ends of contexts, threads and graphs' memory.
#include <pthread.h>

#include <atomic>
#include <functional>

#include "lifetimes.h"
#include "waits_and_ends.h"

namespace {

// Ends once the word is set, or after `ns`. Counts the blocks that saw it set.
__global__ void Poll(volatile unsigned* word, unsigned* seen, unsigned long long ns) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do {
    if (*word) {
      if (threadIdx.x == 0) atomicAdd(seen, 1);
      return;
    }
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (now - begin < ns);
}

CUgraphExec Instantiate(CUgraph graph) {
  CUgraphExec executable = nullptr;
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  return executable;
}

}  // namespace

// Synchronous memsets and copies inside device memory return while the legacy stream waits for the host.
int EarlyReturns() {
  const size_t n = 8 * kMiB;
  const CUdeviceptr a = Alloc(n), b = Alloc(n), small = Alloc(4096);
  OK(cuMemsetD8(a, 0, n));
  OK(cuMemsetD8(b, 0, n));
  OK(cuCtxSynchronize());
  CUDA_MEMCPY2D rows{};
  rows.srcMemoryType = rows.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  rows.srcDevice = a;
  rows.dstDevice = b;
  rows.srcPitch = rows.dstPitch = rows.WidthInBytes = rows.Height = 1024;
  size_t wrong = 0;
  const auto returns = [](const std::function<CUresult()>& call) {
    static std::atomic<bool> goes_on;
    goes_on = false;
    std::atomic<bool> returned{false};
    OK(cuLaunchHostFunc(
        CU_STREAM_LEGACY,
        [](void*) {
          while (!goes_on) std::this_thread::sleep_for(std::chrono::microseconds(100));
        },
        nullptr));
    std::thread calling([&] {
      OK(cuCtxSetCurrent(g_context));
      OK(call());
      returned = true;
    });
    for (int i = 0; i < 200 && !returned; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const bool is_early = returned;
    goes_on = true;
    calling.join();
    OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    return is_early;
  };
  wrong += !returns([&] { return cuMemsetD8(a, 1, 64); });
  wrong += !returns([&] { return cuMemsetD32(a, 0x02020202, n / 4); });
  wrong += !returns([&] { return cuMemsetD2D16(b, 4096, 3, 512, 1024); });
  wrong += !returns([&] { return cuMemcpyDtoD(b, a, n); });
  wrong += !returns([&] { return cuMemcpy2D(&rows); });
  wrong += !returns([&] { return cuMemcpyPeer(b, g_context, a, g_context, 4096); });
  wrong += !returns([&] { return cuMemsetD8(small, 1, 64); });
  CUarray array = nullptr;
  const CUDA_ARRAY_DESCRIPTOR words{1024, 0, CU_AD_FORMAT_UNSIGNED_INT32, 1};
  OK(cuArrayCreate(&array, &words));
  OK(cuMemsetD8(b, 2, n));
  wrong += !returns([&] { return cuMemcpyDtoA(array, 256, b + 5, 1024); });
  wrong += !returns([&] { return cuMemcpyAtoD(b + 4096 + 3, array, 256, 1024); });
  rows.srcXInBytes = 7;
  rows.srcPitch = 1031;
  wrong += !returns([&] { return cuMemcpy2DUnaligned(&rows); });
  int yes = 1;
  OK(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a));
  OK(cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, small));
  wrong += returns([&] { return cuMemsetD8(a, 2, 64); });
  wrong += returns([&] { return cuMemsetD8(small, 2, 64); });
  void* const host = Pinned(n);
  OK(cuMemcpyDtoH(host, b, n));
  return Result(wrong + Wrong(host, n, 2));
}

// A kernel that fills the GPU polls a word that a graph, or a stream, sets in pinned memory.
int ResidentKernel() {
  CUstream s = NewStream(), other = NewStream();
  unsigned* const host = static_cast<unsigned*>(Pinned(4096));
  CUdeviceptr word = 0;
  OK(cuMemHostGetDevicePointer(&word, host, 0));
  const CUdeviceptr seen = Alloc(4096);
  int count = 0;
  OK(cuDeviceGetAttribute(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
  const unsigned blocks = 2 * static_cast<unsigned>(count);
  size_t wrong = 0;
  double slowest = 0;
  for (const char* how : {"node", "captured", "stream"}) {
    OK(cuMemsetD8(seen, 0, 4096));
    *host = 0;
    CUgraphExec executable = nullptr;
    if (how[0] == 'n') {
      CUgraph graph = nullptr;
      CUgraphNode node = nullptr;
      CUstreamBatchMemOpParams write{};
      write.writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
      write.writeValue.address = word;
      write.writeValue.value = 1;
      CUDA_BATCH_MEM_OP_NODE_PARAMS params{g_context, 1, &write, 0};
      OK(cuGraphCreate(&graph, 0));
      OK(cuGraphAddBatchMemOpNode(&node, graph, nullptr, 0, &params));
      executable = Instantiate(graph);
    } else if (how[0] == 'c') {
      CUgraph graph = nullptr;
      OK(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_RELAXED));
      OK(cuStreamWriteValue32(other, word, 1, 0));
      OK(cuStreamEndCapture(other, &graph));
      executable = Instantiate(graph);
    }
    if (executable) OK(cuGraphUpload(executable, other));
    OK(cuCtxSynchronize());
    Poll<<<blocks, 1024, 0, (cudaStream_t)s>>>((volatile unsigned*)word, (unsigned*)seen, 1500000000ull);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const double begin = Ms();
    if (executable) {
      OK(cuGraphLaunch(executable, other));
    } else {
      OK(cuStreamWriteValue32(other, word, 1, 0));
    }
    OK(cuStreamSynchronize(s));
    slowest = std::max(slowest, Ms() - begin);
    OK(cuStreamSynchronize(other));
    unsigned saw = 0;
    OK(cuMemcpyDtoH(&saw, seen, sizeof saw));
    wrong += saw != blocks;
  }
  return Result(wrong, 0, slowest);
}

// Keys' destructors launch on the default streams of 1,000 threads that end.
int LateThreads() {
  static CUdeviceptr block;
  block = Alloc(kMiB);
  OK(cuMemsetD8(block, 0, kMiB));
  pthread_key_t key{};
  const auto late = [](void*) { cuMemsetD8Async(block, 7, kMiB, CU_STREAM_PER_THREAD); };
  if (pthread_key_create(&key, late) != 0) return 3;
  const double begin = Ms();
  for (int i = 0; i < 1000; ++i) {
    std::thread([&] {
      OK(cuCtxSetCurrent(g_context));
      pthread_setspecific(key, &key);
    }).join();
  }
  OK(cuCtxSynchronize());
  void* const host = Pinned(kMiB);
  OK(cuMemcpyDtoH(host, block, kMiB));
  return Result(Wrong(host, kMiB, 7), 0, Ms() - begin);
}

// The primary context is reset behind its last release, which memory of a pool outlives.
int ResetReleased() {
  size_t wrong = 0;
  void* const host = std::malloc(64 * kMiB);
  for (int round = 0; round < 3; ++round) {
    std::vector<CUdeviceptr> blocks;
    CUstream s = NewStream();
    for (int i = 0; i < 6; ++i) {
      blocks.push_back(Alloc(64 * kMiB));
      OK(cuMemsetD8Async(blocks.back(), 16 * round + i, 64 * kMiB, s));
    }
    OK(cuStreamSynchronize(s));
    for (int i = 0; i < 6; ++i) {
      OK(cuMemcpyDtoH(host, blocks[i], 64 * kMiB));
      wrong += Wrong(host, 64 * kMiB, static_cast<unsigned char>(16 * round + i));
    }
    CUdeviceptr kept = 0;
    OK(cuMemFree(blocks[5]));
    OK(cuMemAllocAsync(&kept, 16 * kMiB, s));
    OK(cuStreamSynchronize(s));
    OK(cuDevicePrimaryCtxRelease(0));
    OK(cuDevicePrimaryCtxReset(0));
    OK(cuDevicePrimaryCtxRetain(&g_context, 0));
    OK(cuCtxSetCurrent(g_context));
  }
  return Result(wrong);
}

// Threads make contexts and end them, and may be given each other's handles at once.
int ContextsByThreads() {
  std::atomic<size_t> wrong{0};
  std::vector<std::thread> threads;
  for (int id = 0; id < 4; ++id) {
    threads.emplace_back([&wrong, id] {
      for (int round = 0; round < 8; ++round) {
        CUcontext context = nullptr;
#if CUDA_VERSION >= 13000
        OK(cuCtxCreate(&context, nullptr, 0, 0));
#else
        OK(cuCtxCreate(&context, 0, 0));
#endif
        const CUdeviceptr block = Alloc(4 * kMiB);
        unsigned char byte = 99;
        OK(cuMemsetD8(block, static_cast<unsigned char>(id), kMiB));
        OK(cuMemcpyDtoH(&byte, block, 1));
        wrong += byte != id;
        if (round % 2) OK(cuMemFree(block));
        OK(cuCtxDestroy(context));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return Result(wrong);
}

// 24 graphs leave 64 MiB each: run in a budget of 1 GiB. These blocks must count.
int GraphMemory() {
  CUstream s = NewStream();
  std::vector<CUgraphExec> executables;
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 24; ++i) {
    CUgraph graph = nullptr;
    CUdeviceptr block = 0;
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAllocAsync(&block, 64 * kMiB, s));
    OK(cuMemsetD8Async(block, i, 64 * kMiB, s));
    OK(cuStreamEndCapture(s, &graph));
    executables.push_back(Instantiate(graph));
    blocks.push_back(block);
  }
  size_t launched = 0;
  while (launched < executables.size() && cuGraphLaunch(executables[launched], s) == CUDA_SUCCESS) ++launched;
  size_t wrong = 0;
  if (std::getenv("SLUICE_GPU_MEMORY")) wrong = launched > 16 || launched < 8;
  void* const host = Pinned(64 * kMiB);
  for (size_t i = 0; i < launched; ++i) {
    OK(cuMemcpyDtoHAsync(host, blocks[i], 64 * kMiB, s));
    OK(cuStreamSynchronize(s));
    wrong += Wrong(host, 64 * kMiB, static_cast<unsigned char>(i));
    OK(cuMemFreeAsync(blocks[i], s));
  }
  OK(cuStreamSynchronize(s));
  return Result(wrong, 64.0 * launched);
}

// cuMemFree waits for copies that other contexts' streams hold: a copy runs in the context of its source, and without
// peer access it has a part in the destination's, too. Blocks that are freed have no part in the copies.
int CopiesOfOtherContexts() {
  enum Where { kFirst, kSecond, kOther };  // GPU 0; another context there; GPU 1
  struct Case {
    Where stream, from, to, freed;
    bool waits, waits_with_access;
  };
  const Case cases[] = {
      {kOther, kFirst, kOther, kFirst, true, true},     {kOther, kOther, kFirst, kFirst, true, false},
      {kFirst, kFirst, kOther, kOther, true, false},    {kFirst, kOther, kFirst, kOther, true, true},
      {kOther, kFirst, kFirst, kFirst, true, true},     {kSecond, kFirst, kSecond, kFirst, true, true},
      {kSecond, kSecond, kFirst, kFirst, false, false}, {kFirst, kSecond, kFirst, kSecond, true, true},
  };
  int count = 0;
  OK(cuDeviceGetCount(&count));
  if (count < 2) {
    std::printf("SKIP one GPU\n");
    return 4;
  }
  const size_t n = 256 * kMiB;
  CUcontext contexts[] = {g_context, nullptr, nullptr};
  OK(cuCtxCreate(&contexts[kSecond], nullptr, 0, 0));
  OK(cuDevicePrimaryCtxRetain(&contexts[kOther], 1));
  CUdeviceptr from[3], to[3];
  CUstream streams[3];
  for (int i = 0; i < 3; ++i) {
    OK(cuCtxSetCurrent(contexts[i]));
    from[i] = Alloc(n);
    to[i] = Alloc(n);
    OK(cuMemsetD8(from[i], i + 1, n));
    OK(cuCtxSynchronize());
    streams[i] = NewStream();
  }
  size_t wrong = 0;
  for (const bool has_access : {false, true}) {
    if (has_access) {
      OK(cuCtxSetCurrent(contexts[kFirst]));
      OK(cuCtxEnablePeerAccess(contexts[kOther], 0));
      OK(cuCtxSetCurrent(contexts[kOther]));
      OK(cuCtxEnablePeerAccess(contexts[kFirst], 0));
    }
    for (const Case& one : cases) {
      for (const bool has_begun : {true, false}) {
        OK(cuCtxSetCurrent(contexts[one.freed]));
        const CUdeviceptr block = Alloc(4 * kMiB);
        OK(cuCtxSetCurrent(contexts[one.stream]));
        if (!has_begun) Delay(streams[one.stream], 20);
        for (int i = 0; i < (has_begun ? 60 : 1); ++i)
          OK(cuMemcpyDtoDAsync(to[one.to], from[one.from], n, streams[one.stream]));
        OK(cuMemFree(block));
        const CUresult after = cuStreamQuery(streams[one.stream]);
        OK(cuStreamSynchronize(streams[one.stream]));
        const bool waits = has_access ? one.waits_with_access : one.waits;
        const bool is_right = after == (waits ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
        if (!is_right)
          std::fprintf(stderr, "case %td, access %d, begun %d: %d\n", &one - cases, has_access, has_begun, after);
        wrong += !is_right;
      }
    }
  }
  return Result(wrong);
}

// cuMemFree waits for work in other threads' default streams, beside an open capture too, which goes on behind it.
int FreeBesideCapture() {
  CUstream s = NewStream();
  Delay(s, 1);
  OK(cuStreamSynchronize(s));
  const CUdeviceptr block = Alloc(4 * kMiB);
  auto* const host = static_cast<volatile unsigned char*>(Pinned(4096));
  size_t wrong = 0;
  int round = 0;
  for (const size_t bytes : {size_t{4096}, kMiB, 64 * kMiB}) {
    const auto value = static_cast<unsigned char>(++round);
    const CUdeviceptr freed = Alloc(bytes);
    CUgraph graph = nullptr;
    OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemsetD8Async(block, value, kMiB, s));
    std::atomic<bool> queued{false}, done{false};
    std::thread other([&] {
      OK(cuCtxSetCurrent(g_context));
      Delay(CU_STREAM_PER_THREAD, 100);
      OK(cuMemsetD8Async(block + kMiB, value, kMiB, CU_STREAM_PER_THREAD));
      OK(cuMemcpyDtoHAsync(const_cast<unsigned char*>(host), block + kMiB, 1, CU_STREAM_PER_THREAD));
      queued = true;
      while (!done) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    while (!queued) std::this_thread::sleep_for(std::chrono::microseconds(100));
    OK(cuMemFree(freed));
    wrong += *host != value;
    done = true;
    other.join();
    OK(cuStreamEndCapture(s, &graph));
    CUgraphExec executable = Instantiate(graph);
    OK(cuGraphLaunch(executable, s));
    OK(cuStreamSynchronize(s));
    unsigned char byte = 0;
    OK(cuMemcpyDtoH(&byte, block, 1));
    wrong += byte != value;
  }
  return Result(wrong);
}
