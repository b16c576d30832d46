// Nodes of graphs that write values. The driver refuses them in managed memory, where a child graph does the same
// (value_graphs.h). Since a node's memory may change, a child graph stands for each that writes. To the application it
// is the node that it asked for.
#include <algorithm>
#include <atomic>

#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/entries/value_nodes.h"
#include "hooklib/engine/execute/stream_values.h"
#include "hooklib/engine/execute/value_graphs.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

// Whether a graph can stand for the values. If not, the driver refuses them: it takes none in managed memory.
bool CanReplace(const CUDA_BATCH_MEM_OP_NODE_PARAMS& p) {
  constexpr unsigned kMaxCount = 256;  // the driver's
  if (!p.paramArray || p.count == 0 || p.count > kMaxCount || p.flags) return false;
  for (unsigned i = 0; i < p.count; ++i) {
    const CUstreamBatchMemOpParams& op = p.paramArray[i];
    if (!NamesManaged(op)) continue;
    if (IsWait(op)) {
      LogWaitRefused();
      return false;
    }
    if (op.writeValue.address % (op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 ? 8 : 4)) return false;
  }
  return true;
}

// Whether the node, or another one that takes its place in an executable graph, may write into managed memory.
bool MayWriteManaged(const CUDA_BATCH_MEM_OP_NODE_PARAMS& p) {
  if (!p.paramArray || std::none_of(p.paramArray, p.paramArray + p.count, IsWrite)) return false;
  CUcontext context = p.ctx;
  if (!context) g_real.cuCtxGetCurrent(&context);
  const ContextScope scope(context);
  const Device* const device = scope.is_current() ? CurrentDevice() : nullptr;
  return device && device->managed;
}

void LogNodeRefused() {
  static std::atomic<bool> logged{false};
  if (logged.exchange(true)) return;
  SLUICE_LOG(kWarn,
             "a node of a graph is to write a value into memory that is oversubscribed, which the driver refuses: make "
             "a new node with that address, or put the value into an allocation of at most 4 KiB");
}

// A graph for the time of one call.
class OwnGraph {
 public:
  OwnGraph() : result_(g_real.cuGraphCreate(&graph_, 0)) {}
  ~OwnGraph() {
    if (graph_) g_real.cuGraphDestroy(graph_);
  }
  OwnGraph(const OwnGraph&) = delete;
  OwnGraph& operator=(const OwnGraph&) = delete;

  template <typename Use>
  CUresult With(const CUDA_BATCH_MEM_OP_NODE_PARAMS& p, const Use& use) {
    if (result_ == CUDA_SUCCESS) result_ = value_graphs::Fill(graph_, p);
    return result_ == CUDA_SUCCESS ? use(graph_) : result_;
  }

 private:
  CUgraph graph_ = nullptr;
  CUresult result_;
};

// The nodes that the stream's next node depends on.
struct CaptureInfo {
  CUgraph graph = nullptr;
  const CUgraphNode* after = nullptr;
  const CUgraphEdgeData* edges = nullptr;
  size_t count = 0;
};

CUresult InfoOf(CUstream handle, bool per_thread, CaptureInfo* info) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const auto newer = per_thread ? g_real.cuStreamGetCaptureInfo_v3_ptsz : g_real.cuStreamGetCaptureInfo_v3;
  const auto older = per_thread ? g_real.cuStreamGetCaptureInfo_v2_ptsz : g_real.cuStreamGetCaptureInfo_v2;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (newer) {  // the older function fails where edges have data
    result = newer(handle, &status, nullptr, &info->graph, &info->after, &info->edges, &info->count);
  } else if (older) {
    result = older(handle, &status, nullptr, &info->graph, &info->after, &info->count);
  }
  if (result != CUDA_SUCCESS) return result;
  return status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

CUresult AddCaptured(CUstream handle, bool per_thread, CUgraph child) {
  CaptureInfo info;
  CUresult result = InfoOf(handle, per_thread, &info);
  if (result != CUDA_SUCCESS) return result;
  CUgraphNode node = nullptr;
  if (info.edges && g_real.cuGraphAddNode_v2) {
    CUgraphNodeParams params{};
    params.type = CU_GRAPH_NODE_TYPE_GRAPH;
    params.graph.graph = child;
    result = g_real.cuGraphAddNode_v2(&node, info.graph, info.after, info.edges, info.count, &params);
  } else {
    result = g_real.cuGraphAddChildGraphNode(&node, info.graph, info.after, info.count, child);
  }
  if (result != CUDA_SUCCESS) return result;
  constexpr unsigned kSet = CU_STREAM_SET_CAPTURE_DEPENDENCIES;
  const auto newer =
      per_thread ? g_real.cuStreamUpdateCaptureDependencies_v2_ptsz : g_real.cuStreamUpdateCaptureDependencies_v2;
  if (newer) return newer(handle, &node, nullptr, 1, kSet);
  return (per_thread ? g_real.cuStreamUpdateCaptureDependencies_ptsz : g_real.cuStreamUpdateCaptureDependencies)(
      handle, &node, 1, kSet);
}

}  // namespace

