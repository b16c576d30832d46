// Device: waits for the application's work in a context, of cuMemFree and of cuCtxSynchronize.
#include <algorithm>
#include <ctime>
#include <vector>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/device/failures.h"
#include "hooklib/engine/device/peer_copies.h"

namespace sluice {

namespace {

constexpr size_t kAwaitedBytes = 1 << 20;

CUresult AwaitEvent(CUcontext handle, CUevent event) {
  const RelaxedCapture relaxed;
  const ContextScope scope(handle);
  return scope.is_current() ? g_real.cuEventSynchronize(event) : CUDA_SUCCESS;  // it ended with its context
}

// All that the queue holds.
CUresult AwaitQueue(CUcontext handle, CUstream queue) {
  const RelaxedCapture relaxed;
  const ContextScope scope(handle);
  return scope.is_current() ? g_real.cuStreamSynchronize(queue) : CUDA_SUCCESS;
}

// All that the context holds now, green contexts' work included. False: it could not be asked. cuCtxSynchronize would
// break a capture: the driver's own cuMemFree waits as well and breaks none (H200, driver 580).
bool AwaitContext(CUcontext handle, CUresult* result) {
  const RelaxedCapture relaxed;
  const ContextScope scope(handle);
  if (!scope.is_current()) return false;
  if (g_captures.load() == 0) {
    *result = g_real.cuCtxSynchronize();
    if (*result != CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) return true;  // else one began meanwhile
    *result = CUDA_SUCCESS;
  }
  CUdeviceptr small = 0;
  if (g_real.cuMemAlloc_v2(&small, kAwaitedBytes) != CUDA_SUCCESS) return false;
  *result = g_real.cuMemFree_v2(small);
  return true;
}

}  // namespace

// Where no event of its own can be had, for 2 s, since newer work of other threads counts, too.
void DeviceStreams::AwaitByQueries(memory::Mark mark) {
  constexpr int kMaxAttempts = 100'000;
  constexpr timespec kPause{0, 20'000};
  for (int attempt = 0;; ++attempt) {
    {
      DeviceLock lock(mutex);
      const Stream* const stream = StreamById(mark.stream);
      ++poll_epoch;
      if (!stream || Done(mark)) return;
      if (mark.seq > stream->recorded && attempt >= kMaxAttempts) return;
      // Nothing can be asked about another thread's own stream, and the driver crashes where one that was destroyed is.
      const bool can_ask = !stream->per_thread() && !stream->destroyed && !IsCapturing(*stream);
      if (mark.seq > stream->recorded && !can_ask) return;
    }
    nanosleep(&kPause, nullptr);
  }
}

Context* DeviceStreams::FreedIn(memory::Va address, bool* app_managed) {
  memory::Va base = 0;
  const memory::Allocation* const allocation = live.Find(address, &base);
  if (!allocation || allocation->mapped || allocation->stream_ordered) return nullptr;
  *app_managed = allocation->app_managed;
  return OwnerOf(base, allocation->unevictable);
}

CUcontext DeviceStreams::ContextOfBlock(memory::Va address, bool* app_managed) {
  DeviceLock lock(mutex);
  const Context* const context = FreedIn(address, app_managed);
  return context ? context->handle : nullptr;
}

std::vector<DeviceStreams::AwaitedWork> DeviceStreams::CollectWork(CUcontext handle, bool* is_hidden) {
  std::vector<AwaitedWork> awaited;
  ++poll_epoch;
  const RelaxedCapture relaxed;
  bool is_barrier = false;  // an event in the legacy stream would make other streams wait for each other
  for (const auto& stream : streams) {
    if (!stream->context || !stream->handle || MemoryContext(stream->context->handle) != handle) continue;
    // Work that a stream got before its capture has an event (NoteWorkBeforeCapture).
    const bool is_captured = !stream->destroyed && IsCapturing(*stream);
    const memory::Mark mark{stream->id, is_captured ? stream->recorded : stream->seq.load()};
    if (Done(mark)) continue;
    is_barrier |= stream->blocking && !stream->legacy() && !is_captured;
    awaited.push_back({mark, stream->context, stream->context->handle, nullptr, is_captured});
  }
  for (AwaitedWork& work : awaited) {
    Stream* const stream = StreamById(work.mark.stream);
    const bool is_mine = !stream->per_thread() || stream->thread == ThisThread();
    const ContextScope scope(work.handle);
    if (work.is_captured) continue;
    if (scope.is_current() && is_mine && !stream->destroyed && !(stream->legacy() && is_barrier))
      work.event = stream->context->events.Record(stream->handle);
    *is_hidden |= !work.event && work.mark.seq > stream->recorded;
  }
  // The driver waits for the context's awaited events (cuCtxWaitEvent), too.
  for (const auto& [context_handle, context] : contexts) {
    if (!context->gate || MemoryContext(context_handle) != handle) continue;
    const ContextScope scope(context_handle);
    if (!scope.is_current() || g_real.cuEventQuery(context->gate) != CUDA_ERROR_NOT_READY) continue;
    awaited.push_back({{}, context.get(), context_handle, context->events.Record(context->gate_stream), false});
    *is_hidden |= !awaited.back().event;
  }
  return awaited;
}

CUresult DeviceStreams::AwaitWork(const std::vector<AwaitedWork>& awaited) {
  CUresult result = CUDA_SUCCESS;
  for (const AwaitedWork& work : awaited) {
    if (result != CUDA_SUCCESS) break;
    if (work.event) {
      result = AwaitEvent(work.handle, work.event);
    } else if (work.mark.stream) {
      AwaitByQueries(work.mark);
    }
  }
  return result;
}

void DeviceStreams::NoteAwaited(const std::vector<AwaitedWork>& awaited, bool is_whole) {
  for (const AwaitedWork& work : awaited) {
    Stream* const stream = StreamById(work.mark.stream);
    if (stream && (is_whole || work.event)) stream->completed = std::max(stream->completed, work.mark.seq);
  }
}

void DeviceStreams::GiveEvents(const std::vector<AwaitedWork>& awaited) {
  for (const AwaitedWork& work : awaited) {
    const auto it = contexts.find(work.handle);
    if (work.event && it != contexts.end() && it->second.get() == work.context) it->second->events.Give(work.event);
  }
}

CUresult DeviceStreams::AwaitContextOf(CUdeviceptr block) {
  CUcontext handle = nullptr;
  std::vector<AwaitedWork> awaited;
  bool is_hidden = false;
  {
    DeviceLock lock(mutex);
    memory::Va base = 0;
    bool app_managed = false;
    const Context* const owner = live.Find(block, &base) && base == block ? FreedIn(block, &app_managed) : nullptr;
    if (!owner) return CUDA_SUCCESS;
    handle = owner->handle;
    awaited = CollectWork(handle, &is_hidden);
  }
  CUresult result = CUDA_SUCCESS;
  const bool is_whole = is_hidden && AwaitContext(handle, &result);
  if (!is_whole) result = AwaitWork(awaited);
  if (result == CUDA_SUCCESS) peer_copies::Await(handle);
  NoteAnswer(handle, result);
  DeviceLock lock(mutex);
  if (result == CUDA_SUCCESS) NoteAwaited(awaited, is_whole);
  GiveEvents(awaited);
  return result != CUDA_SUCCESS ? result : FailureOf(handle);
}

std::optional<CUresult> DeviceStreams::AwaitApplication(CUcontext handle) {
  if (peer_copies::AnyPending(handle)) return std::nullopt;
  std::vector<AwaitedWork> awaited;
  CUstream housekeeping;
  {
    DeviceLock lock(mutex);
    if (g_captures.load() > 0 || MemoryContext(handle) != handle) return std::nullopt;
    ++poll_epoch;
    if (!residency.FetchesWithinBudget()) return std::nullopt;
    for (const auto& [other, context] : contexts) {
      if (other != handle && MemoryContext(other) == handle) return std::nullopt;  // a green one
    }
    const auto context = contexts.find(handle);
    if (context == contexts.end()) return std::nullopt;
    const ContextScope scope(handle);
    bool is_hidden = false;
    awaited = CollectWork(handle, &is_hidden);
    housekeeping = Housekeeping(context->second.get());
    if (is_hidden || !housekeeping) {
      GiveEvents(awaited);
      return std::nullopt;
    }
  }
  CUresult result = AwaitWork(awaited);
  // Each wait of the driver's also prints what kernels wrote by printf.
  if (result == CUDA_SUCCESS) result = AwaitQueue(handle, housekeeping);
  DeviceLock lock(mutex);
  if (result == CUDA_SUCCESS) NoteAwaited(awaited, false);
  GiveEvents(awaited);
  return result != CUDA_SUCCESS ? result : FailureOf(handle);
}

}  // namespace sluice
