// Work that waits for other contexts' work, other GPUs' streams, captures, and the legacy stream.
#include <chrono>
#include <semaphore>
#include <thread>

#include "test/engine/host_flag.h"
#include "test/engine/scenario.h"

using namespace scenario;  // NOLINT(google-build-using-namespace)

namespace {

CUevent Event(unsigned flags) {
  CUevent event = nullptr;
  OK(cuEventCreate(&event, flags));
  return event;
}

}  // namespace

// All future work of the context waits, the engine's own included. Calls that return at once without the hook must not
// wait for that work.
SCENARIO(contexts_wait_for_an_event) {
  Card card;
  const CUstream gated = card.Stream(), working = card.Stream();
  const HostFlag gate;
  const CUdeviceptr old = Alloc(64 * kMiB);
  OK(cuMemsetD8Async(old, 1, 64 * kMiB, working));
  OK(cuCtxSynchronize());
  gate.MakeWait(gated);
  const CUevent event = Event(CU_EVENT_DISABLE_TIMING);
  OK(cuEventRecord(event, gated));
  OK(cuCtxWaitEvent(card.context, event));
  const CUdeviceptr fresh = Alloc(64 * kMiB), other = Alloc(200 * kMiB);
  CUdeviceptr pooled = 0;
  OK(cuMemAllocAsync(&pooled, 64 * kMiB, working));
  for (const CUdeviceptr block : {fresh, other, pooled, old}) card.Named(working, {Update(block, 64 * kMiB)});
  OK(cuMemFreeAsync(pooled, working));
  Print("waits", cuStreamQuery(working));
  gate.Set(1);
  PrintDigest("old", old, 64 * kMiB);
  PrintDigest("fresh", fresh, 64 * kMiB);
}

// The same with memory that was freed before, so that it is discarded and populated anew.
SCENARIO(contexts_wait_for_an_event_with_freed_memory) {
  Card card;
  const CUstream gated = card.Stream(), working = card.Stream();
  const HostFlag gate;
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(Alloc(64 * kMiB));
  for (int i = 0; i < 3; ++i) {
    for (const CUdeviceptr block : blocks) card.Named(working, {Update(block, 64 * kMiB)});
  }
  OK(cuCtxSynchronize());
  for (size_t i = 0; i < 4; ++i) OK(cuMemFree(blocks[i]));
  gate.MakeWait(gated);
  const CUevent event = Event(CU_EVENT_DISABLE_TIMING);
  OK(cuEventRecord(event, gated));
  OK(cuCtxWaitEvent(card.context, event));
  for (size_t i = 0; i < 4; ++i) blocks[i] = Alloc(64 * kMiB);
  for (const CUdeviceptr block : blocks) card.Named(working, {Write(block, 64 * kMiB)});
  gate.Set(1);
  for (const CUdeviceptr block : blocks) PrintDigest("block", block, 64 * kMiB);
}

// The stream's wait for a value in device memory is served by a thread that copies the value.
SCENARIO(contexts_wait_for_an_event_beside_waits_for_values) {
  Card card;
  const CUstream gated = card.Stream(), waiting = card.Stream(), working = card.Stream();
  const HostFlag gate;
  const CUdeviceptr block = Alloc(64 * kMiB), done = Alloc(64 * kMiB);
  OK(cuMemsetD8Async(block, 0, 64 * kMiB, working));
  OK(cuCtxSynchronize());
  OK(cuStreamWaitValue32(waiting, block, 1, CU_STREAM_WAIT_VALUE_GEQ));
  gate.MakeWait(gated);
  const CUevent event = Event(CU_EVENT_DISABLE_TIMING);
  OK(cuEventRecord(event, gated));
  OK(cuCtxWaitEvent(card.context, event));
  OK(cuStreamWriteValue32(working, block, 1, 0));
  OK(cuMemsetD8Async(done, 7, 64 * kMiB, waiting));
  Print("waits", cuStreamQuery(waiting));
  gate.Set(1);
  PrintDigest("done", done, 64 * kMiB);
}

