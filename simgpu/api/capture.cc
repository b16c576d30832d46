// Stream capture: the calls that it allows, and those that break it.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "../core/identity.h"
#include "../core/misuse.h"
#include "graph_ops.h"

using simgpu::TheDriver;

namespace simgpu {

bool Capturing(CUstream s) { return s->capture != nullptr; }

// Breaking a capture is misuse unless the test wants the driver's error itself (SIMGPU_CAPTURE=error).
CUresult CaptureMisuse(Call& call, CUstream s, CUresult error) {
  if (s != nullptr && s->capture != nullptr) s->capture->invalidated = true;
  const char* wanted = std::getenv("SIMGPU_CAPTURE");
  if (wanted == nullptr || std::strcmp(wanted, "error") != 0) {
    Misuse(std::string("call during a capture: ") + call.Name() + " gave " + ErrorName(error) +
           (s == nullptr ? "" : " on stream " + std::to_string(s->sim->id)) + " and breaks the capture (operation #" +
           std::to_string(Sim().operations()) + " was the last before it)");
  }
  return error;
}

namespace {

// Work in the legacy stream would order itself with a captured stream that blocks. Null: none does.
CUstream CapturedBeside(CUstream s) {
  if (!s->sim->legacy) return nullptr;
  for (const auto& c : TheDriver().captures) {
    for (CUstream joined : c->joined) {
      if (joined->context == s->context && (joined->flags & CU_STREAM_NON_BLOCKING) == 0) return joined;
    }
  }
  return nullptr;
}

}  // namespace

CUresult RefuseImplicit(Call& call, CUstream s) {
  const CUstream joined = CapturedBeside(s);
  return joined == nullptr ? CUDA_SUCCESS : CaptureMisuse(call, joined, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

CUresult RefuseInCapture(Call& call) {
  const CUstreamCaptureMode mine = ThisState().capture_mode;
  if (mine == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  CUstream broken = nullptr;
  for (const auto& c : TheDriver().captures) {
    const bool own = c->thread == &ThisState();
    const bool bars = (c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && mine == CU_STREAM_CAPTURE_MODE_GLOBAL) ||
                      (own && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED);
    if (!bars) continue;
    c->invalidated = true;
    broken = c->origin;
  }
  return broken == nullptr ? CUDA_SUCCESS : CaptureMisuse(call, broken, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

}  // namespace simgpu

extern "C" CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  NEED_ARG(mode != nullptr && *mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && *mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
  std::swap(*mode, simgpu::ThisState().capture_mode);
  return CUDA_SUCCESS;
}

namespace {

CUresult Begin(simgpu::Call& call, CUstream stream, CUstreamCaptureMode mode, CUgraph graph) {
  NEED_ARG(mode >= CU_STREAM_CAPTURE_MODE_GLOBAL && mode <= CU_STREAM_CAPTURE_MODE_RELAXED);
  if (stream->sim->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  NEED(!simgpu::Capturing(stream), CUDA_ERROR_ILLEGAL_STATE);
  (void)call;
  auto c = std::make_shared<SimCapture>();
  c->graph = graph != nullptr ? graph : new CUgraph_st;
  c->mode = mode;
  c->id = TheDriver().next_id++;
  c->origin = stream;
  c->thread = &simgpu::ThisState();
  c->joined.insert(stream);
  stream->capture = c;
  stream->tail.clear();
  TheDriver().captures.insert(c);
  return CUDA_SUCCESS;
}

}  // namespace

ENTRY(cuStreamBeginCapture_v2, _ptsz, (CUstream s, CUstreamCaptureMode mode), (s, mode)) {
  BEGIN(2000);
  NEED_STREAM(s);
  return Begin(call, stream, mode, nullptr);
}

ENTRY(cuStreamBeginCaptureToGraph, _ptsz,
      (CUstream s, CUgraph graph, const CUgraphNode* after, const CUgraphEdgeData* edges, size_t count,
       CUstreamCaptureMode mode),
      (s, graph, after, edges, count, mode)) {
  BEGIN(2000);
  NEED_ARG(graph != nullptr && (count == 0 || after != nullptr));
  (void)edges;
  NEED_STREAM(s);
  const CUresult r = Begin(call, stream, mode, graph);
  if (r == CUDA_SUCCESS) stream->tail.assign(after, after + count);
  return r;
}

ENTRY(cuStreamEndCapture, _ptsz, (CUstream s, CUgraph* out), (s, out)) {
  BEGIN(5000);
  NEED_ARG(out != nullptr);
  NEED_STREAM(s);
  *out = nullptr;
  NEED(simgpu::Capturing(stream), CUDA_ERROR_ILLEGAL_STATE);
  auto c = stream->capture;
  if (c->origin != stream) {
    c->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != &simgpu::ThisState()) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  bool unjoined = false;
  std::vector<CUgraphNode> reached(stream->tail), todo(stream->tail);
  while (!todo.empty()) {
    CUgraphNode n = todo.back();
    todo.pop_back();
    for (CUgraphNode d : n->after) {
      if (std::find(reached.begin(), reached.end(), d) != reached.end()) continue;
      reached.push_back(d);
      todo.push_back(d);
    }
  }
  for (CUstream joined : c->joined) {
    if (joined != stream) {
      for (CUgraphNode n : joined->tail) {
        if (std::find(reached.begin(), reached.end(), n) == reached.end()) unjoined = true;
      }
    }
    joined->capture.reset();
    joined->tail.clear();
  }
  TheDriver().captures.erase(c);
  if (c->invalidated || unjoined) {
    simgpu::DropKept(c->graph);
    delete c->graph;
    return c->invalidated ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  }
  *out = c->graph;
  return CUDA_SUCCESS;
}

ENTRY(cuStreamIsCapturing, _ptsz, (CUstream s, CUstreamCaptureStatus* status), (s, status)) {
  BEGIN(100);
  NEED_ARG(status != nullptr);
  const bool is_handle = s != nullptr && s != CU_STREAM_LEGACY && s != CU_STREAM_PER_THREAD;
  if (is_handle && s->magic == kDead)
    simgpu::Misuse("a destroyed stream is asked: the driver crashes (H100, driver 580)");
  NEED_STREAM(s);
  NEED(simgpu::CapturedBeside(stream) == nullptr, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  *status = !simgpu::Capturing(stream)     ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                           : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

namespace {

CUresult Info(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** after,
              size_t* count) {
  NEED_ARG(status != nullptr);
  *status = !simgpu::Capturing(stream)     ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                           : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id != nullptr) *id = stream->capture->id;
  if (graph != nullptr) *graph = stream->capture->graph;
  if (after != nullptr) *after = stream->tail.data();
  if (count != nullptr) *count = stream->tail.size();
  return CUDA_SUCCESS;
}

CUresult Update(CUstream stream, CUgraphNode* nodes, size_t count, unsigned flags) {
  NEED(simgpu::Capturing(stream), CUDA_ERROR_ILLEGAL_STATE);
  NEED_ARG(flags <= 1 && (count == 0 || nodes != nullptr));
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->tail.clear();
  stream->tail.insert(stream->tail.end(), nodes, nodes + count);
  return CUDA_SUCCESS;
}

}  // namespace

ENTRY(cuStreamGetCaptureInfo, _ptsz, (CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id), (s, status, id)) {
  BEGIN(100);
  NEED_STREAM(s);
  return Info(stream, status, id, nullptr, nullptr, nullptr);
}

ENTRY(cuStreamGetCaptureInfo_v2, _ptsz,
      (CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** after,
       size_t* count),
      (s, status, id, graph, after, count)) {
  BEGIN(100);
  NEED_STREAM(s);
  return Info(stream, status, id, graph, after, count);
}

ENTRY(cuStreamGetCaptureInfo_v3, _ptsz,
      (CUstream s, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** after,
       const CUgraphEdgeData** edges, size_t* count),
      (s, status, id, graph, after, edges, count)) {
  BEGIN(100);
  NEED_STREAM(s);
  if (edges != nullptr) *edges = nullptr;
  return Info(stream, status, id, graph, after, count);
}

ENTRY(cuStreamUpdateCaptureDependencies, _ptsz, (CUstream s, CUgraphNode* nodes, size_t count, unsigned int flags),
      (s, nodes, count, flags)) {
  BEGIN(100);
  NEED_STREAM(s);
  return Update(stream, nodes, count, flags);
}

ENTRY(cuStreamUpdateCaptureDependencies_v2, _ptsz,
      (CUstream s, CUgraphNode* nodes, const CUgraphEdgeData* edges, size_t count, unsigned int flags),
      (s, nodes, edges, count, flags)) {
  BEGIN(100);
  NEED_STREAM(s);
  (void)edges;
  return Update(stream, nodes, count, flags);
}
