// User objects: references that graphs, their copies and their launches hold.
#include <algorithm>
#include <utility>

#include "graph_ops.h"

using simgpu::Op;
using simgpu::OpKind;
using simgpu::Sim;

namespace {

bool ValidObject(CUuserObject o) { return o != nullptr && o->magic == kUserObjectMagic; }

// The last reference ends it. Its destructor runs in the call, or at the end of the launch.
void Release(CUuserObject object, unsigned count) {
  object->references -= std::min<uint64_t>(object->references, count);
  if (object->references != 0) return;
  object->magic = kDead;
  object->destroy(object->data);
  delete object;
}

void ReleaseAll(SimKept kept) {
  for (const auto& [object, count] : kept) Release(object, count);
}

std::vector<CUgraph> Inner(const CUgraphNode_st& node) {
  std::vector<CUgraph> inner;
  if (node.child != nullptr) inner.push_back(node.child);
  if (node.conditional != nullptr)
    inner.insert(inner.end(), node.conditional->bodies.begin(), node.conditional->bodies.end());
  return inner;
}

void CollectKept(CUgraph g, SimKept* all) {
  for (const auto& [object, count] : g->kept) (*all)[object] += count;
  for (const auto& n : g->nodes) {
    for (CUgraph inner : Inner(*n)) CollectKept(inner, all);
  }
}

void EndLaunch(void* kept, uint64_t) {
  auto* const held = static_cast<SimKept*>(kept);
  ReleaseAll(std::move(*held));
  delete held;
}

}  // namespace

namespace simgpu {

void CopyKept(CUgraph from, CUgraph to) {
  to->kept = from->kept;
  for (const auto& [object, count] : to->kept) object->references += count;
}

void DropKept(const CUgraphNode_st& node) {
  for (CUgraph inner : Inner(node)) DropKept(inner);
}

void DropKept(CUgraph g) {
  for (const auto& n : g->nodes) DropKept(*n);
  ReleaseAll(std::exchange(g->kept, {}));
}

Op* KeepWhileRunning(CUgraph g) {
  SimKept all;
  CollectKept(g, &all);
  if (all.empty()) return nullptr;
  for (const auto& [object, count] : all) object->references += count;
  Op* const op = Sim().NewOp(OpKind::kAction);
  op->action = EndLaunch;
  op->action_a = new SimKept(std::move(all));
  return op;
}

}  // namespace simgpu

extern "C" {

CUresult cuUserObjectCreate(CUuserObject* out, void* data, CUhostFn destroy, unsigned count, unsigned flags) {
  BEGIN(500);
  NEED_ARG(out != nullptr && destroy != nullptr && count != 0 && flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  *out = new CUuserObject_st{kUserObjectMagic, destroy, data, count};
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned count) {
  BEGIN(100);
  NEED_ARG(ValidObject(object) && count != 0);
  object->references += count;
  return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
  BEGIN(100);
  NEED_ARG(ValidObject(object) && count != 0);
  Release(object, count);
  return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph g, CUuserObject object, unsigned count, unsigned flags) {
  BEGIN(200);
  NEED_ARG(simgpu::ValidGraph(g) && ValidObject(object) && count != 0 && flags <= CU_GRAPH_USER_OBJECT_MOVE);
  g->kept[object] += count;
  if (flags == 0) object->references += count;
  return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph g, CUuserObject object, unsigned count) {
  BEGIN(200);
  NEED_ARG(simgpu::ValidGraph(g) && ValidObject(object) && count != 0);
  const auto kept = g->kept.find(object);
  NEED_ARG(kept != g->kept.end() && kept->second >= count);
  kept->second -= count;
  if (kept->second == 0) g->kept.erase(kept);
  Release(object, count);
  return CUDA_SUCCESS;
}

}  // extern "C"
