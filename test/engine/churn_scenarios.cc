// Contexts that are made and destroyed with everything in them, and calls that a program makes again and again: neither
// host memory nor the time of a round grows.
#include <pthread.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <thread>

#include "test/engine/green.h"
#include "test/engine/growth.h"
#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

long ThreadNs() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

// Work that takes the same number of instructions each time, so that the machine's other load can be told.
long ReferenceNs() {
  static volatile uint64_t sink = 1;
  const long begin = ThreadNs();
  uint64_t hash = sink;
  for (int i = 0; i < 20'000; ++i) hash = (hash ^ static_cast<uint64_t>(i)) * 0x9e3779b97f4a7c15u;
  sink = hash;
  return ThreadNs() - begin;
}

// Prints on stderr by how much memory grew, and the time of a round in the first and in the last thousand, in
// thousandths of the reference: each that of the quickest ones, which other processes disturbed least.
void Churn(const std::function<void(int)>& round) {
  constexpr int kRounds = 10'000, kBegin = 1500;
  constexpr size_t kPart = 1000, kQuick = kPart / 50;
  const auto quick = [](std::vector<long>& times) {
    std::nth_element(times.begin(), times.begin() + kQuick, times.end());
    return times[kQuick];
  };
  long before = 0;
  std::array<long, 2> parts{};  // the first, the last
  std::vector<long> times, references;
  for (int i = 0; i < kRounds; ++i) {
    if (i == kBegin) before = ResidentKib();
    if (i == kBegin || i == kRounds - static_cast<int>(kPart)) {
      times.clear();
      references.clear();
    }
    const bool is_timed = i >= kBegin && times.size() < kPart;
    if (is_timed) references.push_back(ReferenceNs());
    const long begin = ThreadNs();
    round(i);
    if (is_timed) times.push_back(ThreadNs() - begin);
    if (times.size() == kPart && is_timed) parts.at(i == kRounds - 1 ? 1 : 0) = quick(times) * 1000 / quick(references);
  }
  const long grown = ResidentKib() - before;
  std::fprintf(stderr, "grown by %ld KiB\nfirst %ld, last %ld\n", grown, parts[0], parts[1]);
}

}  // namespace

// Contexts are destroyed with all that is in them, now and then of a thread with a default stream of its own.
SCENARIO(ten_thousand_contexts) {
  Card card;
  const CUstream kept = card.Stream();
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(Alloc(64 * kMiB));
  Churn([&](int i) {
    CUcontext context = nullptr;
    OK(CreateContext(&context, 0));
    const CUstream stream = card.Stream();
    const CUdeviceptr block = Alloc(4 * kMiB);
    OK(cuMemsetD8Async(block, 1, 4 * kMiB, stream));
    OK(cuMemsetD8Async(block, 2, kMiB, nullptr));
    OK(cuStreamWriteValue32(stream, block, 5, CU_STREAM_WRITE_VALUE_DEFAULT));
    OK(cuStreamWaitValue32(stream, block, 5, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue64(stream, block + 8, 6, CU_STREAM_WRITE_VALUE_DEFAULT));
    CUevent event = nullptr;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(event, stream));
    CUmodule module = nullptr;
    CUfunction function = nullptr;
    OK(cuModuleLoadData(&module, "simgpu-module 1\nkernel up params 8,8 ns 1000\nupdate p0 0 p1\n"));
    OK(cuModuleGetFunction(&function, module, "up"));
    CUdeviceptr at = i % 20 == 0 ? blocks[static_cast<size_t>(i / 20) % blocks.size()] : block;
    uint64_t bytes = 4 * kMiB;
    void* parameters[] = {&at, &bytes};
    OK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr));
    if (i % 50 == 0) {
      std::thread([&] {
        OK(cuCtxSetCurrent(context));
        OK(card.TryNamed(nullptr, {}, 1000, true));
      }).join();
    }
    OK(cuCtxSynchronize());
    OK(cuCtxDestroy(context));
    OK(cuCtxSetCurrent(card.context));
    if (i % 20 == 0) card.Named(kept, {Update(blocks[static_cast<size_t>(i / 20 + 6) % blocks.size()], 64 * kMiB)});
  });
}

