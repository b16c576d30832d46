// cuMemFree waits for what the block's context holds when it is called; a free in a stream's order is part of a
// barrier.
#include <unistd.h>

#include <atomic>
#include <thread>

#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

struct Gate {
  Gate() {
    void* host = nullptr;
    OK(cuMemHostAlloc(&host, 4096, CU_MEMHOSTALLOC_DEVICEMAP));
    OK(cuMemHostGetDevicePointer(&address, host, 0));
    value = static_cast<uint32_t*>(host);
    __atomic_store_n(value, 0, __ATOMIC_RELEASE);
  }
  void Close(CUstream stream) const { OK(cuStreamWaitValue32(stream, address, 1, CU_STREAM_WAIT_VALUE_GEQ)); }
  void Open() const { __atomic_store_n(value, 1, __ATOMIC_RELEASE); }
  CUdeviceptr address = 0;
  uint32_t* value = nullptr;
};

CUstream Blocking() {
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  return stream;
}

// Whether a free returns behind the opening of a gate before which `stream` waits.
void FreeBehind(const char* what, const Gate& gate, CUstream stream) {
  const CUdeviceptr block = Alloc(64 * kMiB);
  gate.Close(stream);
  std::atomic<bool> is_open{false};
  std::thread opener([&] {
    usleep(50'000);
    is_open = true;
    gate.Open();
  });
  OK(cuMemFree(block));
  Print(what, is_open ? 1 : 0);
  opener.join();
  OK(cuCtxSynchronize());
}

}  // namespace

// The memory belongs to the primary context, whose work a green context's is.
SCENARIO(free_waits_for_green_contexts) {
  Card card(0);
  CUdevResource all{}, part{};
  unsigned count = 1;
  OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
  OK(cuDevSmResourceSplitByCount(&part, &count, &all, nullptr, 0, 16));
  CUdevResourceDesc description = nullptr;
  OK(cuDevResourceGenerateDesc(&description, &part, 1));
  CUgreenCtx green = nullptr;
  OK(cuGreenCtxCreate(&green, description, 0, CU_GREEN_CTX_DEFAULT_STREAM));
  CUstream stream = nullptr;
  OK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  FreeBehind("green", Gate(), stream);
  FreeBehind("own", Gate(), card.Stream());
  FreeBehind("blocking", Gate(), Blocking());
  FreeBehind("legacy", Gate(), CU_STREAM_LEGACY);
  OK(cuGreenCtxDestroy(green));
}

// Work that another thread queues meanwhile is not waited for: it may wait for this thread.
SCENARIO(free_waits_for_no_later_work) {
  Card card;
  const CUstream busy = Blocking(), later = card.Stream();
  const Gate first, second;
  const CUdeviceptr block = Alloc(64 * kMiB), other = Alloc(64 * kMiB);
  first.Close(busy);
  OK(cuMemsetD8Async(other, 1, 64 * kMiB, CU_STREAM_LEGACY));
  std::thread queueing([&] {
    OK(cuCtxSetCurrent(card.context));
    usleep(50'000);
    second.Close(later);
    first.Open();
  });
  OK(cuMemFree(block));
  second.Open();
  queueing.join();
  OK(cuCtxSynchronize());
  PrintDigest("other", other, 64 * kMiB);
}

// The stream that the free comes behind was destroyed with work in it.
SCENARIO(free_in_the_legacy_stream_behind_a_destroyed_stream) {
  Card card;
  CUstream destroyed = Blocking();
  const Gate gate;
  const CUdeviceptr block = Alloc(64 * kMiB), freed = Alloc(64 * kMiB);
  gate.Close(destroyed);
  OK(cuStreamDestroy(destroyed));
  OK(cuMemFreeAsync(freed, CU_STREAM_LEGACY));
  const CUstream behind = Blocking();
  OK(cuMemsetD8Async(block, 1, 16, behind));
  CUresult result = CUDA_ERROR_NOT_READY;
  for (int i = 0; i < 40 && result == CUDA_ERROR_NOT_READY; ++i) result = cuStreamQuery(behind);
  Print("behind", result);
  gate.Open();
  OK(cuCtxSynchronize());
}
