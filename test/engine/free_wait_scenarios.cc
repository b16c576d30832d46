// cuMemFree waits for the work that the block's context holds at the call; a free in a stream's order is part of a
// barrier.
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

#include "test/engine/green.h"
#include "test/engine/host_flag.h"
#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

CUstream Blocking() {
  CUstream stream = nullptr;
  OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
  return stream;
}

// Whether a free returns behind the opening of a gate before which `stream` waits.
void FreeBehind(const char* what, const HostFlag& gate, CUstream stream) {
  const CUdeviceptr block = Alloc(64 * kMiB);
  gate.MakeWait(stream);
  Print(what, WaitsFor(gate, [&] { return cuMemFree(block); }) ? 1 : 0);
  OK(cuCtxSynchronize());
}

// Whether a free in `freed_in` returns behind the opening of a gate before which the stream holds a copy.
bool FreeWaitsForCopy(CUcontext queued_in, CUstream stream, CUdeviceptr to, CUdeviceptr from, CUcontext freed_in) {
  OK(cuCtxSetCurrent(freed_in));
  const CUdeviceptr block = Alloc(32 * kMiB);
  OK(cuCtxSetCurrent(queued_in));
  const HostFlag gate;
  gate.MakeWait(stream);
  OK(cuMemcpyDtoDAsync(to, from, 32 * kMiB, stream));
  const bool waits = WaitsFor(gate, [&] { return cuMemFree(block); });
  OK(cuStreamSynchronize(stream));
  return waits;
}

}  // namespace

// The memory belongs to the primary context, whose work a green context's is.
SCENARIO(free_waits_for_green_contexts) {
  Card card(0);
  const CUgreenCtx green = MakeGreen(0);
  const CUstream stream = GreenStream(green);
  FreeBehind("green", HostFlag(), stream);
  FreeBehind("own", HostFlag(), card.Stream());
  FreeBehind("blocking", HostFlag(), Blocking());
  FreeBehind("legacy", HostFlag(), CU_STREAM_LEGACY);
  OK(cuGreenCtxDestroy(green));
}

