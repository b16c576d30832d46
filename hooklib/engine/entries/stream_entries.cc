// Streams, captures, synchronisation and contexts: where the engine learns which work is done and which handles are
// gone.
#include <map>
#include <optional>

#include "common/mutex.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/captures.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/failures.h"
#include "hooklib/engine/device/green_contexts.h"
#include "hooklib/engine/device/unmanaged.h"
#include "hooklib/engine/device/virtual_memory.h"
#include "hooklib/engine/execute/value_waits.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/captured_calls.h"
#include "hooklib/engine/observe/library_launches.h"
#include "hooklib/engine/observe/params.h"
#include "hooklib/engine/observe/trace_recording.h"

namespace sluice {

namespace {

// The application waited: all work that was queued before is done, which saves queries.
template <typename Wait>
CUresult Synchronize(CUstream handle, bool ptsz, Wait wait) {
  Stream* stream = FindStream(handle, ptsz);
  const uint64_t seq = stream ? stream->seq.load(std::memory_order_acquire) : 0;
  const CUresult result = wait();
  if (stream) NoteAnswer(stream->owner, result);
  if (stream && result == CUDA_SUCCESS) {
    {
      DeviceLock lock(stream->device->mutex);
      if (stream->completed < seq) stream->completed = seq;
      stream->device->residency.NoteHostSync();
      stream->device->DropExcessDuplicates();
      if (Recording()) {
        DrainTimers();
        g_recorder->StreamSync(TraceStream(*stream));
      }
    }
    stream->device->ReturnArenas();
  }
  return result;
}

// `named`: the context that is waited for; null: the current one.
template <typename Wait>
CUresult SynchronizeContext(CUcontext named, Wait wait) {
  CUcontext context = nullptr;
  Device* device = nullptr;
  std::optional<ContextScope> scope;
  if (named) scope.emplace(named);
  if (!scope || scope->is_current()) device = CurrentDevice(&context);
  scope.reset();  // the driver's call is the application's
  std::vector<std::pair<Stream*, uint64_t>> before;
  if (device) {
    DeviceLock lock(device->mutex);
    for (const auto& stream : device->streams) {
      if (stream->context && stream->context->handle == context) before.emplace_back(stream.get(), stream->seq.load());
    }
  }
  const CUresult result = wait();
  if (device) NoteAnswer(context, result);
  if (result == CUDA_SUCCESS && device) {
    DeviceLock lock(device->mutex);
    for (const auto& [stream, seq] : before) {
      if (stream->completed < seq) stream->completed = seq;
    }
    device->residency.NoteHostSync();
    device->DropExcessDuplicates();
    if (Recording()) {
      DrainTimers();
      g_recorder->DeviceSync();
    }
  }
  if (result == CUDA_SUCCESS && device) device->ReturnArenas();
  return result;
}

// As TraceStream: default streams by CUDA's own names for them.
uint64_t CapturedStream(CUstream stream, bool ptsz) {
  return reinterpret_cast<uintptr_t>(stream || !ptsz ? stream : CU_STREAM_PER_THREAD);
}

template <typename Begin>
CUresult BeginCapture(CUstream stream, bool ptsz, CUstreamCaptureMode mode, Begin begin) {
  const CUstream handle = stream || !ptsz ? stream : CU_STREAM_PER_THREAD;
  FindStream(stream, ptsz);  // a stream that is first met while it is captured stays unknown
  // Before the call, so that no engine call of another thread slips between. A stream that is captured already stays
  // in the set, whatever the driver answers.
  const bool is_new = NoteCapture(handle);
  AwaitEngineCalls();
  const CUresult result = begin();
  if (result != CUDA_SUCCESS && is_new) ForgetCapture(handle);
  if (result == CUDA_SUCCESS && Recording())
    g_recorder->CaptureBegin(CapturedStream(stream, ptsz), static_cast<uint32_t>(mode));
  WantLibraryCalls();
  return result;
}

template <typename End>
CUresult EndCapture(CUstream stream, const CUgraph* out, End end) {
  const CUgraph graph = CapturedGraph(stream);
  const CUresult result = end();
  if (result == CUDA_SUCCESS && Recording())
    g_recorder->CaptureEnd(CapturedStream(stream, false), reinterpret_cast<uintptr_t>(*out));
  // An invalidated capture has ended too; only "this stream was not capturing" has not.
  if (result != CUDA_ERROR_ILLEGAL_STATE && result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED &&
      result != CUDA_ERROR_INVALID_VALUE && result != CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) {
    ForgetCapture(stream);
    SealCapture(graph, result == CUDA_SUCCESS);
    WantLibraryCalls();
  }
  return result;
}

// Bytes of device memory that one more of a limit's unit costs; 0: not known.
uint64_t BytesPerUnit(CUlimit limit, const Device& device) {
  int multiprocessors = 0, threads = 0;
  switch (limit) {
    case CU_LIMIT_MALLOC_HEAP_SIZE:
    case CU_LIMIT_PRINTF_FIFO_SIZE:
      return 1;
    case CU_LIMIT_STACK_SIZE:  // of each thread that the GPU may run at once
      g_real.cuDeviceGetAttribute(&multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device.ordinal);
      g_real.cuDeviceGetAttribute(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device.ordinal);
      return static_cast<uint64_t>(multiprocessors) * static_cast<uint64_t>(threads);
    default:
      return 0;
  }
}

// Before the driver's call: another thread may be given its handles again behind it.
void EndTransfersOf(CUcontext context) {
  ForgetFunctionsOf(context);
  for (const auto& device : Devices()) device->EndTransfersOf(context);
}

void ContextEnds(CUcontext context) {
  EndTransfersOf(context);
  for (const auto& device : Devices()) device->ContextEnds(context);
}

void ContextGone(CUcontext context) {
  ForgetCapturesOf(context);
  ForgetUnmanagedOf(context);
  ForgetFunctionsOf(context);
  value_waits::ForgetContext(context);
  virtual_memory::ForgetReservationsOf(context);
  for (const auto& device : Devices()) device->DropContext(context);
}

// How often the application has attached to the context beside its making, after `change`.
int CountAttached(CUcontext context, int change) {
  static Mutex mutex;
  static auto& counts = *new std::map<CUcontext, int>();
  MutexLock lock(mutex);
  const int count = counts[context] += change;
  if (count == 0) counts.erase(context);
  return count;
}

// How often the application, or a reservation of the engine's, has retained the primary context, after `change`.
int CountRetained(CUdevice ordinal, int change) {
  static Mutex mutex;
  static auto& counts = *new std::map<CUdevice, int>();
  MutexLock lock(mutex);
  int& count = counts[ordinal];
  count = std::max(0, count + change);
  return count;
}

// The device's primary context; null: it is not active. Retaining it shows which of the device's contexts it is.
CUcontext ActivePrimary(CUdevice ordinal) {
  RelaxedCapture relaxed;
  unsigned flags = 0;
  int active = 0;
  CUcontext context = nullptr;
  if (g_real.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) != CUDA_SUCCESS || !active ||
      g_real.cuDevicePrimaryCtxRetain(&context, ordinal) != CUDA_SUCCESS)
    return nullptr;
  if (g_real.cuDevicePrimaryCtxRelease_v2) g_real.cuDevicePrimaryCtxRelease_v2(ordinal);
  return context;
}

// `reset`: everything in it is destroyed, however often it is still retained.
template <typename Destroy>
CUresult DestroyPrimary(CUdevice ordinal, bool reset, Destroy destroy) {
  CUcontext context = nullptr;
  if (Device* const device = DeviceByOrdinal(ordinal)) {
    device->ReleasePrimary(reset);
    context = ActivePrimary(ordinal);
  }
  // A green context may outlive the last release, and so may the memory. So evictions and discards are left out then,
  // but work behind them goes on waiting.
  if (context && reset) {
    ContextEnds(context);
  } else if (context && CountRetained(ordinal, 0) <= 1) {
    EndTransfersOf(context);
  }
  const CUresult result = destroy();
  if (result == CUDA_SUCCESS && !reset) CountRetained(ordinal, -1);
  unsigned flags = 0;
  int active = 1;
  if (context && result == CUDA_SUCCESS &&
      (reset || (g_real.cuDevicePrimaryCtxGetState(ordinal, &flags, &active) == CUDA_SUCCESS && !active))) {
    ContextGone(context);
  }
  return result;
}

}  // namespace

