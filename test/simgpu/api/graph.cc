// Graphs: nodes, edges, instantiation, launch.
#include <algorithm>
#include <cstring>

#include "call.h"

using simgpu::Op;
using simgpu::OpKind;
using simgpu::Sim;
using simgpu::TheDriver;

namespace simgpu {

CUgraphNode AddNode(CUgraph g, CUgraphNodeType type, const CUgraphNode* after, size_t count) {
  auto n = std::make_unique<CUgraphNode_st>();
  n->graph = g;
  n->type = type;
  n->after.assign(after, after + count);
  n->id = TheDriver().next_id++;
  g->nodes.push_back(std::move(n));
  return g->nodes.back().get();
}

Op* CloneOp(const Op& op) {
  Op* copy = Sim().NewOp(op.kind);
  copy->name = op.name;
  copy->duration = op.duration;
  copy->seed = op.seed;
  copy->touches = op.touches;
  copy->must_be_resident = op.must_be_resident;
  copy->ranges = op.ranges;
  copy->copy = op.copy;
  copy->set = op.set;
  copy->host = op.host;
  copy->value = op.value;
  return copy;
}

namespace {

// Dependencies first, else in the order of creation.
bool Order(CUgraph g, std::vector<CUgraphNode>* out) {
  std::map<CUgraphNode, int> state;
  std::vector<std::pair<CUgraphNode, size_t>> stack;
  for (const auto& n : g->nodes) {
    if (state[n.get()] != 0) continue;
    stack.emplace_back(n.get(), 0);
    state[n.get()] = 1;
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < node->after.size()) {
        CUgraphNode d = node->after[next++];
        if (state[d] == 1) return false;
        if (state[d] == 0) {
          state[d] = 1;
          stack.emplace_back(d, 0);
        }
        continue;
      }
      state[node] = 2;
      out->push_back(node);
      stack.pop_back();
    }
  }
  return true;
}

std::unique_ptr<CUgraph_st> CloneGraph(CUgraph g, std::map<CUgraphNode, CUgraphNode>* map) {
  auto copy = std::make_unique<CUgraph_st>();
  for (const auto& n : g->nodes) {
    auto c = std::make_unique<CUgraphNode_st>(*n);
    c->graph = copy.get();
    c->cloned_from = n.get();
    if (n->child != nullptr) {
      std::map<CUgraphNode, CUgraphNode> inner;
      c->child = CloneGraph(n->child, &inner).release();
    }
    if (n->kernel != nullptr) {
      c->kernel = std::make_shared<SimKernelCall>(*n->kernel);
      const SimKernelInfo* info = KernelInfo(
          c->kernel->function != nullptr ? c->kernel->function : reinterpret_cast<CUfunction>(c->kernel->kernel));
      for (size_t i = 0; i < c->kernel->pointers.size(); ++i) {
        if (c->kernel->pointers[i] != nullptr) c->kernel->pointers[i] = c->kernel->params.data() + info->offsets[i];
      }
    }
    (*map)[n.get()] = c.get();
    copy->nodes.push_back(std::move(c));
  }
  for (auto& n : copy->nodes) {
    for (CUgraphNode& d : n->after) d = (*map)[d];
  }
  return copy;
}

void Run(Call& call, const std::vector<CUgraphNode>& order, CUstream s) {
  for (CUgraphNode n : order) {
    if (n->enabled == 0) continue;
    if (n->child != nullptr) {
      std::vector<CUgraphNode> inner;
      Order(n->child, &inner);
      Run(call, inner, s);
      continue;
    }
    if (n->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD && ValidEvent(n->event))
      n->event->fence = Sim().SubmitFence(call.lock, s->sim);
    if (n->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT && ValidEvent(n->event))
      Sim().SubmitWait(call.lock, s->sim, n->event->fence);
    if (n->op == nullptr) continue;
    Op* op = CloneOp(*n->op);
    // A pageable host side does not stop a graph.
    Sim().Submit(call.lock, s->sim, op);
  }
}

}  // namespace

void LaunchGraphOps(Call& call, CUgraphExec exec, CUstream s) { Run(call, exec->order, s); }

}  // namespace simgpu