void LogWaitRefused() {
  static std::atomic<bool> logged{false};
  if (logged.exchange(true)) return;
  SLUICE_LOG(kWarn,
             "a graph waits for a value in memory that is oversubscribed, which the driver refuses: put the value into "
             "an allocation of at most 4 KiB, or pinned host memory");
}

CUresult AddValues(const CUDA_BATCH_MEM_OP_NODE_PARAMS& p, const std::function<CUresult()>& real,
                   const std::function<CUresult(CUgraph)>& add_child) {
  if (AnyInPool(p.paramArray, p.count)) return CUDA_ERROR_INVALID_VALUE;
  if (!CanReplace(p) || !MayWriteManaged(p)) return real();
  const CUresult result = OwnGraph().With(p, add_child);
  return result == CUDA_SUCCESS || AnyNamesManaged(p.paramArray, p.count) ? result : real();
}

CUresult CaptureValues(CUstream handle, bool per_thread, unsigned count, CUstreamBatchMemOpParams* list,
                       const std::function<CUresult()>& real) {
  const Stream* const stream = FindStream(handle, per_thread);
  return AddValues({stream ? stream->owner : nullptr, count, list, 0}, real,
                   [&](CUgraph child) { return AddCaptured(handle, per_thread, child); });
}

CUresult SetValues(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS& p, const std::function<CUresult()>& real) {
  if (AnyInPool(p.paramArray, p.count)) return CUDA_ERROR_INVALID_VALUE;
  if (!value_graphs::ValuesOf(node)) {
    if (AnyNamesManaged(p.paramArray, p.count)) LogNodeRefused();
    return real();
  }
  return CanReplace(p) ? value_graphs::Fill(value_graphs::GraphOf(node), p) : CUDA_ERROR_INVALID_VALUE;
}

CUresult SetValuesIn(CUgraphExec executable, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS& p,
                     const std::function<CUresult()>& real) {
  if (AnyInPool(p.paramArray, p.count)) return CUDA_ERROR_INVALID_VALUE;
  if (!value_graphs::ValuesOf(node)) {
    if (AnyNamesManaged(p.paramArray, p.count)) LogNodeRefused();
    return real();
  }
  if (!CanReplace(p)) return CUDA_ERROR_INVALID_VALUE;
  const CUresult result = OwnGraph().With(
      p, [&](CUgraph graph) { return g_real.cuGraphExecChildGraphNodeSetParams(executable, node, graph); });
  // Another count of values makes another graph.
  return result == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE ? CUDA_ERROR_INVALID_VALUE : result;
}

CUDA_BATCH_MEM_OP_NODE_PARAMS ValuesIn(const CUgraphNodeParams& params) {
  const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2& p = params.memOp;
  return {p.ctx, p.count, p.paramArray, p.flags};
}

namespace entry {

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* n, CUgraph g, const CUgraphNode* after, size_t count,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  const auto real = [&] { return g_real.cuGraphAddBatchMemOpNode(n, g, after, count, p); };
  if (!p) return real();
  return AddValues(*p, real, [&](CUgraph child) { return g_real.cuGraphAddChildGraphNode(n, g, after, count, child); });
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode n, const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  const auto real = [&] { return g_real.cuGraphBatchMemOpNodeSetParams(n, p); };
  return p ? SetValues(n, *p, real) : real();
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode n, CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  const auto* const values = p ? value_graphs::ValuesOf(n) : nullptr;
  if (!values) return g_real.cuGraphBatchMemOpNodeGetParams(n, p);
  *p = value_graphs::ParamsOf(*values);
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetParams(CUgraphNode n, CUgraphNodeParams* p) {
  const auto* const values = p ? value_graphs::ValuesOf(n) : nullptr;
  if (!values) return g_real.cuGraphNodeGetParams(n, p);
  const CUDA_BATCH_MEM_OP_NODE_PARAMS params = value_graphs::ParamsOf(*values);
  *p = {};
  p->type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  p->memOp = {params.ctx, params.count, params.paramArray, params.flags};
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode n, CUgraphNodeType* type) {
  const CUresult result = g_real.cuGraphNodeGetType(n, type);
  if (result == CUDA_SUCCESS && *type == CU_GRAPH_NODE_TYPE_GRAPH && value_graphs::ValuesOf(n))
    *type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  return result;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode n, CUgraph* graph) {
  if (value_graphs::ValuesOf(n)) return CUDA_ERROR_INVALID_VALUE;
  return g_real.cuGraphChildGraphNodeGetGraph(n, graph);
}

}  // namespace entry
}  // namespace sluice