namespace entry {

CUresult cuStreamSynchronize(CUstream stream) {
  return Synchronize(stream, false, [&] { return g_real.cuStreamSynchronize(stream); });
}
CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  return Synchronize(stream, true, [&] { return g_real.cuStreamSynchronize_ptsz(stream); });
}
CUresult cuCtxSynchronize() {
  return SynchronizeContext(nullptr, [] { return g_real.cuCtxSynchronize(); });
}
CUresult cuCtxSynchronize_v2(CUcontext context) {
  return SynchronizeContext(context, [context] { return g_real.cuCtxSynchronize_v2(context); });
}

// Streams of a library's own may wait for an event that it records here, before any work that it queues here later.
#define SLUICE_RECORD(name, parameters, arguments) \
  CUresult name parameters {                       \
    NoteQueued();                                  \
    return g_real.name arguments;                  \
  }
SLUICE_RECORD(cuEventRecord, (CUevent event, CUstream stream), (event, stream))
SLUICE_RECORD(cuEventRecord_ptsz, (CUevent event, CUstream stream), (event, stream))
SLUICE_RECORD(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags), (event, stream, flags))
SLUICE_RECORD(cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned flags), (event, stream, flags))
#undef SLUICE_RECORD

CUresult cuStreamDestroy(CUstream stream) {
  RetireStream(stream);
  return g_real.cuStreamDestroy(stream);
}
CUresult cuStreamDestroy_v2(CUstream stream) {
  RetireStream(stream);
  return g_real.cuStreamDestroy_v2(stream);
}