namespace {

bool ValidGraph(CUgraph g) { return g != nullptr && g->magic == kGraphMagic; }
bool ValidExec(CUgraphExec g) { return g != nullptr && g->magic == kGraphMagic; }

CUresult CheckDependencies(CUgraph g, const CUgraphNode* after, size_t count) {
  NEED_ARG(ValidGraph(g) && (count == 0 || after != nullptr));
  for (size_t i = 0; i < count; ++i) NEED_ARG(after[i] != nullptr && after[i]->graph == g);
  return CUDA_SUCCESS;
}

CUresult SetKernel(CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS& p) {
  CUfunction f = p.func != nullptr ? p.func : reinterpret_cast<CUfunction>(p.kern);
  auto call = std::make_shared<SimKernelCall>();
  Op* op = nullptr;
  if (const CUresult r = simgpu::MakeKernelOp(f, p.kernelParams, p.extra, nullptr, &op, call.get()); r != CUDA_SUCCESS)
    return r;
  call->grid[0] = p.gridDimX;
  call->grid[1] = p.gridDimY;
  call->grid[2] = p.gridDimZ;
  call->block[0] = p.blockDimX;
  call->block[1] = p.blockDimY;
  call->block[2] = p.blockDimZ;
  call->shared = p.sharedMemBytes;
  n->kernel = call;
  n->op.reset(op);
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

CUresult SetCopy(CUgraphNode n, const CUDA_MEMCPY3D& p) {
  NEED(p.srcMemoryType != CU_MEMORYTYPE_ARRAY && p.dstMemoryType != CU_MEMORYTYPE_ARRAY, CUDA_ERROR_NOT_SUPPORTED);
  simgpu::CopyWork c;
  c.width = p.WidthInBytes;
  c.height = std::max<size_t>(p.Height, 1);
  c.depth = std::max<size_t>(p.Depth, 1);
  c.src_pitch = p.srcPitch != 0 ? p.srcPitch : c.width;
  c.dst_pitch = p.dstPitch != 0 ? p.dstPitch : c.width;
  c.src_slice = c.src_pitch * std::max<size_t>(p.srcHeight, c.height);
  c.dst_slice = c.dst_pitch * std::max<size_t>(p.dstHeight, c.height);
  c.src = (p.srcMemoryType == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(p.srcHost) : p.srcDevice) +
          p.srcXInBytes + p.srcY * c.src_pitch + p.srcZ * c.src_slice;
  c.dst = (p.dstMemoryType == CU_MEMORYTYPE_HOST ? reinterpret_cast<uint64_t>(p.dstHost) : p.dstDevice) +
          p.dstXInBytes + p.dstY * c.dst_pitch + p.dstZ * c.dst_slice;
  Op* op = Sim().NewOp(OpKind::kCopy);
  const auto touch = [&](uint64_t at, uint64_t pitch, uint64_t slice, uint32_t access) {
    const uint64_t length = (c.depth - 1) * slice + (c.height - 1) * pitch + c.width;
    if (Sim().memory().InArena(at)) op->touches.push_back({at, length, access, 0});
  };
  touch(c.dst, c.dst_pitch, c.dst_slice, 2);
  touch(c.src, c.src_pitch, c.src_slice, 1);
  op->copy = c;
  n->copy = p;
  n->op.reset(op);
  return CUDA_SUCCESS;
}

CUresult SetMemset(CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS& p) {
  NEED_ARG(p.elementSize == 1 || p.elementSize == 2 || p.elementSize == 4);
  Op* op = Sim().NewOp(OpKind::kMemset);
  const uint64_t width = p.width * p.elementSize;
  const uint64_t mask = p.elementSize == 4 ? 0xFFFFFFFFu : p.elementSize == 2 ? 0xFFFFu : 0xFFu;
  uint64_t pattern = 0;
  for (unsigned i = 0; i < 8; i += p.elementSize) pattern |= (p.value & mask) << (8 * i);
  const size_t height = std::max<size_t>(p.height, 1);
  op->set = {p.dst, height == 1 ? width : p.pitch, width, height, pattern};
  op->touches.push_back({p.dst, (height - 1) * p.pitch + width, 2, 0});
  n->set = p;
  n->op.reset(op);
  return CUDA_SUCCESS;
}

CUresult SetHost(CUgraphNode n, const CUDA_HOST_NODE_PARAMS& p) {
  NEED_ARG(p.fn != nullptr);
  Op* op = Sim().NewOp(OpKind::kHostFunc);
  op->host = {p.fn, p.userData};
  n->host = p;
  n->op.reset(op);
  return CUDA_SUCCESS;
}

// The node of an executable graph that stands for the original's.
CUgraphNode InExec(CUgraphExec exec, CUgraphNode n) {
  if (!ValidExec(exec)) return nullptr;
  auto it = exec->node.find(n);
  return it == exec->node.end() ? nullptr : it->second;
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
  g->magic = kDead;
  g->nodes.clear();
  return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph* out, CUgraph g) {
  BEGIN(5000);
  NEED_ARG(out != nullptr && ValidGraph(g));
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
  OR_REMOVE(SetKernel(n, *p));
}
CUresult cuGraphAddMemcpyNode(ADD_PARAMS, const CUDA_MEMCPY3D* p, CUcontext) {
  BEGIN(2000);
  NEED_ARG(p != nullptr);
  ADD(CU_GRAPH_NODE_TYPE_MEMCPY);
  OR_REMOVE(SetCopy(n, *p));
}
CUresult cuGraphAddMemsetNode(ADD_PARAMS, const CUDA_MEMSET_NODE_PARAMS* p, CUcontext) {
  BEGIN(2000);
  NEED_ARG(p != nullptr);
  ADD(CU_GRAPH_NODE_TYPE_MEMSET);
  OR_REMOVE(SetMemset(n, *p));
}
CUresult cuGraphAddHostNode(ADD_PARAMS, const CUDA_HOST_NODE_PARAMS* p) {
  BEGIN(2000);
  NEED_ARG(p != nullptr);
  ADD(CU_GRAPH_NODE_TYPE_HOST);
  OR_REMOVE(SetHost(n, *p));
}
CUresult cuGraphAddEmptyNode(ADD_PARAMS) {
  BEGIN(2000);
  ADD(CU_GRAPH_NODE_TYPE_EMPTY);
  return CUDA_SUCCESS;
}
CUresult cuGraphAddChildGraphNode(ADD_PARAMS, CUgraph child) {
  BEGIN(2000);
  NEED_ARG(ValidGraph(child));
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
  return SetKernel(n, *p);
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
  return SetCopy(n, *p);
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
  return SetMemset(n, *p);
}
CUresult cuGraphHostNodeGetParams(CUgraphNode n, CUDA_HOST_NODE_PARAMS* p) {
  BEGIN(200);
  NEED_ARG(n != nullptr && p != nullptr && n->type == CU_GRAPH_NODE_TYPE_HOST);
  *p = n->host;
  return CUDA_SUCCESS;
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

CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph g, unsigned long long flags) {
  BEGIN(50000);
  return Instantiate(out, g, flags);
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  BEGIN(5000);
  NEED_ARG(ValidExec(exec));
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
  return SetKernel(mine, *p);
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode n, const CUDA_MEMCPY3D* p, CUcontext) {
  BEGIN(1000);
  CUgraphNode mine = InExec(exec, n);
  NEED_ARG(mine != nullptr && p != nullptr && mine->type == CU_GRAPH_NODE_TYPE_MEMCPY);
  return SetCopy(mine, *p);
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS* p, CUcontext) {
  BEGIN(1000);
  CUgraphNode mine = InExec(exec, n);
  NEED_ARG(mine != nullptr && p != nullptr && mine->type == CU_GRAPH_NODE_TYPE_MEMSET);
  return SetMemset(mine, *p);
}
CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode n, const CUDA_HOST_NODE_PARAMS* p) {
  BEGIN(1000);
  CUgraphNode mine = InExec(exec, n);
  NEED_ARG(mine != nullptr && p != nullptr && mine->type == CU_GRAPH_NODE_TYPE_HOST);
  return SetHost(mine, *p);
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

// Same shape: the new graph's nodes take the places of the old ones.
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph g, CUgraphExecUpdateResultInfo* info) {
  BEGIN(20000);
  NEED_ARG(ValidExec(exec) && ValidGraph(g) && info != nullptr);
  *info = CUgraphExecUpdateResultInfo{};
  const auto fail = [&](CUgraphExecUpdateResult why, CUgraphNode n) {
    info->result = why;
    info->errorNode = n;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
  };
  if (g->nodes.size() != exec->graph->nodes.size()) return fail(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, nullptr);
  std::map<CUgraphNode, size_t> index_new, index_old;
  for (size_t i = 0; i < g->nodes.size(); ++i) {
    index_new[g->nodes[i].get()] = i;
    index_old[exec->graph->nodes[i].get()] = i;
  }
  for (size_t i = 0; i < g->nodes.size(); ++i) {
    CUgraphNode a = exec->graph->nodes[i].get();
    CUgraphNode b = g->nodes[i].get();
    if (a->type != b->type) return fail(CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, b);
    if (a->after.size() != b->after.size()) return fail(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, b);
    for (size_t k = 0; k < a->after.size(); ++k) {
      if (index_old[a->after[k]] != index_new[b->after[k]]) return fail(CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, b);
    }
  }
  CUgraphExec fresh = nullptr;
  if (const CUresult r = Instantiate(&fresh, g, exec->flags); r != CUDA_SUCCESS) return r;
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
  BEGIN(50000);
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
    std::map<CUgraphNode, CUgraphNode> map;
    CUgraphNode n =
        simgpu::AddNode(stream->capture->graph, CU_GRAPH_NODE_TYPE_GRAPH, stream->tail.data(), stream->tail.size());
    n->child = simgpu::CloneGraph(exec->graph.get(), &map).release();
    stream->tail = {n};
    return CUDA_SUCCESS;
  }
  simgpu::LaunchGraphOps(call, exec, stream);
  return CUDA_SUCCESS;
}
