// Streams, events, host functions, values in memory.
#include <algorithm>
#include <chrono>
#include <thread>

#include "ipc.h"

using simgpu::Op;
using simgpu::OpKind;
using simgpu::Sim;
using simgpu::TheDriver;

extern "C" {

CUresult cuStreamCreateWithPriority(CUstream* out, unsigned int flags, int priority) {
  BEGIN(5000);
  NEED_ARG(out != nullptr && (flags & ~static_cast<unsigned>(CU_STREAM_NON_BLOCKING)) == 0);
  NEED_CONTEXT();
  *out = simgpu::NewStreamHandle(context, flags, std::clamp(priority, -5, 0), false);
  return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* out, unsigned int flags) { return cuStreamCreateWithPriority(out, flags, 0); }

CUresult cuStreamDestroy_v2(CUstream s) {
  BEGIN(3000);
  NEED(s != nullptr && s != CU_STREAM_LEGACY && s != CU_STREAM_PER_THREAD, CUDA_ERROR_INVALID_HANDLE);
  NEED(s->magic != kOrphanMagic, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  NEED(s->magic == kStreamMagic, CUDA_ERROR_INVALID_HANDLE);
  if (simgpu::Capturing(s)) {
    s->capture->invalidated = true;
    s->capture->joined.erase(s);
  }
  s->magic = kDead;  // the handle's memory is kept: a stale one must be recognised
  s->context->streams.erase(s);
  Sim().DeleteStream(s->sim);
  return CUDA_SUCCESS;
}
CUresult cuStreamDestroy(CUstream s) { return cuStreamDestroy_v2(s); }

CUresult cuEventCreate(CUevent* out, unsigned int flags) {
  BEGIN(Sim().profile().call_host_ns);
  NEED_ARG(out != nullptr && flags <= 7);
  NEED_ARG((flags & CU_EVENT_INTERPROCESS) == 0 || (flags & CU_EVENT_DISABLE_TIMING) != 0);
  NEED_OWNER();
  auto* e = new CUevent_st;
  e->context = context;
  e->flags = flags;
  context->events.insert(e);
  *out = e;
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent e) {
  BEGIN(Sim().profile().call_host_ns);
  NEED(simgpu::ValidEvent(e), CUDA_ERROR_INVALID_HANDLE);
  e->context->events.erase(e);
  e->magic = kDead;
  e->fence.reset();
  e->capture.reset();
  return CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent e) { return cuEventDestroy_v2(e); }

CUresult cuEventQuery(CUevent e) {
  BEGIN_UNSAFE(Sim().profile().call_host_ns);
  NEED(simgpu::ValidEvent(e), CUDA_ERROR_INVALID_HANDLE);
  if (e->capture != nullptr) return simgpu::CaptureMisuse(call, nullptr, CUDA_ERROR_CAPTURED_EVENT);
  Sim().CatchUp(call.lock);
  if (e->shared != nullptr) return simgpu::IsSharedDone(e) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  if (e->fence == nullptr) return CUDA_SUCCESS;
  return e->fence->done && e->fence->time <= simgpu::SeenTime() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent e) {
  BEGIN_UNSAFE(Sim().profile().call_host_ns);
  NEED(simgpu::ValidEvent(e), CUDA_ERROR_INVALID_HANDLE);
  if (e->capture != nullptr) return simgpu::CaptureMisuse(call, nullptr, CUDA_ERROR_CAPTURED_EVENT);
  Sim().CatchUp(call.lock);
  if (e->shared != nullptr && e->fence == nullptr) {
    // Another process sets it, in its own time.
    while (!simgpu::IsSharedDone(e)) {
      call.lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      call.lock.lock();
    }
    return TheDriver().sticky;
  }
  if (e->fence == nullptr) return CUDA_SUCCESS;
  Sim().WaitFence(call.lock, simgpu::FencePtr(e->fence), "an event (cuEventSynchronize)");
  return TheDriver().sticky;
}

CUresult cuEventElapsedTime_v2(float* ms, CUevent a, CUevent b) {
  BEGIN_UNSAFE(Sim().profile().call_host_ns);
  NEED_ARG(ms != nullptr);
  NEED(simgpu::ValidEvent(a) && simgpu::ValidEvent(b), CUDA_ERROR_INVALID_HANDLE);
  NEED(a->fence != nullptr && b->fence != nullptr && (a->flags & CU_EVENT_DISABLE_TIMING) == 0 &&
           (b->flags & CU_EVENT_DISABLE_TIMING) == 0,
       CUDA_ERROR_INVALID_HANDLE);
  Sim().CatchUp(call.lock);
  if (!a->fence->done || !b->fence->done) return CUDA_ERROR_NOT_READY;
  *ms = static_cast<float>(static_cast<double>(b->fence->time - a->fence->time) / 1e6);
  return CUDA_SUCCESS;
}
CUresult cuEventElapsedTime(float* ms, CUevent a, CUevent b) { return cuEventElapsedTime_v2(ms, a, b); }

}  // extern "C"

namespace {

CUresult Record(simgpu::Call& call, CUevent e, CUstream stream) {
  NEED(simgpu::ValidEvent(e), CUDA_ERROR_INVALID_HANDLE);
  NEED(e->context == simgpu::OwnerOf(stream->context), CUDA_ERROR_INVALID_HANDLE);
  if (simgpu::Capturing(stream)) {
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    e->capture = stream->capture;
    e->captured = stream->tail;
    return CUDA_SUCCESS;
  }
  e->capture.reset();
  // The legacy stream's event covers the blocking streams' work too, and theirs comes behind the legacy stream's. One
  // without a time is nothing in a stream that has no work.
  const bool is_nothing = (e->flags & CU_EVENT_DISABLE_TIMING) != 0 && !stream->sim->Busy();
  const bool joins = stream->sim->legacy ? Sim().AnyBusy(stream->context, stream->context->card)
                                         : stream->sim->blocking && !is_nothing && stream->context->legacy->sim->Busy();
  // Behind cuCtxWaitEvent it waits as work does (an H100).
  const auto& gates = stream->sim->gates;
  const bool waits = std::any_of(gates.begin(), gates.end(), [](const auto& gate) { return !gate->done; });
  if (joins || waits) {
    simgpu::RecordShared(call, e, stream);
    Op* op = Sim().NewOp(OpKind::kFence);
    auto fence = std::make_shared<simgpu::Fence>();
    op->fence = fence;
    Sim().Submit(call.lock, stream->sim, op);
    e->fence = fence;
    return CUDA_SUCCESS;
  }
  // Before the fence: a wait for the event has then seen other processes' state change.
  simgpu::RecordShared(call, e, stream);
  e->fence = Sim().SubmitFence(call.lock, stream->sim);
  return CUDA_SUCCESS;
}

}  // namespace

ENTRY(cuEventRecord, _ptsz, (CUevent e, CUstream s), (e, s)) {
  BEGIN(Sim().profile().event_host_ns);
  NEED_QUEUE(s);
  return Record(call, e, stream);
}

ENTRY(cuEventRecordWithFlags, _ptsz, (CUevent e, CUstream s, unsigned int flags), (e, s, flags)) {
  BEGIN(Sim().profile().event_host_ns);
  NEED_ARG(flags <= 1);
  NEED_QUEUE(s);
  if (flags == CU_EVENT_RECORD_EXTERNAL && simgpu::Capturing(stream)) {
    CUgraphNode n = simgpu::AddNode(stream->capture->graph, CU_GRAPH_NODE_TYPE_EVENT_RECORD, stream->tail.data(),
                                    stream->tail.size());
    n->event = e;
    stream->tail = {n};
    return CUDA_SUCCESS;
  }
  return Record(call, e, stream);
}

ENTRY(cuStreamWaitEvent, _ptsz, (CUstream s, CUevent e, unsigned int flags), (s, e, flags)) {
  BEGIN(Sim().profile().event_host_ns);
  NEED_ARG(flags <= 1);
  NEED_QUEUE(s);
  NEED(simgpu::ValidEvent(e), CUDA_ERROR_INVALID_HANDLE);
  if (e->capture != nullptr) {
    if (simgpu::Capturing(stream) && stream->capture != e->capture) {
      return simgpu::CaptureMisuse(call, stream, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    if (stream->sim->legacy) return simgpu::CaptureMisuse(call, stream, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    NEED(!e->capture->invalidated, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    if (!simgpu::Capturing(stream)) {
      stream->capture = e->capture;
      stream->tail.clear();
      e->capture->joined.insert(stream);
    }
    for (CUgraphNode n : e->captured) {
      if (std::find(stream->tail.begin(), stream->tail.end(), n) == stream->tail.end()) stream->tail.push_back(n);
    }
    return CUDA_SUCCESS;
  }
  if (simgpu::Capturing(stream)) {
    if (flags == CU_EVENT_WAIT_EXTERNAL) {
      CUgraphNode n = simgpu::AddNode(stream->capture->graph, CU_GRAPH_NODE_TYPE_WAIT_EVENT, stream->tail.data(),
                                      stream->tail.size());
      n->event = e;
      stream->tail = {n};
      return CUDA_SUCCESS;
    }
    return simgpu::CaptureMisuse(call, stream, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  }
  if (simgpu::WaitShared(call, e, stream)) return CUDA_SUCCESS;
  if (e->fence != nullptr) Sim().SubmitWait(call.lock, stream->sim, e->fence);
  // A barrier in the legacy stream, even where the event is over (experiments/probes/questions_barriers.h).
  if (stream->sim->legacy && Sim().AnyBusy(stream->context, stream->context->card)) {
    Op* op = Sim().NewOp(OpKind::kFence);
    op->fence = std::make_shared<simgpu::Fence>();
    Sim().Submit(call.lock, stream->sim, op);
  }
  return CUDA_SUCCESS;
}

ENTRY(cuStreamSynchronize, _ptsz, (CUstream s), (s)) {
  BEGIN(Sim().profile().call_host_ns);
  NEED_UNSAFE_QUEUE(s);
  if (simgpu::Capturing(stream)) return simgpu::CaptureMisuse(call, stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  Sim().CatchUp(call.lock);
  if (stream->sim->legacy) {
    for (CUstream other : stream->context->streams) {
      if (other->sim->blocking) Sim().WaitStream(call.lock, other->sim, "the legacy stream (cuStreamSynchronize)");
    }
  } else {
    Sim().WaitStream(call.lock, stream->sim, "a stream (cuStreamSynchronize)");
  }
  return TheDriver().sticky;
}

ENTRY(cuStreamQuery, _ptsz, (CUstream s), (s)) {
  BEGIN(Sim().profile().call_host_ns);
  NEED_UNSAFE_QUEUE(s);
  if (simgpu::Capturing(stream)) return simgpu::CaptureMisuse(call, stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  Sim().CatchUp(call.lock);
  // Another thread's wait may have run the stream's work to its end, which is later than this thread's time.
  const bool is_over =
      !stream->sim->Busy() && stream->sim->free_at - Sim().profile().kernel_gap_ns <= simgpu::SeenTime();
  return is_over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

ENTRY(cuStreamGetCtx, _ptsz, (CUstream s, CUcontext* out), (s, out)) {
  BEGIN(50);
  NEED_ARG(out != nullptr);
  NEED_STREAM(s);
  stream->context->converted = true;
  *out = stream->context;
  return CUDA_SUCCESS;
}

ENTRY(cuStreamGetCtx_v2, _ptsz, (CUstream s, CUcontext* out, CUgreenCtx* green), (s, out, green)) {
  BEGIN(50);
  NEED_ARG(out != nullptr);
  NEED_STREAM(s);
  const bool in_green = stream->context->parent != nullptr;
  *out = simgpu::OwnerOf(stream->context);
  if (green != nullptr) *green = in_green ? reinterpret_cast<CUgreenCtx>(stream->context) : nullptr;
  return CUDA_SUCCESS;
}

ENTRY(cuStreamGetDevice, _ptsz, (CUstream s, CUdevice* out), (s, out)) {
  BEGIN(50);
  NEED_ARG(out != nullptr);
  NEED_STREAM(s);
  *out = simgpu::DeviceOf(stream->context->card);
  return CUDA_SUCCESS;
}

ENTRY(cuStreamGetId, _ptsz, (CUstream s, unsigned long long* out), (s, out)) {
  BEGIN(50);
  NEED_ARG(out != nullptr);
  NEED_STREAM(s);
  *out = stream->id;
  return CUDA_SUCCESS;
}

ENTRY(cuStreamGetFlags, _ptsz, (CUstream s, unsigned int* out), (s, out)) {
  BEGIN(50);
  NEED_ARG(out != nullptr);
  NEED_STREAM(s);
  *out = stream->flags;
  return CUDA_SUCCESS;
}

ENTRY(cuStreamGetPriority, _ptsz, (CUstream s, int* out), (s, out)) {
  BEGIN(50);
  NEED_ARG(out != nullptr);
  NEED_STREAM(s);
  *out = stream->priority;
  return CUDA_SUCCESS;
}

ENTRY(cuStreamAttachMemAsync, _ptsz, (CUstream s, CUdeviceptr p, size_t length, unsigned int flags),
      (s, p, length, flags)) {
  BEGIN(1000);
  NEED_UNSAFE_QUEUE(s);
  const simgpu::Allocation* a = simgpu::FindAllocation(p);
  NEED_ARG(a != nullptr && a->kind == simgpu::MemoryKind::kManaged && a->base == p &&
           (length == 0 || length == a->requested));
  NEED_ARG(flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST || flags == CU_MEM_ATTACH_SINGLE);
  NEED_ARG(flags != CU_MEM_ATTACH_SINGLE || !stream->sim->legacy);
  if (simgpu::Capturing(stream)) return simgpu::CaptureMisuse(call, stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  // Memory is accessible to all in any case. In the legacy stream the operation is a barrier; in another one it waits
  // for nothing elsewhere, so there it is nothing.
  if (!stream->sim->legacy) return CUDA_SUCCESS;
  Op* op = Sim().NewOp(OpKind::kAction);
  op->action = [](void*, uint64_t) {};
  return simgpu::Dispatch(call, stream, op, CU_GRAPH_NODE_TYPE_EMPTY);
}

ENTRY(cuStreamCopyAttributes, _ptsz, (CUstream to, CUstream from), (to, from)) {
  BEGIN(50);
  NEED_STREAM(to);
  (void)from;
  return CUDA_SUCCESS;
}

ENTRY(cuStreamGetAttribute, _ptsz, (CUstream s, CUstreamAttrID id, CUstreamAttrValue* value), (s, id, value)) {
  BEGIN(50);
  NEED_ARG(value != nullptr);
  NEED_STREAM(s);
  (void)id;
  *value = CUstreamAttrValue{};
  return CUDA_SUCCESS;
}

ENTRY(cuStreamSetAttribute, _ptsz, (CUstream s, CUstreamAttrID id, const CUstreamAttrValue* value), (s, id, value)) {
  BEGIN(50);
  NEED_ARG(value != nullptr);
  NEED_STREAM(s);
  (void)id;
  return CUDA_SUCCESS;
}

ENTRY(cuLaunchHostFunc, _ptsz, (CUstream s, CUhostFn fn, void* data), (s, fn, data)) {
  BEGIN(2000);
  NEED_ARG(fn != nullptr);
  NEED_STREAM(s);
  Op* op = Sim().NewOp(OpKind::kHostFunc);
  op->host = {fn, data};
  CUgraphNode node = nullptr;
  const CUresult r = simgpu::Dispatch(call, stream, op, CU_GRAPH_NODE_TYPE_HOST, &node);
  if (node != nullptr) node->host = {fn, data};
  return r;
}

namespace {
struct OldCallback {
  CUstreamCallback fn;
  CUstream stream;
  void* data;
};
}  // namespace

ENTRY(cuStreamAddCallback, _ptsz, (CUstream s, CUstreamCallback fn, void* data, unsigned int flags),
      (s, fn, data, flags)) {
  BEGIN(2000);
  NEED_ARG(fn != nullptr && flags == 0);
  NEED_STREAM(s);
  if (simgpu::Capturing(stream)) return simgpu::CaptureMisuse(call, stream, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  Op* op = Sim().NewOp(OpKind::kHostFunc);
  op->host = {[](void* p) {
                auto* old = static_cast<OldCallback*>(p);
                old->fn(old->stream, CUDA_SUCCESS, old->data);
                delete old;
              },
              new OldCallback{fn, s, data}};
  return simgpu::Dispatch(call, stream, op, CU_GRAPH_NODE_TYPE_HOST);
}