CUresult cuStreamBeginCapture(CUstream stream) {
  return BeginCapture(stream, false, CU_STREAM_CAPTURE_MODE_GLOBAL,
                      [&] { return g_real.cuStreamBeginCapture(stream); });
}
CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return BeginCapture(stream, true, CU_STREAM_CAPTURE_MODE_GLOBAL,
                      [&] { return g_real.cuStreamBeginCapture_ptsz(stream); });
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return BeginCapture(stream, false, mode, [&] { return g_real.cuStreamBeginCapture_v2(stream, mode); });
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return BeginCapture(stream, true, mode, [&] { return g_real.cuStreamBeginCapture_v2_ptsz(stream, mode); });
}
CUresult cuStreamBeginCaptureToGraph(CUstream s, CUgraph g, const CUgraphNode* d, const CUgraphEdgeData* e, size_t n,
                                     CUstreamCaptureMode m) {
  return BeginCapture(s, false, m, [&] { return g_real.cuStreamBeginCaptureToGraph(s, g, d, e, n, m); });
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream s, CUgraph g, const CUgraphNode* d, const CUgraphEdgeData* e,
                                          size_t n, CUstreamCaptureMode m) {
  return BeginCapture(s, true, m, [&] { return g_real.cuStreamBeginCaptureToGraph_ptsz(s, g, d, e, n, m); });
}
CUresult cuStreamBeginRecaptureToGraph(CUstream s, CUstreamCaptureMode m, CUgraph g, CUgraphRecaptureCallback ask,
                                       void* data) {
  return BeginCapture(s, false, m, [&] { return g_real.cuStreamBeginRecaptureToGraph(s, m, g, ask, data); });
}
CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream s, CUstreamCaptureMode m, CUgraph g, CUgraphRecaptureCallback ask,
                                            void* data) {
  return BeginCapture(s, true, m, [&] { return g_real.cuStreamBeginRecaptureToGraph_ptsz(s, m, g, ask, data); });
}

// Work that is captured into a command list of a graphics interface. As for a graph: nothing of the engine's own is
// queued on the stream meanwhile.
CUresult cuStreamBeginCaptureToCig(CUstream stream, CUstreamCigCaptureParams* parameters) {
  return BeginCapture(stream, false, CU_STREAM_CAPTURE_MODE_RELAXED,
                      [&] { return g_real.cuStreamBeginCaptureToCig(stream, parameters); });
}
CUresult cuStreamBeginCaptureToCig_ptsz(CUstream stream, CUstreamCigCaptureParams* parameters) {
  return BeginCapture(stream, true, CU_STREAM_CAPTURE_MODE_RELAXED,
                      [&] { return g_real.cuStreamBeginCaptureToCig_ptsz(stream, parameters); });
}
CUresult cuStreamEndCaptureToCig(CUstream stream) {
  const CUresult result = g_real.cuStreamEndCaptureToCig(stream);
  if (result == CUDA_SUCCESS) ForgetCapture(stream);
  return result;
}
CUresult cuStreamEndCaptureToCig_ptsz(CUstream stream) {
  const CUresult result = g_real.cuStreamEndCaptureToCig_ptsz(stream);
  if (result == CUDA_SUCCESS) ForgetCapture(stream ? stream : CU_STREAM_PER_THREAD);
  return result;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return EndCapture(stream, graph, [&] { return g_real.cuStreamEndCapture(stream, graph); });
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return EndCapture(stream ? stream : CU_STREAM_PER_THREAD, graph,
                    [&] { return g_real.cuStreamEndCapture_ptsz(stream, graph); });
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  const CUresult result = g_real.cuCtxEnablePeerAccess(peer, flags);
  Device* user = result == CUDA_SUCCESS ? CurrentDevice() : nullptr;
  if (user && g_real.cuCtxPushCurrent_v2(peer) == CUDA_SUCCESS) {
    Device* owner = CurrentDevice();
    CUcontext popped = nullptr;
    g_real.cuCtxPopCurrent_v2(&popped);
    if (owner) owner->AddPeer(user->ordinal);
  }
  return result;
}
CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  CUcontext context = nullptr;
  Device* const device = CurrentDevice(&context);
  const uint64_t each = device && g_real.cuCtxGetLimit ? BytesPerUnit(limit, *device) : 0;
  if (!each) return g_real.cuCtxSetLimit(limit, value);
  const auto now = [&] {
    size_t units = 0;
    return g_real.cuCtxGetLimit(&units, limit) == CUDA_SUCCESS ? uint64_t{units} : 0;
  };
  const uint64_t before = now();
  uint64_t more = 0;
  if (value > before && __builtin_mul_overflow(value - before, each, &more)) more = UINT64_MAX;
  if (more && !device->ReserveUnmanaged(more)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = g_real.cuCtxSetLimit(limit, value);
  device->NoteLimit(context, static_cast<int64_t>((now() - before) * each), more);  // as the driver rounds it
  return result;
}

