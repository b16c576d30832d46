// Conditional nodes of graphs. A condition, set by kernels (simgpu_next_sets) or by the launch, decides how often a
// body runs. The values that kernels will set are known when a graph is launched, so the bodies are queued then.
#include "../core/misuse.h"
#include "graph_ops.h"

namespace simgpu {

namespace {

struct Condition {
  unsigned value = 0, at_launch = 0;
  bool assigned = false;  // at each launch
};
std::vector<Condition>& Conditions() {
  static std::vector<Condition> all;
  return all;
}
Condition* Find(CUgraphConditionalHandle handle) {
  return handle == 0 || handle > Conditions().size() ? nullptr : &Conditions()[handle - 1];
}
constexpr int kEndless = 100000;

void RunBody(Call& call, CUgraph body, CUstream s) {
  std::vector<CUgraphNode> order;
  Order(body, &order);
  RunNodes(call, order, s);
}

}  // namespace

CUresult SetConditional(CUgraphNode n, CUDA_CONDITIONAL_NODE_PARAMS* p) {
  NEED_ARG(Find(p->handle) != nullptr && p->size != 0);
  NEED_ARG(p->type != CU_GRAPH_COND_TYPE_WHILE || p->size == 1);
  NEED_ARG(p->type != CU_GRAPH_COND_TYPE_IF || p->size <= 2);
  n->conditional = std::make_shared<SimConditional>();
  n->conditional->handle = p->handle;
  n->conditional->type = p->type;
  for (unsigned i = 0; i < p->size; ++i) n->conditional->bodies.push_back(new CUgraph_st);
  p->phGraph_out = n->conditional->bodies.data();
  return CUDA_SUCCESS;
}

bool HasConditional(CUgraph g) {
  for (const auto& n : g->nodes) {
    if (n->conditional != nullptr || (n->child != nullptr && HasConditional(n->child))) return true;
  }
  return false;
}

void AssignConditions(CUgraph g) {
  for (const auto& n : g->nodes) {
    if (n->conditional == nullptr) continue;
    Condition* const condition = Find(n->conditional->handle);
    if (condition->assigned) condition->value = condition->at_launch;
    for (CUgraph body : n->conditional->bodies) AssignConditions(body);
  }
}

void SetCondition(SimKernelCall* kernel) {
  Condition* const condition = Find(kernel->sets);
  if (condition != nullptr) condition->value = kernel->values[kernel->runs++ % kernel->values.size()];
}

void RunConditional(Call& call, const SimConditional& node, CUstream s) {
  const auto value = [&node] { return Find(node.handle)->value; };
  switch (node.type) {
    case CU_GRAPH_COND_TYPE_IF:
      if (value() != 0) {
        RunBody(call, node.bodies[0], s);
      } else if (node.bodies.size() > 1) {
        RunBody(call, node.bodies[1], s);
      }
      break;
    case CU_GRAPH_COND_TYPE_WHILE:
      for (int i = 0; value() != 0; ++i) {
        if (i == kEndless) return Misuse("the body of a graph's loop has run " + std::to_string(i) + " times");
        RunBody(call, node.bodies[0], s);
      }
      break;
    case CU_GRAPH_COND_TYPE_SWITCH:
      if (value() < node.bodies.size()) RunBody(call, node.bodies[value()], s);
      break;
  }
}

}  // namespace simgpu

extern "C" CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle* out, CUgraph g, CUcontext,
                                                   unsigned int value, unsigned int flags) {
  BEGIN(1000);
  NEED_ARG(out != nullptr && simgpu::ValidGraph(g) && (flags & ~unsigned{CU_GRAPH_COND_ASSIGN_DEFAULT}) == 0);
  simgpu::Conditions().push_back({value, value, (flags & CU_GRAPH_COND_ASSIGN_DEFAULT) != 0});
  *out = simgpu::Conditions().size();
  return CUDA_SUCCESS;
}
