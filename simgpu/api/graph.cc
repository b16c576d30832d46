// Graphs: nodes and edges.
#include <algorithm>
#include <cstring>

#include "graph_ops.h"

using simgpu::ValidGraph;

namespace {

CUresult CheckDependencies(CUgraph g, const CUgraphNode* after, size_t count) {
  NEED_ARG(ValidGraph(g) && (count == 0 || after != nullptr));
  for (size_t i = 0; i < count; ++i) NEED_ARG(after[i] != nullptr && after[i]->graph == g);
  return CUDA_SUCCESS;
}

CUresult GetKernel(CUgraphNode n, CUDA_KERNEL_NODE_PARAMS* p) {
  NEED_ARG(n != nullptr && p != nullptr && n->type == CU_GRAPH_NODE_TYPE_KERNEL && n->kernel != nullptr);
  const SimKernelCall& k = *n->kernel;
  *p = CUDA_KERNEL_NODE_PARAMS{};
  p->func = k.function;
  p->kern = k.kernel;
  p->gridDimX = k.grid[0];
  p->gridDimY = k.grid[1];
  p->gridDimZ = k.grid[2];
  p->blockDimX = k.block[0];
  p->blockDimY = k.block[1];
  p->blockDimZ = k.block[2];
  p->sharedMemBytes = k.shared;
  p->kernelParams = const_cast<void**>(k.pointers.data());
  return CUDA_SUCCESS;
}

}  // namespace

#define ADD(type)                                                                         \
  NEED_ARG(out != nullptr);                                                               \
  if (const CUresult r = CheckDependencies(g, after, count); r != CUDA_SUCCESS) return r; \
  CUgraphNode n = simgpu::AddNode(g, type, after, count);                                 \
  *out = n
#define OR_REMOVE(expression)                               \
  if (const CUresult r = (expression); r != CUDA_SUCCESS) { \
    g->nodes.pop_back();                                    \
    *out = nullptr;                                         \
    return r;                                               \
  }                                                         \
  return CUDA_SUCCESS
#define ADD_PARAMS CUgraphNode *out, CUgraph g, const CUgraphNode *after, size_t count