// Memory of one GPU is freed in a stream of another one, which reads it later.
SCENARIO(freed_in_a_stream_of_another_gpu) {
  CUcontext contexts[2]{};
  OK(cuInit(0));
  for (int i = 0; i < 2; ++i) OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
  OK(cuCtxSetCurrent(contexts[1]));
  CUstream other = nullptr;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  const CUdeviceptr copy = Alloc(64 * kMiB);
  OK(cuCtxSetCurrent(contexts[0]));
  Card card(0);
  const HostFlag gate;
  const CUstream own = card.Stream();
  CUdeviceptr block = 0, next = 0;
  OK(cuMemAllocAsync(&block, 64 * kMiB, own));
  OK(cuMemsetD8Async(block, 5, 64 * kMiB, own));
  OK(cuStreamSynchronize(own));
  OK(cuCtxSetCurrent(contexts[1]));
  gate.MakeWait(other);
  OK(cuMemcpyPeerAsync(copy, contexts[1], block, contexts[0], 64 * kMiB, other));
  OK(cuMemFreeAsync(block, other));
  OK(cuCtxSetCurrent(contexts[0]));
  OK(cuMemAllocAsync(&next, 64 * kMiB, own));
  OK(cuMemsetD8Async(next, 6, 64 * kMiB, own));
  OK(cuStreamSynchronize(own));
  OK(cuCtxSynchronize());  // waits for none of the other GPU's work
  OK(cuMemFree(Alloc(64 * kMiB)));
  gate.Set(1);
  OK(cuCtxSetCurrent(contexts[1]));
  OK(cuCtxSynchronize());
  std::vector<unsigned char> bytes(64);
  OK(cuMemcpyDtoH(bytes.data(), copy, bytes.size()));
  Print("copy", bytes.front());
}

// cuMemFree waits for the work that a stream got before it was captured, also where another stream's event made it part
// of the capture.
SCENARIO(free_beside_a_capture_waits_for_earlier_work) {
  Card card;
  const CUstream first = card.Stream(), joining = card.Stream();
  const CUdeviceptr block = Alloc(64 * kMiB), freed = Alloc(64 * kMiB);
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, 4096, 0));
  auto* const results = static_cast<volatile uint32_t*>(host);
  results[0] = 0;
  results[1] = 0;
  OK(cuMemsetD32(block, 7, kMiB));
  OK(cuCtxSynchronize());
  const CUstream streams[] = {first, joining};
  for (size_t i = 0; i < 2; ++i) {
    card.Launch(streams[i], {Read(block, 64 * kMiB)}, 50'000'000);
    OK(cuMemcpyDtoHAsync(static_cast<char*>(host) + 4 * i, block + 4 * i, 4, streams[i]));
  }
  OK(cuStreamBeginCapture(first, CU_STREAM_CAPTURE_MODE_RELAXED));
  const CUevent fork = Event(CU_EVENT_DISABLE_TIMING), join = Event(CU_EVENT_DISABLE_TIMING);
  OK(cuEventRecord(fork, first));
  OK(cuStreamWaitEvent(joining, fork, 0));
  OK(cuMemFree(freed));
  Print("first", results[0]);
  Print("joining", results[1]);
  OK(cuEventRecord(join, joining));
  OK(cuStreamWaitEvent(first, join, 0));
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(first, &graph));
  OK(cuCtxSynchronize());
}

// cuMemFree waits for another thread's default stream beside a capture, too, of which nothing else can be asked there.
SCENARIO(free_beside_a_capture_waits_for_other_threads) {
  Card card;
  const CUstream captured = card.Stream();
  const CUdeviceptr block = Alloc(64 * kMiB), freed = Alloc(64 * kMiB);
  void* host = nullptr;
  OK(cuMemHostAlloc(&host, 4096, 0));
  auto* const result = static_cast<volatile uint32_t*>(host);
  *result = 0;
  OK(cuMemsetD32(block, 7, kMiB));
  OK(cuCtxSynchronize());
  OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
  std::binary_semaphore queued(0), done(0);
  std::thread other([&] {
    OK(cuCtxSetCurrent(card.context));
    card.Launch(CU_STREAM_PER_THREAD, {Read(block, 64 * kMiB)}, 50'000'000);
    OK(cuMemcpyDtoHAsync(host, block, 4, CU_STREAM_PER_THREAD));
    queued.release();
    done.acquire();
  });
  queued.acquire();
  OK(cuMemFree(freed));
  Print("result", *result);
  done.release();
  other.join();
  CUgraph graph = nullptr;
  OK(cuStreamEndCapture(captured, &graph));
  OK(cuCtxSynchronize());
}

