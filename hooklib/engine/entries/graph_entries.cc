// Graphs: their access sets are kept by executable graph, and each launch is planned as one kernel.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>

#include "common/mutex.h"
#include "hooklib/compute/launch_token.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/graph_memory.h"
#include "hooklib/engine/device/peers.h"
#include "hooklib/engine/entries/node_ranges.h"
#include "hooklib/engine/entries/value_nodes.h"
#include "hooklib/engine/execute/value_graphs.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/captured_calls.h"
#include "hooklib/engine/observe/graph_access.h"
#include "hooklib/engine/observe/trace_recording.h"

namespace sluice {

namespace {

Mutex g_mutex;  // guards the map; no other lock is taken inside
std::map<CUgraphExec, GraphAccess>& Graphs() SLUICE_REQUIRES(g_mutex) {
  static auto& map = *new std::map<CUgraphExec, GraphAccess>();
  return map;
}
std::atomic<bool> g_has_allocating_graphs{false};  // some graph has had memory of its own

// After instantiation or an update.
void Keep(CUgraphExec executable, GraphAccess access) {
  access.MarkCaptured();
  MutexLock lock(g_mutex);
  if (access.memory().any()) g_has_allocating_graphs = true;
  Graphs()[executable] = std::move(access);
}

// Memory of graphs' own is the driver's. It is allocated when such a graph is launched or uploaded, and kept for the
// next one.
template <typename Run>
CUresult RunWithMemory(CUgraphExec executable, bool is_launch, Run run) {
  if (!g_has_allocating_graphs.load(std::memory_order_relaxed)) return run();
  graph_memory::Needs needs;
  {
    MutexLock lock(g_mutex);
    const auto it = Graphs().find(executable);
    if (it != Graphs().end()) needs = it->second.memory();
  }
  if (!graph_memory::Reserve(needs)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = run();
  if (result == CUDA_SUCCESS && is_launch) graph_memory::NoteLaunched(needs);
  graph_memory::CountAgain(needs.peaks);
  return result;
}

// One node of an instantiated graph got new parameters, if the driver took them. `add(changed)` adds the node's new
// set.
template <typename Params, typename Add>
CUresult ChangeNode(CUgraphExec executable, CUresult result, Params params, Add add) {
  if (result != CUDA_SUCCESS || !params) return result;
  GraphAccess changed;
  {
    RelaxedCapture relaxed;
    add(&changed);
    changed.MarkCaptured();
  }
  MutexLock lock(g_mutex);
  Graphs()[executable].Replace(std::move(changed));
  return result;
}

void RecordNodes(const Stream& stream, CUgraphExec executable) {
  std::vector<NodeReaches> nodes;
  {
    MutexLock lock(g_mutex);
    nodes = Graphs()[executable].RecordedNodes();
  }
  RecordGraphLaunch(stream, executable, nodes);
}

// Notes the ranges that the graph's copies and memsets write in memory of other GPUs.
void NoteWritesElsewhere(const Stream& stream, const RankedReaches& ranked) {
  for (const libraries::Reach& reach : ranked.reaches) {
    const bool is_part = reach.end != libraries::Reach::kAll && reach.end > reach.begin;
    if (is_part && !reach.only_read)
      KeepWhereAllocated(stream.device, {reach.begin, reach.end - reach.begin}, Access::kWriteNow);
  }
}

template <typename Issue>
CUresult LaunchGraph(CUgraphExec executable, CUstream handle, bool ptsz, Issue issue) {
  Stream* stream = FindStream(handle, ptsz);
  if (!stream) return issue();
  NoteQueued();
  LaunchToken token(stream, [&] { return reinterpret_cast<uintptr_t>(executable) | 1; });
  const auto run = [&] { return token.Run(issue); };
  if (Recording()) RecordNodes(*stream, executable);
  const bool is_planned = NeedsRunWork(stream);
  // Set at the latest where a node got memory of another GPU.
  const bool may_reach_others = g_several_devices_work.load(std::memory_order_relaxed) && !IsCapturing(*stream);
  if (!is_planned && !may_reach_others && !stream->device->watches_use.load(std::memory_order_relaxed))
    return RunCounted(stream, run);
  std::shared_ptr<const RankedReaches> ranked;
  Work work;
  work.stream = stream;
  work.known = false;
  work.may_write_anywhere = true;
  work.id = reinterpret_cast<uintptr_t>(executable) | 1;
  bool checks_size = false;
  {
    MutexLock lock(g_mutex);
    if (const auto it = Graphs().find(executable); it != Graphs().end()) {
      GraphAccess& access = it->second;
      ranked = access.Ranked();
      work.known = access.known();
      work.may_write_anywhere = access.may_write_anywhere();
      checks_size = stream->device->active.load(std::memory_order_relaxed) && access.TakeSizeCheck();
    }
  }
  if (ranked) {
    if (checks_size) stream->device->LogIfTooLarge(ranked->reaches);
    work.reaches = ranked->reaches;
    work.hot_reaches = ranked->hot_count;
    if (may_reach_others) NoteWritesElsewhere(*stream, *ranked);
  }
  if (is_planned) return RunWork(work, run);
  stream->device->NoteUse(work);
  return RunCounted(stream, run);
}

template <typename Make>
CUresult Instantiate(CUgraphExec* executable, CUgraph graph, Make make) {
  GraphAccess access = GraphAccess::Of(graph);
  const CUresult result = graph_memory::Reserve(access.memory()) ? make() : CUDA_ERROR_OUT_OF_MEMORY;
  if (result != CUDA_SUCCESS || !executable) {
    graph_memory::CountAgain(access.memory().peaks);
    return result;
  }
  Keep(*executable, std::move(access));
  if (Recording())
    g_recorder->GraphInstantiate(reinterpret_cast<uintptr_t>(graph), reinterpret_cast<uintptr_t>(*executable));
  return result;
}

void NoteChild(CUgraphNode node, CUgraph original) {
  CUgraph copy = nullptr;
  RelaxedCapture relaxed;
  if (g_real.cuGraphChildGraphNodeGetGraph(node, &copy) == CUDA_SUCCESS) NoteGraphCopy(original, copy);
}

CUresult NoteAddedNode(const CUgraphNode* node, const CUgraphNodeParams* params, CUresult result) {
  if (result != CUDA_SUCCESS || !params) return result;
  if (params->type == CU_GRAPH_NODE_TYPE_GRAPH) NoteChild(*node, params->graph.graph);
  if (params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) NoteBodies(*node, params->conditional);
  return result;
}

template <typename Add>
CUresult AddAnyNode(const CUgraphNode* node, CUgraphNodeParams* params, Add add) {
  if (ReachesPastItsBlock(params)) return CUDA_ERROR_INVALID_VALUE;
  KeepWhereAllocated(params);
  if (!params || params->type != CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) return NoteAddedNode(node, params, add(params));
  return AddValues(
      ValuesIn(*params), [&] { return add(params); },
      [&](CUgraph child) {
        CUgraphNodeParams as_child{};
        as_child.type = CU_GRAPH_NODE_TYPE_GRAPH;
        as_child.graph.graph = child;
        return add(&as_child);
      });
}

}  // namespace

namespace entry {

CUresult cuGraphInstantiate(CUgraphExec* e, CUgraph g, CUgraphNode* n, char* log, size_t bytes) {
  return Instantiate(e, g, [&] { return g_real.cuGraphInstantiate(e, g, n, log, bytes); });
}
CUresult cuGraphInstantiate_v2(CUgraphExec* e, CUgraph g, CUgraphNode* n, char* log, size_t bytes) {
  return Instantiate(e, g, [&] { return g_real.cuGraphInstantiate_v2(e, g, n, log, bytes); });
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* e, CUgraph g, unsigned long long flags) {
  return Instantiate(e, g, [&] { return g_real.cuGraphInstantiateWithFlags(e, g, flags); });
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* e, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS* p) {
  return Instantiate(e, g, [&] { return g_real.cuGraphInstantiateWithParams(e, g, p); });
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* e, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS* p) {
  return Instantiate(e, g, [&] { return g_real.cuGraphInstantiateWithParams_ptsz(e, g, p); });
}
CUresult cuGraphExecUpdate(CUgraphExec e, CUgraph g, CUgraphNode* n, CUgraphExecUpdateResult* r) {
  const CUresult result = g_real.cuGraphExecUpdate(e, g, n, r);
  if (result == CUDA_SUCCESS) Keep(e, GraphAccess::Of(g));
  return result;
}
CUresult cuGraphExecUpdate_v2(CUgraphExec e, CUgraph g, CUgraphExecUpdateResultInfo* r) {
  const CUresult result = g_real.cuGraphExecUpdate_v2(e, g, r);
  if (result == CUDA_SUCCESS) Keep(e, GraphAccess::Of(g));
  return result;
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS_v1* p) {
  return ChangeNode(e, g_real.cuGraphExecKernelNodeSetParams(e, n, p), p,
                    [&](GraphAccess* changed) { changed->AddKernel(n, ToVersion2(*p)); });
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec e, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS_v2* p) {
  return ChangeNode(e, g_real.cuGraphExecKernelNodeSetParams_v2(e, n, p), p,
                    [&](GraphAccess* changed) { changed->AddKernel(n, *p); });
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_MEMCPY3D* c, CUcontext context) {
  if (ReachesPastItsBlock(c)) return CUDA_ERROR_INVALID_VALUE;
  KeepWhereAllocated(context, c);
  return ChangeNode(e, g_real.cuGraphExecMemcpyNodeSetParams(e, n, c, context), c,
                    [&](GraphAccess* changed) { changed->AddCopy(n, *c); });
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS* s,
                                        CUcontext context) {
  if (ReachesPastItsBlock(s)) return CUDA_ERROR_INVALID_VALUE;
  KeepWhereAllocated(context, s);
  return ChangeNode(e, g_real.cuGraphExecMemsetNodeSetParams(e, n, s, context), s,
                    [&](GraphAccess* changed) { changed->AddMemset(n, *s); });
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraph child) {
  if (value_graphs::ValuesOf(n)) return CUDA_ERROR_INVALID_VALUE;
  return ChangeNode(e, g_real.cuGraphExecChildGraphNodeSetParams(e, n, child), child,
                    [&](GraphAccess* changed) { changed->AddChild(n, child); });
}

CUresult cuGraphExecNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraphNodeParams* p) {
  if (ReachesPastItsBlock(p)) return CUDA_ERROR_INVALID_VALUE;
  KeepWhereAllocated(p);
  if (p && p->type == CU_GRAPH_NODE_TYPE_GRAPH && value_graphs::ValuesOf(n)) return CUDA_ERROR_INVALID_VALUE;
  const auto real = [&] { return g_real.cuGraphExecNodeSetParams(e, n, p); };
  const bool has_values = p && p->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  const CUresult result = has_values ? SetValuesIn(e, n, ValuesIn(*p), real) : real();
  return ChangeNode(e, result, p, [&](GraphAccess* changed) {
    if (p->type == CU_GRAPH_NODE_TYPE_KERNEL) {
      const CUDA_KERNEL_NODE_PARAMS_v3& k = p->kernel;
      changed->AddKernel(n, {k.func, k.gridDimX, k.gridDimY, k.gridDimZ, k.blockDimX, k.blockDimY, k.blockDimZ,
                             k.sharedMemBytes, k.kernelParams, k.extra, k.kern, k.ctx});
    } else if (p->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
      changed->AddCopy(n, p->memcpy.copyParams);
    } else if (p->type == CU_GRAPH_NODE_TYPE_MEMSET) {
      const CUDA_MEMSET_NODE_PARAMS_v2& s = p->memset;
      changed->AddMemset(n, {s.dst, s.pitch, s.value, s.elementSize, s.width, s.height});
    } else if (p->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
      changed->AddStreamOperations(n, p->memOp.paramArray, p->memOp.count);
    } else if (p->type == CU_GRAPH_NODE_TYPE_GRAPH) {
      changed->AddChild(n, p->graph.graph);
    }
  });
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  const auto real = [&] { return g_real.cuGraphExecBatchMemOpNodeSetParams(e, n, p); };
  return ChangeNode(e, p ? SetValuesIn(e, n, *p, real) : real(), p,
                    [&](GraphAccess* changed) { changed->AddStreamOperations(n, p->paramArray, p->count); });
}

CUresult cuGraphClone(CUgraph* clone, CUgraph original) {
  const CUresult result = g_real.cuGraphClone(clone, original);
  if (result == CUDA_SUCCESS) NoteGraphCopy(original, *clone);
  return result;
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* n, CUgraph g, const CUgraphNode* after, size_t count, CUgraph child) {
  const CUresult result = g_real.cuGraphAddChildGraphNode(n, g, after, count, child);
  if (result == CUDA_SUCCESS) NoteChild(*n, child);
  return result;
}
CUresult cuGraphAddNode(CUgraphNode* n, CUgraph g, const CUgraphNode* after, size_t count, CUgraphNodeParams* p) {
  return AddAnyNode(n, p, [&](CUgraphNodeParams* with) { return g_real.cuGraphAddNode(n, g, after, count, with); });
}
CUresult cuGraphAddNode_v2(CUgraphNode* n, CUgraph g, const CUgraphNode* after, const CUgraphEdgeData* edges,
                           size_t count, CUgraphNodeParams* p) {
  return AddAnyNode(n, p,
                    [&](CUgraphNodeParams* with) { return g_real.cuGraphAddNode_v2(n, g, after, edges, count, with); });
}
CUresult cuGraphAddNode_v3(CUgraphNode* n, CUgraph g, const CUgraphNode* after, const CUgraphEdgeData* edges,
                           size_t count, CUgraphNodeParams* p) {
  return AddAnyNode(n, p,
                    [&](CUgraphNodeParams* with) { return g_real.cuGraphAddNode_v3(n, g, after, edges, count, with); });
}
CUresult cuGraphDestroyNode(CUgraphNode n) {
  ForgetNode(n);
  return g_real.cuGraphDestroyNode(n);
}
CUresult cuGraphDestroy(CUgraph g) {
  ForgetGraph(g);
  return g_real.cuGraphDestroy(g);
}
CUresult cuGraphExecDestroy(CUgraphExec e) {
  graph_memory::BytesByGpu peaks;
  {
    MutexLock lock(g_mutex);
    if (const auto it = Graphs().find(e); it != Graphs().end()) {
      peaks = it->second.memory().peaks;
      Graphs().erase(it);
    }
  }
  const CUresult result = g_real.cuGraphExecDestroy(e);
  graph_memory::CountAgain(peaks);
  return result;
}
CUresult cuGraphLaunch(CUgraphExec e, CUstream stream) {
  return RunWithMemory(e, true,
                       [&] { return LaunchGraph(e, stream, false, [&] { return g_real.cuGraphLaunch(e, stream); }); });
}
CUresult cuGraphLaunch_ptsz(CUgraphExec e, CUstream stream) {
  return RunWithMemory(
      e, true, [&] { return LaunchGraph(e, stream, true, [&] { return g_real.cuGraphLaunch_ptsz(e, stream); }); });
}
CUresult cuGraphUpload(CUgraphExec e, CUstream stream) {
  return RunWithMemory(e, false,
                       [&] { return RunUnplanned(stream, false, [&] { return g_real.cuGraphUpload(e, stream); }); });
}
CUresult cuGraphUpload_ptsz(CUgraphExec e, CUstream stream) {
  return RunWithMemory(
      e, false, [&] { return RunUnplanned(stream, true, [&] { return g_real.cuGraphUpload_ptsz(e, stream); }); });
}
CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
  const CUresult result = g_real.cuDeviceGraphMemTrim(ordinal);
  if (Device* const device = DeviceByOrdinal(ordinal)) device->CountGraphMemory();
  return result;
}

}  // namespace entry
}  // namespace sluice