// A copy runs in the context of its source; without peer access from there to the other GPU it has a part in the
// destination's, too (two H200s, driver 580). Any free in such a context waits for it.
SCENARIO(free_waits_for_copies_of_other_contexts) {
  enum Where { kFirst, kSecond, kOther };  // GPU 0; another context there; GPU 1
  struct Case {
    Where stream, from, to, freed;
    bool waits, waits_with_access;
  };
  constexpr Case kCases[] = {
      {kOther, kFirst, kOther, kFirst, true, true},     {kOther, kOther, kFirst, kFirst, true, false},
      {kFirst, kFirst, kOther, kOther, true, false},    {kFirst, kOther, kFirst, kOther, true, true},
      {kOther, kFirst, kFirst, kFirst, true, true},     {kSecond, kFirst, kSecond, kFirst, true, true},
      {kSecond, kSecond, kFirst, kFirst, false, false}, {kSecond, kFirst, kFirst, kFirst, true, true},
      {kFirst, kFirst, kSecond, kSecond, false, false}, {kFirst, kSecond, kFirst, kSecond, true, true},
  };
  Card first(0);
  CUcontext contexts[] = {first.context, nullptr, nullptr};
  OK(CreateContext(&contexts[kSecond], 0));
  OK(cuDevicePrimaryCtxRetain(&contexts[kOther], 1));
  CUdeviceptr from[3], to[3];
  CUstream streams[3];
  for (int i = 0; i < 3; ++i) {
    OK(cuCtxSetCurrent(contexts[i]));
    from[i] = Alloc(32 * kMiB);
    to[i] = Alloc(32 * kMiB);
    OK(cuMemsetD8(from[i], static_cast<unsigned char>(i + 1), 32 * kMiB));
    OK(cuCtxSynchronize());
    streams[i] = first.Stream();
  }
  for (const bool has_access : {false, true}) {
    if (has_access) {
      OK(cuCtxSetCurrent(contexts[kFirst]));
      OK(cuCtxEnablePeerAccess(contexts[kOther], 0));
      EXPECT(cuCtxEnablePeerAccess(contexts[kOther], 0) == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
      OK(cuCtxSetCurrent(contexts[kOther]));
      OK(cuCtxEnablePeerAccess(contexts[kFirst], 0));
    }
    for (const Case& one : kCases) {
      const bool waits =
          FreeWaitsForCopy(contexts[one.stream], streams[one.stream], to[one.to], from[one.from], contexts[one.freed]);
      EXPECT(waits == (has_access ? one.waits_with_access : one.waits));
      PrintDigest("copy", to[one.to], 32 * kMiB);
    }
  }
  OK(cuDevicePrimaryCtxRelease(1));
}

// Access is of two contexts, and ends: the destination's part of a copy depends on it.
SCENARIO(access_of_another_gpu_ends) {
  Card first(0);
  CUcontext beside = nullptr, other = nullptr;
  OK(CreateContext(&beside, 0));
  OK(cuDevicePrimaryCtxRetain(&other, 1));
  OK(cuCtxSetCurrent(other));
  const CUdeviceptr to = Alloc(32 * kMiB);
  OK(cuCtxSetCurrent(first.context));
  const CUdeviceptr from = Alloc(32 * kMiB);
  const CUstream stream = first.Stream();
  OK(cuMemsetD8(from, 7, 32 * kMiB));
  OK(cuCtxSynchronize());
  const auto waits = [&] { return FreeWaitsForCopy(first.context, stream, to, from, other); };
  EXPECT(waits());
  OK(cuCtxSetCurrent(beside));
  OK(cuCtxEnablePeerAccess(other, 0));
  EXPECT(waits());
  OK(cuCtxSetCurrent(first.context));
  OK(cuCtxEnablePeerAccess(other, 0));
  EXPECT(!waits());
  OK(cuCtxSetCurrent(first.context));
  OK(cuCtxDisablePeerAccess(other));
  EXPECT(cuCtxDisablePeerAccess(other) == CUDA_ERROR_PEER_ACCESS_NOT_ENABLED);
  EXPECT(waits());
  PrintDigest("copy", to, 32 * kMiB);
  OK(cuDevicePrimaryCtxRelease(1));
}

// Memory of a pool goes back to the driver only when that waits for no copy.
SCENARIO(synchronization_waits_for_no_copy_of_another_context) {
  Card first(0);
  CUcontext other = nullptr;
  OK(cuDevicePrimaryCtxRetain(&other, 1));
  const CUstream stream = first.Stream();
  CUdeviceptr pooled = 0;
  OK(cuMemAllocAsync(&pooled, kGiB, stream));
  const CUdeviceptr from = Alloc(32 * kMiB);
  OK(cuMemsetD8(from, 7, 32 * kMiB));
  OK(cuCtxSynchronize());
  OK(cuCtxSetCurrent(other));
  const CUdeviceptr to = Alloc(32 * kMiB);
  const CUstream copying = first.Stream();
  const HostFlag gate;
  gate.MakeWait(copying);
  OK(cuMemcpyDtoDAsync(to, from, 32 * kMiB, copying));
  OK(cuCtxSetCurrent(first.context));
  OK(cuMemFreeAsync(pooled, stream));
  EXPECT(!WaitsFor(gate, [&] { return cuStreamSynchronize(stream); }, 200'000));
  OK(cuStreamSynchronize(copying));
  PrintDigest("copy", to, 32 * kMiB);
  OK(cuDevicePrimaryCtxRelease(1));
}

// Contexts end whose copies a free of another thread waits for.
SCENARIO(contexts_end_beside_frees_that_wait_for_their_copies) {
  Card first(0);
  const CUdeviceptr from = Alloc(8 * kMiB);
  OK(cuMemsetD8(from, 7, 8 * kMiB));
  OK(cuCtxSynchronize());
  std::atomic<bool> is_over{false};
  std::vector<std::thread> freeing;
  for (int i = 0; i < 2; ++i) {
    freeing.emplace_back([&] {
      OK(cuCtxSetCurrent(first.context));
      while (!is_over) OK(cuMemFree(Alloc(4 * kMiB)));
    });
  }
  for (int i = 0; i < 60; ++i) {
    CUcontext other = nullptr;
    OK(CreateContext(&other, i % 2));
    const CUdeviceptr to = Alloc(8 * kMiB);
    const CUstream stream = first.Stream();
    for (int k = 0; k < 8; ++k) OK(cuMemcpyDtoDAsync(to, from, 8 * kMiB, stream));
    if (i % 3 == 0) OK(cuStreamSynchronize(stream));
    OK(cuCtxDestroy(other));
  }
  is_over = true;
  for (std::thread& thread : freeing) thread.join();
  PrintDigest("from", from, 8 * kMiB);
}

// The other GPU's primary context ends with its last release, and its access, and begins again.
SCENARIO(frees_wait_for_copies_of_a_primary_context_that_began_again) {
  Card first(0);
  const CUdeviceptr from = Alloc(32 * kMiB);
  OK(cuMemsetD8(from, 7, 32 * kMiB));
  OK(cuCtxSynchronize());
  for (int i = 0; i < 4; ++i) {
    CUcontext other = nullptr;
    OK(cuDevicePrimaryCtxRetain(&other, 1));
    OK(cuCtxSetCurrent(other));
    const CUdeviceptr to = Alloc(32 * kMiB);
    const CUstream stream = first.Stream();
    EXPECT(FreeWaitsForCopy(other, stream, to, from, first.context));
    OK(cuCtxSetCurrent(first.context));
    const CUstream own = first.Stream();
    EXPECT(FreeWaitsForCopy(first.context, own, to, from, other));
    OK(cuCtxSetCurrent(first.context));
    OK(cuCtxEnablePeerAccess(other, 0));
    EXPECT(!FreeWaitsForCopy(first.context, own, to, from, other));
    OK(cuCtxSetCurrent(other));
    OK(cuMemcpyDtoDAsync(to, from, 32 * kMiB, stream));
    PrintDigest("copy", to, 32 * kMiB);
    OK(cuDevicePrimaryCtxRelease(1));
    OK(cuCtxSetCurrent(first.context));
    OK(cuMemFree(Alloc(32 * kMiB)));
  }
}

// The block is freed, and its address given out and written again, right behind the call that copies it to another GPU.
SCENARIO(freed_behind_a_copy_of_another_gpu) {
  Card first(0);
  CUcontext second = nullptr;
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  std::vector<CUdeviceptr> from, to;
  for (uint32_t i = 0; i < 6; ++i) {
    OK(cuCtxSetCurrent(first.context));
    from.push_back(Alloc(16 * kMiB));
    OK(cuMemsetD8(from[i], static_cast<unsigned char>(i + 1), 16 * kMiB));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(second));
    to.push_back(Alloc(16 * kMiB));
  }
  const CUstream stream = first.Stream();
  for (uint32_t i = 0; i < 6; ++i) {
    OK(cuCtxSetCurrent(second));
    OK(cuMemcpyDtoDAsync(to[i], from[i], 16 * kMiB, stream));
    OK(cuMemFree(from[i]));
    OK(cuCtxSetCurrent(first.context));
    from[i] = Alloc(16 * kMiB);
    OK(cuMemsetD8(from[i], static_cast<unsigned char>(100 + i), 16 * kMiB));
    OK(cuCtxSynchronize());
  }
  OK(cuStreamSynchronize(stream));
  for (uint32_t i = 0; i < 6; ++i) PrintDigest("copy", to[i], 16 * kMiB);
  OK(cuDevicePrimaryCtxRelease(1));
}

// Work that another thread queues meanwhile is not waited for: it may wait for this thread.
SCENARIO(free_waits_for_no_later_work) {
  Card card;
  const CUstream busy = Blocking(), later = card.Stream();
  const HostFlag first, second;
  const CUdeviceptr block = Alloc(64 * kMiB), other = Alloc(64 * kMiB);
  first.MakeWait(busy);
  OK(cuMemsetD8Async(other, 1, 64 * kMiB, CU_STREAM_LEGACY));
  std::thread queueing([&] {
    OK(cuCtxSetCurrent(card.context));
    usleep(50'000);
    second.MakeWait(later);
    first.Set(1);
  });
  OK(cuMemFree(block));
  second.Set(1);
  queueing.join();
  OK(cuCtxSynchronize());
  PrintDigest("other", other, 64 * kMiB);
}

// The stream that the free comes behind was destroyed with work in it.
SCENARIO(free_in_the_legacy_stream_behind_a_destroyed_stream) {
  Card card;
  CUstream destroyed = Blocking();
  const HostFlag gate;
  const CUdeviceptr block = Alloc(64 * kMiB), freed = Alloc(64 * kMiB);
  gate.MakeWait(destroyed);
  OK(cuStreamDestroy(destroyed));
  OK(cuMemFreeAsync(freed, CU_STREAM_LEGACY));
  const CUstream behind = Blocking();
  OK(cuMemsetD8Async(block, 1, 16, behind));
  CUresult result = CUDA_ERROR_NOT_READY;
  for (int i = 0; i < 40 && result == CUDA_ERROR_NOT_READY; ++i) result = cuStreamQuery(behind);
  Print("behind", result);
  gate.Set(1);
  OK(cuCtxSynchronize());
}

// Memory of another context could go back to the driver, which would wait for that context's work. The memory of the
// context that is waited for goes back.
SCENARIO(free_waits_for_no_other_context) {
  Card card;
  const CUstream idle = card.Stream();
  const CUdeviceptr own = Alloc(64 * kMiB), large = Alloc(kGiB);
  OK(cuMemFreeAsync(large, idle));
  CUcontext second = nullptr;
  OK(CreateContext(&second, 0));
  const CUstream busy = card.Stream();
  const CUdeviceptr freed = Alloc(kGiB);
  OK(cuMemFreeAsync(freed, busy));
  const CUdeviceptr kept = Alloc(2 * kGiB);  // no part of that
  const HostFlag gate;
  gate.MakeWait(busy);
  OK(cuMemsetD8Async(kept, 1, 64 * kMiB, busy));
  OK(cuCtxSetCurrent(card.context));
  const auto held = [&] { return card.Stats(0).managed_requested_bytes; };
  const uint64_t before = held();
  OK(cuStreamSynchronize(idle));
  if (Budget() != 0) EXPECT(held() + kGiB <= before);
  OK(cuMemFree(own));
  gate.Set(1);
  OK(cuCtxSetCurrent(second));
  OK(cuCtxSynchronize());
  if (Budget() != 0) EXPECT(held() + 2 * kGiB <= before);
  PrintDigest("kept", kept, 64 * kMiB);
}

// Memory is freed without a context as with one.
SCENARIO(freed_without_a_context) {
  Card card;
  CUstream s = card.Stream();
  constexpr uint64_t kBytes = 40 * kMiB;
  size_t before = 0, after = 0, total = 0;
  OK(cuMemGetInfo(&before, &total));
  for (int i = 0; i < 20; ++i) {
    const CUdeviceptr blocks[] = {Alloc(kBytes), Alloc(1000), Alloc(3 * kMiB)};
    CUdeviceptr managed = 0;
    OK(cuMemAllocManaged(&managed, kBytes, CU_MEM_ATTACH_GLOBAL));
    card.Launch(s, {Write(blocks[0], kBytes), Write(managed, kBytes)});
    OK(cuCtxSetCurrent(nullptr));
    for (const CUdeviceptr block : blocks) OK(cuMemFree(block));
    OK(cuMemFree(managed));
    EXPECT(cuMemFree(0x10) == CUDA_ERROR_INVALID_CONTEXT);
    OK(cuCtxSetCurrent(card.context));
  }
  OK(cuMemGetInfo(&after, &total));
  EXPECT(after + kBytes > before);
}
