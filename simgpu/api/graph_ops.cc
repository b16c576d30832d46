#include "graph_ops.h"

#include <algorithm>
#include <utility>

#include "array.h"

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
  copy->kind_of_kernel = op.kind_of_kernel;
  copy->ranges = op.ranges;
  copy->copy = op.copy;
  copy->set = op.set;
  copy->host = op.host;
  copy->value = op.value;
  return copy;
}

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
    if (n->conditional != nullptr) {
      c->conditional = std::make_shared<SimConditional>(*n->conditional);
      for (CUgraph& body : c->conditional->bodies) {
        std::map<CUgraphNode, CUgraphNode> inner;
        body = CloneGraph(body, &inner).release();
      }
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
  CopyKept(g, copy.get());
  return copy;
}

void RunNodes(Call& call, const std::vector<CUgraphNode>& order, CUstream s) {
  for (CUgraphNode n : order) {
    if (n->enabled == 0) continue;
    if (n->child != nullptr) {
      std::vector<CUgraphNode> inner;
      Order(n->child, &inner);
      RunNodes(call, inner, s);
      continue;
    }
    if (n->conditional != nullptr) {
      RunConditional(call, *n->conditional, s);
      continue;
    }
    if (n->kernel != nullptr && n->kernel->sets != 0) SetCondition(n->kernel.get());
    if (n->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD && ValidEvent(n->event))
      n->event->fence = Sim().SubmitFence(call.lock, s->sim);
    if (n->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT && ValidEvent(n->event))
      Sim().SubmitWait(call.lock, s->sim, n->event->fence);
    if (n->op == nullptr) continue;
    Op* op = CloneOp(*n->op);
    // A pageable host side does not stop a graph.
    Sim().Submit(call.lock, s->sim, op);
    for (const auto& another : n->more) Sim().Submit(call.lock, s->sim, CloneOp(*another));
  }
}

CUresult SetKernel(CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS& p) {
  CUfunction f = p.func != nullptr ? p.func : reinterpret_cast<CUfunction>(p.kern);
  auto call = std::make_shared<SimKernelCall>();
  Op* op = nullptr;
  if (const CUresult r = MakeKernelOp(f, p.kernelParams, p.extra, nullptr, &op, call.get()); r != CUDA_SUCCESS)
    return r;
  call->grid[0] = p.gridDimX;
  call->grid[1] = p.gridDimY;
  call->grid[2] = p.gridDimZ;
  call->block[0] = p.blockDimX;
  call->block[1] = p.blockDimY;
  call->block[2] = p.blockDimZ;
  call->shared = p.sharedMemBytes;
  n->kernel = std::move(call);
  n->op.reset(op);
  return CUDA_SUCCESS;
}

CUresult SetCopy(CUgraphNode n, const CUDA_MEMCPY3D& p) {
  if (const CUresult r = CheckCopy3D(p); r != CUDA_SUCCESS) return r;
  CopyWork c;
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
  for (const bool is_source : {true, false}) {
    if ((is_source ? p.srcMemoryType : p.dstMemoryType) != CU_MEMORYTYPE_ARRAY) continue;
    ArrayRows rows;
    if (const CUresult r = FindArray(is_source ? p.srcArray : p.dstArray, &rows); r != CUDA_SUCCESS) return r;
    (is_source ? c.src_pitch : c.dst_pitch) = rows.pitch;
    (is_source ? c.src_slice : c.dst_slice) = rows.slice;
    (is_source ? c.src : c.dst) = rows.base + (is_source ? p.srcXInBytes : p.dstXInBytes) +
                                  (is_source ? p.srcY : p.dstY) * rows.pitch +
                                  (is_source ? p.srcZ : p.dstZ) * rows.slice;
  }
  Op* op = Sim().NewOp(OpKind::kCopy);
  const auto touch = [&](uint64_t at, uint64_t pitch, uint64_t slice, uint32_t access) {
    const uint64_t length = (c.depth - 1) * slice + (c.height - 1) * pitch + c.width;
    if (Sim().memory().InArena(at)) op->touches.push_back({at, length, access, 0});
  };
  touch(c.dst, c.dst_pitch, c.dst_slice, 2);
  touch(c.src, c.src_pitch, c.src_slice, 1);
  op->copy = std::move(c);
  n->copy = p;
  n->op.reset(op);
  return CUDA_SUCCESS;
}

CUresult SetMemset(CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS& p) {
  NEED_ARG(p.elementSize == 1 || p.elementSize == 2 || p.elementSize == 4);
  const uint64_t width = p.width * p.elementSize;
  const size_t height = std::max<size_t>(p.height, 1);
  NEED_ARG(Sim().Mapped(p.dst, (height - 1) * p.pitch + width));
  Op* op = Sim().NewOp(OpKind::kMemset);
  const uint64_t mask = p.elementSize == 4 ? 0xFFFFFFFFu : p.elementSize == 2 ? 0xFFFFu : 0xFFu;
  uint64_t pattern = 0;
  for (unsigned i = 0; i < 8; i += p.elementSize) pattern |= (p.value & mask) << (8 * i);
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

}  // namespace simgpu