CUresult cuCtxDestroy_v2(CUcontext context) {
  ContextEnds(context);
  const CUresult result = g_real.cuCtxDestroy_v2(context);
  if (result == CUDA_SUCCESS) ContextGone(context);
  return result;
}
CUresult cuCtxDestroy(CUcontext context) {
  ContextEnds(context);
  const CUresult result = g_real.cuCtxDestroy(context);
  if (result == CUDA_SUCCESS) ContextGone(context);
  return result;
}
// An attached context is destroyed by its last detach.
CUresult cuCtxAttach(CUcontext* context, unsigned flags) {
  const CUresult result = g_real.cuCtxAttach(context, flags);
  if (result == CUDA_SUCCESS && context) CountAttached(*context, 1);
  return result;
}
CUresult cuCtxDetach(CUcontext context) {
  const bool is_last = CountAttached(context, 0) == 0;
  if (is_last) ContextEnds(context);
  const CUresult result = g_real.cuCtxDetach(context);
  if (result != CUDA_SUCCESS) return result;
  if (is_last) {
    ContextGone(context);
  } else {
    CountAttached(context, -1);
  }
  return result;
}
CUresult cuCtxFromGreenCtx(CUcontext* context, CUgreenCtx green) {
  const CUresult result = g_real.cuCtxFromGreenCtx(context, green);
  if (result == CUDA_SUCCESS && context) NoteGreenContext(*context, green);
  return result;
}
CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  const CUcontext context = ContextOfGreen(green);
  if (context) {
    for (const auto& device : Devices()) device->EndGreenContext(context);
  }
  // A primary context that nobody retains ends with its last green one.
  std::map<CUdevice, CUcontext> primaries;
  for (const auto& device : Devices()) {
    const CUcontext primary = CountRetained(device->ordinal, 0) == 0 ? ActivePrimary(device->ordinal) : nullptr;
    if (primary) primaries[device->ordinal] = primary;
  }
  for (const auto& [ordinal, primary] : primaries) EndTransfersOf(primary);
  const CUresult result = g_real.cuGreenCtxDestroy(green);
  if (result != CUDA_SUCCESS) return result;
  if (context) {
    ForgetCapturesOf(context);
    ForgetGreenContext(green);
  }
  for (const auto& [ordinal, primary] : primaries) {
    if (!ActivePrimary(ordinal)) ContextGone(primary);
  }
  return result;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice ordinal) {
  const CUresult result = g_real.cuDevicePrimaryCtxRetain(context, ordinal);
  if (result == CUDA_SUCCESS) CountRetained(ordinal, 1);
  return result;
}
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
  // NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): the application has found it in this driver
  return DestroyPrimary(ordinal, false, [&] { return g_real.cuDevicePrimaryCtxRelease_v2(ordinal); });
}
CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal) {
  return DestroyPrimary(ordinal, false, [&] { return g_real.cuDevicePrimaryCtxRelease(ordinal); });
}
CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
  return DestroyPrimary(ordinal, true, [&] { return g_real.cuDevicePrimaryCtxReset_v2(ordinal); });
}
CUresult cuDevicePrimaryCtxReset(CUdevice ordinal) {
  return DestroyPrimary(ordinal, true, [&] { return g_real.cuDevicePrimaryCtxReset(ordinal); });
}

}  // namespace entry
}  // namespace sluice
