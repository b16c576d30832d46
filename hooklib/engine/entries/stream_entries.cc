// Streams, captures and synchronisation: where the engine learns which work is done.
#include <optional>

#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/captures.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/failures.h"
#include "hooklib/engine/device/green_contexts.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/captured_calls.h"
#include "hooklib/engine/observe/library_launches.h"
#include "hooklib/engine/observe/trace_recording.h"

namespace sluice {

namespace {

// The application waited: all work that was queued before is done, which saves queries.
template <typename Wait>
CUresult Synchronize(CUstream handle, bool ptsz, Wait wait) {
  Stream* stream = FindStream(handle, ptsz, false);
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
      if (stream->context && stream->handle && stream->context->handle == context)
        before.emplace_back(stream.get(), stream->seq.load());
    }
  }
  const std::optional<CUresult> awaited = device ? device->AwaitApplication(context) : std::nullopt;
  const CUresult result = awaited ? *awaited : wait();
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

// `wait`: the driver's call, which judges wrong arguments, and captures of the context.
template <typename Wait>
CUresult WaitInContext(CUcontext context, CUevent event, Wait wait) {
  {
    const ContextScope scope(context);
    Device* const device = context && event && scope.is_current() ? CurrentDevice() : nullptr;
    if (const auto result = device ? device->Gate(context, event) : std::nullopt) return *result;
  }
  return wait();
}

// As TraceStream: default streams by CUDA's own names for them.
uint64_t CapturedStream(CUstream stream, bool ptsz) {
  return reinterpret_cast<uintptr_t>(stream || !ptsz ? stream : CU_STREAM_PER_THREAD);
}

template <typename Begin>
CUresult BeginCapture(CUstream stream, bool ptsz, CUstreamCaptureMode mode, Begin begin) {
  const CUstream handle = stream || !ptsz ? stream : CU_STREAM_PER_THREAD;
  // A stream that is first met while it is captured stays unknown.
  if (Stream* const known = FindStream(stream, ptsz)) NoteWorkBeforeCapture(known);
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
CUresult cuCtxWaitEvent(CUcontext context, CUevent event) {
  return WaitInContext(context, event, [&] { return g_real.cuCtxWaitEvent(context, event); });
}
CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
  CUcontext context = nullptr;
  if (green && g_real.cuCtxFromGreenCtx(&context, green) == CUDA_SUCCESS) NoteGreenContext(context, green);
  return WaitInContext(context, event, [&] { return g_real.cuGreenCtxWaitEvent(green, event); });
}

CUresult cuCtxSynchronize_v2(CUcontext context) {
  return SynchronizeContext(context, [context] { return g_real.cuCtxSynchronize_v2(context); });
}

// Streams of a library's own may wait for an event that it records here, before any work that it queues here later. The
// event waits for the events that its context awaits, also in a stream without work (an H100).
#define SLUICE_RECORD_OF(name, parameters, arguments, flavour) \
  CUresult name parameters {                                   \
    NoteQueued();                                              \
    if (AnyGates()) FindStream(stream, flavour);               \
    return g_real.name arguments;                              \
  }
#define SLUICE_RECORD(name, parameters, arguments)     \
  SLUICE_RECORD_OF(name, parameters, arguments, false) \
  SLUICE_RECORD_OF(name##_ptsz, parameters, arguments, true)
SLUICE_RECORD(cuEventRecord, (CUevent event, CUstream stream), (event, stream))
SLUICE_RECORD(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags), (event, stream, flags))
#undef SLUICE_RECORD_OF
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

}  // namespace entry
}  // namespace sluice
