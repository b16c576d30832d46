// cuCtxSynchronize waits for all that the application has queued in the context, and not for the engine's prefetches.
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "test/engine/host_flag.h"
#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kBlock = 32 * kMiB;
constexpr size_t kBlocks = 24;

// Uses its blocks in turn: once that is learned, the next ones are fetched while a kernel runs.
struct Walk {
  Card card;
  CUstream stream = card.Stream();
  std::vector<CUdeviceptr> blocks;
  size_t next = 0;

  Walk() {
    for (size_t i = 0; i < kBlocks; ++i) blocks.push_back(Alloc(kBlock));
  }
  void Step() {
    card.Named(stream, {Update(blocks[next], kBlock, static_cast<uint32_t>(next + 1))}, 1'500'000);
    next = (next + 1) % kBlocks;
  }
  // Virtual host time of so many iterations, with this wait behind each kernel.
  template <typename Wait>
  uint64_t Iterate(int iterations, Wait wait) {
    return card.HostTime([&] {
      for (size_t i = 0; i < kBlocks * static_cast<size_t>(iterations); ++i) {
        Step();
        OK(wait());
      }
    });
  }
};

}  // namespace

SCENARIO(context_waits_beside_prefetches) {
  Walk walk;
  const auto by_stream = [&] { return cuStreamSynchronize(walk.stream); };
  walk.Iterate(6, by_stream);
  const uint64_t stream_ns = walk.Iterate(4, by_stream), context_ns = walk.Iterate(4, cuCtxSynchronize);
  for (size_t i = 0; i < kBlocks; ++i) PrintDigest("block", walk.blocks[i], kBlock);
  std::fprintf(stderr, "waits stream_ns=%" PRIu64 " context_ns=%" PRIu64 "\n", stream_ns, context_ns);
}

SCENARIO(context_waits_are_whole) {
  Walk walk;
  walk.Iterate(6, cuCtxSynchronize);
  CUcontext home = nullptr, other = nullptr;
  OK(cuCtxGetCurrent(&home));
  // Fetches are under way in each case.
  const auto check = [&](const char* what, CUstream stream, bool holds_copy) {
    const HostFlag gate;
    walk.Step();
    gate.MakeWait(stream);
    if (holds_copy) OK(cuMemcpyDtoDAsync(walk.blocks[0], walk.blocks[1], 4096, stream));
    Print(what, WaitsFor(gate, cuCtxSynchronize) ? 1 : 0);
    Print("its end", cuStreamQuery(stream));
  };
  CUstream blocking = nullptr;
  OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
  for (const bool holds_copy : {false, true}) {
    check("own", walk.stream, holds_copy);
    check("another", walk.card.Stream(), holds_copy);
    check("blocking", blocking, holds_copy);
    check("legacy", CU_STREAM_LEGACY, holds_copy);
    check("per thread", CU_STREAM_PER_THREAD, holds_copy);
  }
  // Another thread's own stream.
  {
    const HostFlag gate;
    walk.Step();
    std::atomic<bool> has_queued{false}, may_end{false};
    std::thread owner([&] {
      OK(cuCtxSetCurrent(home));
      gate.MakeWait(CU_STREAM_PER_THREAD);
      has_queued = true;
      while (!may_end) usleep(100);
    });
    while (!has_queued) usleep(100);
    Print("thread", WaitsFor(gate, cuCtxSynchronize) ? 1 : 0);
    may_end = true;
    owner.join();
  }
  // A destroyed stream's work, and a stream that only waits for another context's.
  {
    const HostFlag gate;
    walk.Step();
    const CUstream gone = walk.card.Stream();
    gate.MakeWait(gone);
    OK(cuStreamDestroy(gone));
    Print("destroyed", WaitsFor(gate, cuCtxSynchronize) ? 1 : 0);
  }
  OK(CreateContext(&other, 0));
  CUstream far = nullptr;
  OK(cuStreamCreate(&far, CU_STREAM_NON_BLOCKING));
  CUevent event = nullptr;
  {
    const HostFlag gate;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    gate.MakeWait(far);
    OK(cuEventRecord(event, far));
    OK(cuCtxSetCurrent(home));
    walk.Step();
    OK(cuStreamWaitEvent(walk.card.Stream(), event, 0));
    Print("waits for another context", WaitsFor(gate, cuCtxSynchronize) ? 1 : 0);
  }
  // Work of another context alone is none of this one's.
  {
    const HostFlag gate;
    gate.MakeWait(far);
    walk.Step();
    Print("another context", WaitsFor(gate, cuCtxSynchronize) ? 1 : 0);
  }
  OK(cuCtxSetCurrent(other));
  OK(cuCtxDestroy(other));
  OK(cuCtxSetCurrent(home));
  for (size_t i = 0; i < kBlocks; ++i) PrintDigest("block", walk.blocks[i], kBlock);
}