// An event that is recorded behind such a wait waits as well, in a stream without work too (an H100): a stream of
// another context may wait for it in turn.
SCENARIO(events_behind_a_context_that_waits) {
  Card card;
  constexpr uint64_t kBytes = 4 * kMiB;
  const CUstream gated = card.Stream(), reader = card.Stream();
  const HostFlag gate;
  const CUdeviceptr block = Alloc(kBytes), copy = Alloc(kBytes);
  OK(cuMemsetD8Async(block, 1, kBytes, gated));
  OK(cuCtxSynchronize());
  CUcontext second = nullptr;
  OK(CreateContext(&second, 0));
  CUstream between = nullptr;
  OK(cuStreamCreate(&between, CU_STREAM_NON_BLOCKING));
  OK(cuEventRecord(Event(0), between));  // the stream is known
  const CUevent behind = Event(0), behind_legacy = Event(0), of_context = Event(0);
  OK(cuCtxSetCurrent(card.context));
  gate.MakeWait(gated);
  OK(cuMemsetD8Async(block, 2, kBytes, gated));
  const CUevent written = Event(CU_EVENT_DISABLE_TIMING);
  OK(cuEventRecord(written, gated));
  OK(cuCtxWaitEvent(second, written));
  OK(cuCtxSetCurrent(second));
  OK(cuEventRecord(behind, between));
  OK(cuEventRecord(behind_legacy, nullptr));
  OK(cuCtxRecordEvent(second, of_context));
  OK(cuCtxSetCurrent(card.context));
  OK(cuStreamWaitEvent(reader, behind, 0));
  OK(cuMemcpyDtoDAsync(copy, block, kBytes, reader));
  Print("waits", cuEventQuery(behind));
  Print("in the legacy stream", cuEventQuery(behind_legacy));
  Print("of the context", cuEventQuery(of_context));
  gate.Set(1);
  OK(cuStreamSynchronize(reader));
  std::vector<unsigned char> bytes(kBytes);
  OK(cuMemcpyDtoH(bytes.data(), copy, kBytes));
  Print("copied", bytes[kBytes / 2]);
}

// Calls that wait for a context wait for the events that it awaits, too (an H100).
SCENARIO(waits_for_a_context_that_waits) {
  Card card;
  const CUstream gated = card.Stream();
  const HostFlag gate;
  CUcontext second = nullptr;
  OK(CreateContext(&second, 0));
  const CUdeviceptr block = Alloc(64 * kMiB);
  const auto make_wait = [&] {
    gate.Set(0);
    OK(cuCtxSetCurrent(card.context));
    gate.MakeWait(gated);
    const CUevent event = Event(CU_EVENT_DISABLE_TIMING);
    OK(cuEventRecord(event, gated));
    OK(cuCtxWaitEvent(second, event));
    OK(cuCtxSetCurrent(second));
  };
  const auto opened_by_a_thread = [&](const char* what, auto call) {
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      gate.Set(1);
    });
    OK(call());
    Print(what, __atomic_load_n(gate.value, __ATOMIC_ACQUIRE));
    opener.join();
    OK(cuCtxSetCurrent(card.context));
    OK(cuCtxSynchronize());
  };
  make_wait();
  opened_by_a_thread("synchronised", [] { return cuCtxSynchronize(); });
  make_wait();
  opened_by_a_thread("freed", [&] { return cuMemFree(block); });
}

// Memory that was freed before goes back to the driver in calls that do not wait for the context, if they would not
// wait.
SCENARIO(memory_stays_while_its_context_waits) {
  Card card;
  const CUstream working = card.Stream();
  std::array<CUdeviceptr, 3> blocks{};
  for (CUdeviceptr& block : blocks) {
    OK(cuMemAllocAsync(&block, 512 * kMiB, working));
    card.Named(working, {Write(block, 64 * kMiB, 1)});
  }
  CUcontext second = nullptr;
  OK(CreateContext(&second, 0));
  CUstream gated = nullptr, other = nullptr;
  OK(cuStreamCreate(&gated, CU_STREAM_NON_BLOCKING));
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  const CUdeviceptr small = Alloc(4 * kMiB);
  for (const CUdeviceptr block : blocks) OK(cuMemFreeAsync(block, working));
  while (cuStreamQuery(working) != CUDA_SUCCESS) simgpu_advance_host(1'000'000);
  OK(cuCtxSetCurrent(card.context));
  for (int i = 0; i < 3; ++i) Alloc(8 * kMiB);  // the freed ranges are known to be free
  OK(cuCtxSetCurrent(second));
  const HostFlag gate;
  gate.MakeWait(gated);
  const CUevent event = Event(CU_EVENT_DISABLE_TIMING);
  OK(cuEventRecord(event, gated));
  OK(cuCtxWaitEvent(card.context, event));
  for (int i = 0; i < 4; ++i) {
    OK(cuMemsetD8Async(small, 1, 4 * kMiB, other));
    OK(cuStreamSynchronize(other));
  }
  Print("waits", cuEventQuery(event));
  gate.Set(1);
  OK(cuStreamSynchronize(gated));
}