SCENARIO(ten_thousand_green_contexts) {
  Card card;
  const CUdeviceptr words = Alloc(16 * kMiB);
  const CUstream writer = card.Stream();
  OK(cuMemsetD8Async(words, 0, 16 * kMiB, writer));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 12; ++i) blocks.push_back(Alloc(64 * kMiB));
  Churn([&](int i) {
    const CUgreenCtx green = MakeGreen(0);
    CUcontext context = nullptr;
    OK(cuCtxFromGreenCtx(&context, green));
    OK(cuCtxSetCurrent(context));
    const CUstream stream = GreenStream(green);
    const auto value = static_cast<uint32_t>(i) + 1;
    OK(cuStreamWaitValue32(stream, words, value, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWriteValue32(writer, words, value, CU_STREAM_WRITE_VALUE_DEFAULT));
    OK(cuStreamWriteValue64(stream, words + 8, value, CU_STREAM_WRITE_VALUE_DEFAULT));
    if (i % 20 == 0) card.Named(stream, {Update(blocks[static_cast<size_t>(i / 20) % blocks.size()], 64 * kMiB)});
    OK(cuStreamSynchronize(stream));
    OK(cuStreamDestroy(stream));
    OK(cuCtxSetCurrent(card.context));
    OK(cuGreenCtxDestroy(green));
  });
}

// Nodes whose parameters name another place before each launch: the graph's access set is that of the newest ones.
SCENARIO(ten_thousand_graph_updates) {
  Card card;
  const CUstream stream = card.Stream();
  const CUdeviceptr block = Alloc(kGiB);
  CUgraph child = nullptr, graph = nullptr;
  OK(cuGraphCreate(&child, 0));
  OK(cuGraphCreate(&graph, 0));
  CUgraphNode node = nullptr, child_node = nullptr;
  std::array<uint64_t, 8> words{};
  std::array<void*, 8> parameters{};
  for (size_t i = 0; i < 8; ++i) parameters.at(i) = &words.at(i);
  CUDA_KERNEL_NODE_PARAMS p{};
  p.func = card.eight;
  p.gridDimX = p.gridDimY = p.gridDimZ = p.blockDimX = p.blockDimY = p.blockDimZ = 1;
  p.kernelParams = parameters.data();
  CUDA_MEMSET_NODE_PARAMS set{block, 0, 1, 1, 4096, 1};
  OK(cuGraphAddKernelNode(&node, graph, nullptr, 0, &p));
  CUgraphNode in_child = nullptr;
  OK(cuGraphAddMemsetNode(&in_child, child, nullptr, 0, &set, card.context));
  OK(cuGraphAddChildGraphNode(&child_node, graph, nullptr, 0, child));
  CUgraphExec executable = nullptr;
  OK(cuGraphInstantiate(&executable, graph, 0));
  Churn([&](int i) {
    const uint64_t offset = static_cast<uint64_t>(i) * 64 * 1024;
    words[0] = block + offset;
    OK(cuGraphExecKernelNodeSetParams(executable, node, &p));
    set.dst = block + offset + 4096;
    OK(cuGraphMemsetNodeSetParams(in_child, &set));
    OK(cuGraphExecChildGraphNodeSetParams(executable, child_node, child));
    OK(cuGraphLaunch(executable, stream));
    OK(cuStreamSynchronize(stream));
  });
}

// Advice and prefetches in small steps over one block.
SCENARIO(ten_thousand_pieces_of_advice) {
  Card card;
  const CUstream stream = card.Stream();
  constexpr uint64_t kStep = 64 * 1024;
  const CUdeviceptr block = card.Managed(kGiB);
  Churn([&](int i) {
    const CUdeviceptr at = block + static_cast<uint64_t>(i) * kStep;
    OK(cuMemAdvise(at, kStep, CU_MEM_ADVISE_SET_ACCESSED_BY, {CU_MEM_LOCATION_TYPE_DEVICE, {0}}));
    card.Prefetch(stream, at, kStep, true);
    OK(cuStreamSynchronize(stream));
  });
  OK(cuMemFree(block));
}

// Keys' destructors launch on the threads' default streams, behind those of thread-local objects.
SCENARIO(a_thousand_threads_that_launch_late) {
  static Card card;
  static const CUdeviceptr block = Alloc(64 * kMiB);
  pthread_key_t key{};
  const auto late = [](void*) { OK(card.TryNamed(nullptr, {Update(block, 64 * kMiB, 1)}, 1000, true)); };
  EXPECT(pthread_key_create(&key, late) == 0);
  const auto round = [&](int) {
    std::thread([&] {
      OK(cuCtxSetCurrent(card.context));
      EXPECT(pthread_setspecific(key, &key) == 0);
    }).join();
  };
  PrintGrowth(1000, round);
  OK(cuCtxSynchronize());
  PrintDigest("block", block, 64 * kMiB);
}
