// Copies and memsets as nodes of graphs. The driver checks their ranges when they are added or changed. It takes an
// arena for one allocation, so ranges past a block of the application's are refused here.
#include <algorithm>
#include <array>

#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/block_ends.h"
#include "hooklib/engine/device/peers.h"
#include "hooklib/engine/entries/node_ranges.h"
#include "hooklib/engine/entries/value_nodes.h"
#include "hooklib/engine/execute/copy_sides.h"

namespace sluice {

namespace {

std::array<memory::Extent, 2> SidesOf(const CUDA_MEMCPY3D& copy) {
  // A node of a copy of fewer dimensions may leave the others out.
  CUDA_MEMCPY3D full = copy;
  full.Height = std::max<size_t>(full.Height, 1);
  full.Depth = std::max<size_t>(full.Depth, 1);
  return Sides3D(&full);
}
memory::Extent RangeOf(const CUDA_MEMSET_NODE_PARAMS& set) {
  return Rows(set.dst, set.pitch, set.width * set.elementSize, set.height);
}
CUDA_MEMSET_NODE_PARAMS MemsetOf(const CUgraphNodeParams& node) {
  const CUDA_MEMSET_NODE_PARAMS_v2& s = node.memset;
  return {s.dst, s.pitch, s.value, s.elementSize, s.width, s.height};
}

}  // namespace

bool ReachesPastItsBlock(const CUDA_MEMCPY3D* copy) {
  if (!copy) return false;
  const auto [to, from] = SidesOf(*copy);
  return ReachesPastItsBlock(to) || ReachesPastItsBlock(from);
}

bool ReachesPastItsBlock(const CUDA_MEMSET_NODE_PARAMS* set) { return set && ReachesPastItsBlock(RangeOf(*set)); }

bool ReachesPastItsBlock(const CUgraphNodeParams* node) {
  if (!node) return false;
  if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY) return ReachesPastItsBlock(&node->memcpy.copyParams);
  if (node->type != CU_GRAPH_NODE_TYPE_MEMSET) return false;
  const CUDA_MEMSET_NODE_PARAMS set = MemsetOf(*node);
  return ReachesPastItsBlock(&set);
}

void KeepWhereAllocated(CUcontext context, const CUDA_MEMCPY3D* copy) {
  if (!copy) return;
  const auto [to, from] = SidesOf(*copy);
  KeepWhereAllocated(context, to, from);
}
void KeepWhereAllocated(CUcontext context, const CUDA_MEMSET_NODE_PARAMS* set) {
  if (set) KeepWhereAllocated(context, RangeOf(*set), {});
}
void KeepWhereAllocated(const CUgraphNodeParams* node) {
  if (!node) return;
  if (node->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    KeepWhereAllocated(node->memcpy.copyCtx, &node->memcpy.copyParams);
  } else if (node->type == CU_GRAPH_NODE_TYPE_MEMSET) {
    const CUDA_MEMSET_NODE_PARAMS set = MemsetOf(*node);
    KeepWhereAllocated(node->memset.ctx, &set);
  }
}

namespace entry {

CUresult cuGraphAddMemcpyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                              const CUDA_MEMCPY3D* copy, CUcontext context) {
  if (ReachesPastItsBlock(copy)) return CUDA_ERROR_INVALID_VALUE;
  KeepWhereAllocated(context, copy);
  return g_real.cuGraphAddMemcpyNode(node, graph, after, count, copy, context);
}
CUresult cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS* set, CUcontext context) {
  if (ReachesPastItsBlock(set)) return CUDA_ERROR_INVALID_VALUE;
  KeepWhereAllocated(context, set);
  return g_real.cuGraphAddMemsetNode(node, graph, after, count, set, context);
}
CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D* copy) {
  if (ReachesPastItsBlock(copy)) return CUDA_ERROR_INVALID_VALUE;
  KeepWhereAllocated(nullptr, copy);
  return g_real.cuGraphMemcpyNodeSetParams(node, copy);
}
CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS* set) {
  if (ReachesPastItsBlock(set)) return CUDA_ERROR_INVALID_VALUE;
  KeepWhereAllocated(nullptr, set);
  return g_real.cuGraphMemsetNodeSetParams(node, set);
}
CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* params) {
  if (ReachesPastItsBlock(params)) return CUDA_ERROR_INVALID_VALUE;
  KeepWhereAllocated(params);
  const auto real = [&] { return g_real.cuGraphNodeSetParams(node, params); };
  return params && params->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP ? SetValues(node, ValuesIn(*params), real) : real();
}
CUresult cuGraphNodeSetParams_v2(CUgraphNode node, CUgraphNodeParams* params) {
  if (ReachesPastItsBlock(params)) return CUDA_ERROR_INVALID_VALUE;
  KeepWhereAllocated(params);
  const auto real = [&] { return g_real.cuGraphNodeSetParams_v2(node, params); };
  return params && params->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP ? SetValues(node, ValuesIn(*params), real) : real();
}

}  // namespace entry
}  // namespace sluice