extern "C" {

CUresult cuGraphCreate(CUgraph* out, unsigned int flags) {
  BEGIN(1000);
  NEED_ARG(out != nullptr && flags == 0);
  *out = new CUgraph_st;
  return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph g) {
  BEGIN(1000);
  NEED_ARG(ValidGraph(g));
  simgpu::DropKept(g);
  g->magic = kDead;
  g->nodes.clear();
  return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph* out, CUgraph g) {
  BEGIN(5000);
  NEED_ARG(out != nullptr && ValidGraph(g));
  NEED(!simgpu::HasConditional(g), CUDA_ERROR_NOT_SUPPORTED);
  std::map<CUgraphNode, CUgraphNode> map;
  *out = simgpu::CloneGraph(g, &map).release();
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeFindInClone(CUgraphNode* out, CUgraphNode original, CUgraph clone) {
  BEGIN(1000);
  NEED_ARG(out != nullptr && ValidGraph(clone));
  for (const auto& n : clone->nodes) {
    if (n->cloned_from == original) {
      *out = n.get();
      return CUDA_SUCCESS;
    }
  }
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGraphAddKernelNode_v2(ADD_PARAMS, const CUDA_KERNEL_NODE_PARAMS* p) {
  BEGIN(2000);
  NEED_ARG(p != nullptr);
  ADD(CU_GRAPH_NODE_TYPE_KERNEL);
  OR_REMOVE(simgpu::SetKernel(n, *p));
}
CUresult cuGraphAddMemcpyNode(ADD_PARAMS, const CUDA_MEMCPY3D* p, CUcontext) {
  BEGIN(2000);
  NEED_ARG(p != nullptr);
  ADD(CU_GRAPH_NODE_TYPE_MEMCPY);
  OR_REMOVE(simgpu::SetCopy(n, *p));
}
CUresult cuGraphAddMemsetNode(ADD_PARAMS, const CUDA_MEMSET_NODE_PARAMS* p, CUcontext) {
  BEGIN(2000);
  NEED_ARG(p != nullptr);
  ADD(CU_GRAPH_NODE_TYPE_MEMSET);
  OR_REMOVE(simgpu::SetMemset(n, *p));
}
CUresult cuGraphAddHostNode(ADD_PARAMS, const CUDA_HOST_NODE_PARAMS* p) {
  BEGIN(2000);
  NEED_ARG(p != nullptr);
  ADD(CU_GRAPH_NODE_TYPE_HOST);
  OR_REMOVE(simgpu::SetHost(n, *p));
}
CUresult cuGraphAddEmptyNode(ADD_PARAMS) {
  BEGIN(2000);
  ADD(CU_GRAPH_NODE_TYPE_EMPTY);
  return CUDA_SUCCESS;
}
CUresult cuGraphAddChildGraphNode(ADD_PARAMS, CUgraph child) {
  BEGIN(2000);
  NEED_ARG(ValidGraph(child));
  NEED(!simgpu::HasConditional(child), CUDA_ERROR_NOT_SUPPORTED);
  ADD(CU_GRAPH_NODE_TYPE_GRAPH);
  std::map<CUgraphNode, CUgraphNode> map;
  n->child = simgpu::CloneGraph(child, &map).release();
  return CUDA_SUCCESS;
}
CUresult cuGraphAddEventRecordNode(ADD_PARAMS, CUevent e) {
  BEGIN(2000);
  NEED(simgpu::ValidEvent(e), CUDA_ERROR_INVALID_HANDLE);
  ADD(CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  n->event = e;
  return CUDA_SUCCESS;
}
CUresult cuGraphAddEventWaitNode(ADD_PARAMS, CUevent e) {
  BEGIN(2000);
  NEED(simgpu::ValidEvent(e), CUDA_ERROR_INVALID_HANDLE);
  ADD(CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  n->event = e;
  return CUDA_SUCCESS;
}

CUresult cuGraphAddNode_v2(CUgraphNode* out, CUgraph g, const CUgraphNode* after, const CUgraphEdgeData*, size_t count,
                           CUgraphNodeParams* p) {
  NEED_ARG(p != nullptr);
  switch (p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
      CUDA_KERNEL_NODE_PARAMS k{};
      std::memcpy(&k, &p->kernel, std::min(sizeof k, sizeof p->kernel));
      return cuGraphAddKernelNode_v2(out, g, after, count, &k);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
      return cuGraphAddMemcpyNode(out, g, after, count, &p->memcpy.copyParams, p->memcpy.copyCtx);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
      const CUDA_MEMSET_NODE_PARAMS m = {p->memset.dst,         p->memset.pitch, p->memset.value,
                                         p->memset.elementSize, p->memset.width, p->memset.height};
      return cuGraphAddMemsetNode(out, g, after, count, &m, p->memset.ctx);
    }
    case CU_GRAPH_NODE_TYPE_HOST: {
      const CUDA_HOST_NODE_PARAMS h = {p->host.fn, p->host.userData};
      return cuGraphAddHostNode(out, g, after, count, &h);
    }
    case CU_GRAPH_NODE_TYPE_EMPTY:
      return cuGraphAddEmptyNode(out, g, after, count);
    case CU_GRAPH_NODE_TYPE_GRAPH:
      return cuGraphAddChildGraphNode(out, g, after, count, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
      return cuGraphAddEventRecordNode(out, g, after, count, p->eventRecord.event);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
      return cuGraphAddEventWaitNode(out, g, after, count, p->eventWait.event);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS v = {p->memOp.ctx, p->memOp.count, p->memOp.paramArray, p->memOp.flags};
      return cuGraphAddBatchMemOpNode(out, g, after, count, &v);
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
      return cuGraphAddMemFreeNode(out, g, after, count, p->free.dptr);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
      CUDA_MEM_ALLOC_NODE_PARAMS a{p->alloc.poolProps, p->alloc.accessDescs, p->alloc.accessDescCount,
                                   p->alloc.bytesize, 0};
      const CUresult r = cuGraphAddMemAllocNode(out, g, after, count, &a);
      p->alloc.dptr = a.dptr;
      return r;
    }
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: {
      BEGIN(2000);
      ADD(CU_GRAPH_NODE_TYPE_CONDITIONAL);
      OR_REMOVE(simgpu::SetConditional(n, &p->conditional));
    }
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}
CUresult cuGraphAddNode(CUgraphNode* out, CUgraph g, const CUgraphNode* after, size_t count, CUgraphNodeParams* p) {
  return cuGraphAddNode_v2(out, g, after, nullptr, count, p);
}

CUresult cuGraphAddDependencies(CUgraph g, const CUgraphNode* from, const CUgraphNode* to, size_t count) {
  BEGIN(1000);
  NEED_ARG(ValidGraph(g) && (count == 0 || (from != nullptr && to != nullptr)));
  for (size_t i = 0; i < count; ++i) {
    NEED_ARG(from[i]->graph == g && to[i]->graph == g && from[i] != to[i]);
    to[i]->after.push_back(from[i]);
  }
  return CUDA_SUCCESS;
}
CUresult cuGraphAddDependencies_v2(CUgraph g, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData*,
                                   size_t count) {
  return cuGraphAddDependencies(g, from, to, count);
}

CUresult cuGraphDestroyNode(CUgraphNode n) {
  BEGIN(1000);
  NEED_ARG(n != nullptr && ValidGraph(n->graph));
  simgpu::DropKept(*n);
  auto& nodes = n->graph->nodes;
  for (auto& other : nodes) {
    other->after.erase(std::remove(other->after.begin(), other->after.end(), n), other->after.end());
  }
  nodes.erase(std::find_if(nodes.begin(), nodes.end(), [&](const auto& other) { return other.get() == n; }));
  return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph g, CUgraphNode* out, size_t* count) {
  BEGIN(1000);
  NEED_ARG(ValidGraph(g) && count != nullptr);
  const size_t room = *count;
  *count = g->nodes.size();
  for (size_t i = 0; out != nullptr && i < room; ++i) out[i] = i < g->nodes.size() ? g->nodes[i].get() : nullptr;
  if (out != nullptr) *count = std::min(room, g->nodes.size());
  return CUDA_SUCCESS;
}

CUresult cuGraphGetRootNodes(CUgraph g, CUgraphNode* out, size_t* count) {
  BEGIN(1000);
  NEED_ARG(ValidGraph(g) && count != nullptr);
  size_t found = 0;
  for (const auto& n : g->nodes) {
    if (!n->after.empty()) continue;
    if (out != nullptr && found < *count) out[found] = n.get();
    ++found;
  }
  *count = out != nullptr ? std::min(*count, found) : found;
  return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges(CUgraph g, CUgraphNode* from, CUgraphNode* to, size_t* count) {
  BEGIN(1000);
  NEED_ARG(ValidGraph(g) && count != nullptr);
  size_t found = 0;
  for (const auto& n : g->nodes) {
    for (CUgraphNode d : n->after) {
      if (from != nullptr && to != nullptr && found < *count) {
        from[found] = d;
        to[found] = n.get();
      }
      ++found;
    }
  }
  *count = from != nullptr && to != nullptr ? std::min(*count, found) : found;
  return CUDA_SUCCESS;
}
CUresult cuGraphGetEdges_v2(CUgraph g, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data, size_t* count) {
  const CUresult r = cuGraphGetEdges(g, from, to, count);
  if (r == CUDA_SUCCESS && data != nullptr && from != nullptr) std::memset(data, 0, sizeof *data * *count);
  return r;
}

CUresult cuGraphNodeGetType(CUgraphNode n, CUgraphNodeType* type) {
  BEGIN(100);
  NEED_ARG(n != nullptr && type != nullptr);
  *type = n->type;
  return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetDependencies(CUgraphNode n, CUgraphNode* out, size_t* count) {
  BEGIN(100);
  NEED_ARG(n != nullptr && count != nullptr);
  for (size_t i = 0; out != nullptr && i < *count; ++i) out[i] = i < n->after.size() ? n->after[i] : nullptr;
  *count = out != nullptr ? std::min(*count, n->after.size()) : n->after.size();
  return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetDependencies_v2(CUgraphNode n, CUgraphNode* out, CUgraphEdgeData*, size_t* count) {
  return cuGraphNodeGetDependencies(n, out, count);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode n, CUgraphNode* out, size_t* count) {
  BEGIN(100);
  NEED_ARG(n != nullptr && count != nullptr);
  size_t found = 0;
  for (const auto& other : n->graph->nodes) {
    if (std::find(other->after.begin(), other->after.end(), n) == other->after.end()) continue;
    if (out != nullptr && found < *count) out[found] = other.get();
    ++found;
  }
  *count = out != nullptr ? std::min(*count, found) : found;
  return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode n, CUDA_KERNEL_NODE_PARAMS* p) {
  BEGIN(200);
  return GetKernel(n, p);
}
CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS* p) {
  BEGIN(1000);
  NEED_ARG(n != nullptr && p != nullptr && n->type == CU_GRAPH_NODE_TYPE_KERNEL);
  return simgpu::SetKernel(n, *p);
}
CUresult cuGraphMemcpyNodeGetParams(CUgraphNode n, CUDA_MEMCPY3D* p) {
  BEGIN(200);
  NEED_ARG(n != nullptr && p != nullptr && n->type == CU_GRAPH_NODE_TYPE_MEMCPY);
  *p = n->copy;
  return CUDA_SUCCESS;
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode n, const CUDA_MEMCPY3D* p) {
  BEGIN(1000);
  NEED_ARG(n != nullptr && p != nullptr && n->type == CU_GRAPH_NODE_TYPE_MEMCPY);
  return simgpu::SetCopy(n, *p);
}
CUresult cuGraphMemsetNodeGetParams(CUgraphNode n, CUDA_MEMSET_NODE_PARAMS* p) {
  BEGIN(200);
  NEED_ARG(n != nullptr && p != nullptr && n->type == CU_GRAPH_NODE_TYPE_MEMSET);
  *p = n->set;
  return CUDA_SUCCESS;
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS* p) {
  BEGIN(1000);
  NEED_ARG(n != nullptr && p != nullptr && n->type == CU_GRAPH_NODE_TYPE_MEMSET);
  return simgpu::SetMemset(n, *p);
}
CUresult cuGraphHostNodeGetParams(CUgraphNode n, CUDA_HOST_NODE_PARAMS* p) {
  BEGIN(200);
  NEED_ARG(n != nullptr && p != nullptr && n->type == CU_GRAPH_NODE_TYPE_HOST);
  *p = n->host;
  return CUDA_SUCCESS;
}
CUresult cuGraphAddBatchMemOpNode(ADD_PARAMS, const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  BEGIN(2000);
  NEED_ARG(p != nullptr);
  ADD(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  OR_REMOVE(simgpu::SetValues(n, *p));
}
CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode n, CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  BEGIN(200);
  NEED_ARG(n != nullptr && p != nullptr && n->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  *p = {simgpu::CurrentContext(), static_cast<unsigned>(n->values.size()), n->values.data(), 0};
  return CUDA_SUCCESS;
}
CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode n, const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  BEGIN(1000);
  NEED_ARG(n != nullptr && p != nullptr && n->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
  return simgpu::SetValues(n, *p);
}
CUresult cuGraphNodeSetParams(CUgraphNode n, CUgraphNodeParams* p) {
  BEGIN(1000);
  NEED_ARG(n != nullptr && p != nullptr && n->type == p->type);
  NEED(n->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CUDA_ERROR_NOT_SUPPORTED);
  return simgpu::SetValues(n, {p->memOp.ctx, p->memOp.count, p->memOp.paramArray, p->memOp.flags});
}
CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode n, CUgraph* out) {
  BEGIN(200);
  NEED_ARG(n != nullptr && out != nullptr && n->child != nullptr);
  *out = n->child;
  return CUDA_SUCCESS;
}
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode n, CUDA_MEM_ALLOC_NODE_PARAMS* p) {
  BEGIN(200);
  NEED_ARG(n != nullptr && p != nullptr && n->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
  *p = n->alloc;
  return CUDA_SUCCESS;
}
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode n, CUdeviceptr* p) {
  BEGIN(200);
  NEED_ARG(n != nullptr && p != nullptr && n->type == CU_GRAPH_NODE_TYPE_MEM_FREE);
  *p = n->free_pointer;
  return CUDA_SUCCESS;
}
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode n, CUevent* e) {
  BEGIN(200);
  NEED_ARG(n != nullptr && e != nullptr && n->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD);
  *e = n->event;
  return CUDA_SUCCESS;
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode n, CUevent* e) {
  BEGIN(200);
  NEED_ARG(n != nullptr && e != nullptr && n->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT);
  *e = n->event;
  return CUDA_SUCCESS;
}

}  // extern "C"
