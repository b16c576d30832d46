// Executable graphs: instantiation, changes, launch.
#include <algorithm>
#include <cstring>

#include "graph_ops.h"

using simgpu::Sim;
using simgpu::ValidExec;
using simgpu::ValidGraph;

namespace {

// The executable graph's copy of an original node.
CUgraphNode InExec(CUgraphExec exec, CUgraphNode n) {
  if (!ValidExec(exec)) return nullptr;
  auto it = exec->node.find(n);
  return it == exec->node.end() ? nullptr : it->second;
}

// Count and type of the operations stay.
bool SameOperations(const CUgraphNode_st& node, const CUDA_BATCH_MEM_OP_NODE_PARAMS& p) {
  return p.paramArray != nullptr &&
         std::equal(node.values.begin(), node.values.end(), p.paramArray, p.paramArray + p.count,
                    [](const auto& a, const auto& b) { return a.operation == b.operation; });
}

// Types of memory stay, and where it is mapped.
bool SameSides(const CUDA_MEMCPY3D& a, const CUDA_MEMCPY3D& b) {
  const auto place = [](CUmemorytype type, CUdeviceptr at) {
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED ? simgpu::FindAllocation(at) != nullptr
                                                                         : false;
  };
  return a.srcMemoryType == b.srcMemoryType && a.dstMemoryType == b.dstMemoryType &&
         place(a.srcMemoryType, a.srcDevice) == place(b.srcMemoryType, b.srcDevice) &&
         place(a.dstMemoryType, a.dstDevice) == place(b.dstMemoryType, b.dstDevice);
}

// Whether an executable graph of `old` may become one of `g`; if not, `at` is the node.
CUgraphExecUpdateResult Compare(CUgraph old, CUgraph g, CUgraphNode* at) {
  if (g->nodes.size() != old->nodes.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
  std::map<CUgraphNode, size_t> index_new, index_old;
  for (size_t i = 0; i < g->nodes.size(); ++i) {
    index_new[g->nodes[i].get()] = i;
    index_old[old->nodes[i].get()] = i;
  }
  for (size_t i = 0; i < g->nodes.size(); ++i) {
    const CUgraphNode a = old->nodes[i].get(), b = g->nodes[i].get();
    *at = b;
    if (a->type != b->type) return CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
    if (a->after.size() != b->after.size()) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t k = 0; k < a->after.size(); ++k) {
      if (index_old[a->after[k]] != index_new[b->after[k]]) return CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    }
    if (a->type == CU_GRAPH_NODE_TYPE_MEMCPY && !SameSides(a->copy, b->copy))
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    if (a->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP &&
        !std::equal(a->values.begin(), a->values.end(), b->values.begin(), b->values.end(),
                    [](const auto& one, const auto& other) { return one.operation == other.operation; }))
      return CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
    if (a->child == nullptr) continue;
    CUgraphNode inside = nullptr;
    if (const auto r = Compare(a->child, b->child, &inside); r != CU_GRAPH_EXEC_UPDATE_SUCCESS) return r;
  }
  *at = nullptr;
  return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

CUresult Instantiate(CUgraphExec* out, CUgraph g, unsigned long long flags) {
  NEED_ARG(out != nullptr && ValidGraph(g));
  auto exec = std::make_unique<CUgraphExec_st>();
  exec->graph = simgpu::CloneGraph(g, &exec->node);
  exec->flags = flags;
  NEED_ARG(simgpu::Order(exec->graph.get(), &exec->order));
  *out = exec.release();
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph g, unsigned long long flags) {
  BEGIN_UNSAFE(50000);
  return Instantiate(out, g, flags);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  BEGIN_UNSAFE(5000);
  NEED_ARG(ValidExec(exec));
  simgpu::DropKept(exec->graph.get());
  exec->magic = kDead;
  exec->graph.reset();
  exec->order.clear();
  exec->node.clear();
  return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t* flags) {
  BEGIN(100);
  NEED_ARG(ValidExec(exec) && flags != nullptr);
  *flags = exec->flags;
  return CUDA_SUCCESS;
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS* p) {
  BEGIN(1000);
  CUgraphNode mine = InExec(exec, n);
  NEED_ARG(mine != nullptr && p != nullptr && mine->type == CU_GRAPH_NODE_TYPE_KERNEL);
  return simgpu::SetKernel(mine, *p);
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode n, const CUDA_MEMCPY3D* p, CUcontext) {
  BEGIN(1000);
  CUgraphNode mine = InExec(exec, n);
  NEED_ARG(mine != nullptr && p != nullptr && mine->type == CU_GRAPH_NODE_TYPE_MEMCPY);
  return simgpu::SetCopy(mine, *p);
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS* p, CUcontext) {
  BEGIN(1000);
  CUgraphNode mine = InExec(exec, n);
  NEED_ARG(mine != nullptr && p != nullptr && mine->type == CU_GRAPH_NODE_TYPE_MEMSET);
  return simgpu::SetMemset(mine, *p);
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode n, const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  BEGIN(1000);
  CUgraphNode mine = InExec(exec, n);
  NEED_ARG(mine != nullptr && p != nullptr && mine->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  NEED_ARG(SameOperations(*mine, *p));
  return simgpu::SetValues(mine, *p);
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode n, const CUDA_HOST_NODE_PARAMS* p) {
  BEGIN(1000);
  CUgraphNode mine = InExec(exec, n);
  NEED_ARG(mine != nullptr && p != nullptr && mine->type == CU_GRAPH_NODE_TYPE_HOST);
  return simgpu::SetHost(mine, *p);
}

// The shape of the child stays.
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode n, CUgraph child) {
  BEGIN(2000);
  CUgraphNode mine = InExec(exec, n);
  NEED_ARG(mine != nullptr && mine->child != nullptr && ValidGraph(child));
  CUgraphNode at = nullptr;
  NEED_ARG(Compare(mine->child, child, &at) == CU_GRAPH_EXEC_UPDATE_SUCCESS);
  simgpu::DropKept(mine->child);
  std::map<CUgraphNode, CUgraphNode> map;
  mine->child = simgpu::CloneGraph(child, &map).release();
  return CUDA_SUCCESS;
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode n, CUgraphNodeParams* p) {
  NEED_ARG(p != nullptr);
  switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS k{};
      std::memcpy(&k, &p->kernel, std::min(sizeof k, sizeof p->kernel));
      return cuGraphExecKernelNodeSetParams_v2(exec, n, &k);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphExecMemcpyNodeSetParams(exec, n, &p->memcpy.copyParams, p->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS m = {p->memset.dst,         p->memset.pitch, p->memset.value,
                                         p->memset.elementSize, p->memset.width, p->memset.height};
      return cuGraphExecMemsetNodeSetParams(exec, n, &m, p->memset.ctx);
    }
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return cuGraphExecChildGraphNodeSetParams(exec, n, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS v = {p->memOp.ctx, p->memOp.count, p->memOp.paramArray, p->memOp.flags};
      return cuGraphExecBatchMemOpNodeSetParams(exec, n, &v);
    }
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode n, unsigned int on) {
  BEGIN(500);
  CUgraphNode mine = InExec(exec, n);
  NEED_ARG(mine != nullptr);
  mine->enabled = on;
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode n, unsigned int* on) {
  BEGIN(500);
  CUgraphNode mine = InExec(exec, n);
  NEED_ARG(mine != nullptr && on != nullptr);
  *on = mine->enabled;
  return CUDA_SUCCESS;
}

// The shapes are equal: the new graph's nodes replace the old ones.
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph g, CUgraphExecUpdateResultInfo* info) {
  BEGIN(20000);
  NEED_ARG(ValidExec(exec) && ValidGraph(g) && info != nullptr);
  *info = CUgraphExecUpdateResultInfo{};
  info->result = Compare(exec->graph.get(), g, &info->errorNode);
  if (info->result != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  CUgraphExec fresh = nullptr;
  if (const CUresult r = Instantiate(&fresh, g, exec->flags); r != CUDA_SUCCESS) return r;
  simgpu::DropKept(exec->graph.get());
  exec->graph = std::move(fresh->graph);
  exec->order = std::move(fresh->order);
  for (const auto& [n, copy] : fresh->node) exec->node[n] = copy;
  delete fresh;
  info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
  return CUDA_SUCCESS;
}

}  // extern "C"

ENTRY(cuGraphInstantiateWithParams, _ptsz, (CUgraphExec * out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS* p),
      (out, g, p)) {
  BEGIN_UNSAFE(50000);
  NEED_ARG(p != nullptr);
  (void)kPerThread;
  const CUresult r = Instantiate(out, g, p->flags);
  p->result_out = r == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
  return r;
}

ENTRY(cuGraphUpload, _ptsz, (CUgraphExec exec, CUstream s), (exec, s)) {
  BEGIN(5000);
  NEED_ARG(ValidExec(exec));
  NEED_STREAM(s);
  return CUDA_SUCCESS;
}

ENTRY(cuGraphLaunch, _ptsz, (CUgraphExec exec, CUstream s), (exec, s)) {
  BEGIN(Sim().profile().graph_launch_host_ns +
        static_cast<int64_t>(ValidExec(exec) ? exec->order.size() : 0) * Sim().profile().graph_node_ns / 4);
  NEED_ARG(ValidExec(exec));
  NEED_STREAM(s);
  if (simgpu::Capturing(stream)) {
    // Becomes a child graph.
    NEED(!simgpu::HasConditional(exec->graph.get()), CUDA_ERROR_NOT_SUPPORTED);
    std::map<CUgraphNode, CUgraphNode> map;
    CUgraphNode n =
        simgpu::AddNode(stream->capture->graph, CU_GRAPH_NODE_TYPE_GRAPH, stream->tail.data(), stream->tail.size());
    n->child = simgpu::CloneGraph(exec->graph.get(), &map).release();
    stream->tail = {n};
    return CUDA_SUCCESS;
  }
  if (exec->last != nullptr && !exec->last->done) Sim().SubmitWait(call.lock, stream->sim, exec->last);
  simgpu::AssignConditions(exec->graph.get());
  simgpu::RunNodes(call, exec->order, stream);
  if (simgpu::Op* const op = simgpu::KeepWhileRunning(exec->graph.get()); op != nullptr)
    Sim().Submit(call.lock, stream->sim, op);
  exec->last = Sim().SubmitFence(call.lock, stream->sim);
  return CUDA_SUCCESS;
}
