#include "hooklib/engine/execute/value_graphs.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <unordered_map>
#include <utility>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/execute/stream_values.h"
#include "hooklib/engine/execute/value_cells.h"

namespace sluice::value_graphs {

struct NodeValues {
  CUDA_BATCH_MEM_OP_NODE_PARAMS params{};
  std::vector<CUstreamBatchMemOpParams> list;
  std::vector<value_cells::Cell> cells;
  CUdeviceptr sink = 0;
  CUuserObject object = nullptr;
};

namespace {

Mutex g_mutex;  // no other lock is taken and no driver call is made inside
std::unordered_map<const void*, NodeValues*>& Known() SLUICE_REQUIRES(g_mutex) {
  static auto& known = *new std::unordered_map<const void*, NodeValues*>();  // by the first cell
  return known;
}
std::atomic<size_t> g_known{0};  // read without the lock: no node is asked where there are none

// The last graph and the last launch with the words are gone. Makes no call of the driver's, which calls it.
void CUDA_CB End(void* data) {
  const std::unique_ptr<NodeValues> values(static_cast<NodeValues*>(data));
  {
    MutexLock lock(g_mutex);
    Known().erase(values->cells.front().value);
    g_known = Known().size();
  }
  value_cells::GiveBack(values->cells);
}

bool IsWide(const CUstreamBatchMemOpParams& op) { return op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64; }

bool IsSingleWrite(const NodeValues& values) { return values.list.size() == 1 && IsWrite(values.list.front()); }

// Nodes one behind the other, or side by side, which go again where one of them fails.
class Chain {
 public:
  Chain(CUgraph graph, bool is_parallel) : graph_(graph), is_parallel_(is_parallel) {}
  ~Chain() {
    for (CUgraphNode node : nodes_) g_real.cuGraphDestroyNode(node);
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  template <typename Add>
  void Append(Add add) {
    if (result_ != CUDA_SUCCESS) return;
    CUgraphNode next = nullptr;
    const bool is_first = nodes_.empty() || is_parallel_;
    result_ = add(&next, graph_, is_first ? nullptr : &nodes_.back(), is_first ? size_t{0} : size_t{1});
    if (result_ == CUDA_SUCCESS) nodes_.push_back(next);
  }
  void Keep() { nodes_.clear(); }
  CUresult result() const { return result_; }

 private:
  CUgraph graph_;
  bool is_parallel_;
  std::vector<CUgraphNode> nodes_;
  CUresult result_ = CUDA_SUCCESS;
};

CUDA_MEMCPY3D CopyOf(const value_cells::Cell& from, size_t bytes) {
  CUDA_MEMCPY3D copy{};  // NOLINT(bugprone-invalid-enum-default-initialization): the other type is set below
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = from.value;
  copy.WidthInBytes = bytes;
  copy.Height = copy.Depth = 1;
  return copy;
}

void AppendCopy(Chain* chain, CUcontext context, const CUDA_MEMCPY3D& copy) {
  chain->Append([&](CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count) {
    return g_real.cuGraphAddMemcpyNode(node, graph, after, count, &copy, context);
  });
}

// Each write is a copy, and the driver's write behind it. Where the memory moves, the copy writes it and the other one
// the word that the copy has read, the same value. Elsewhere the copy writes what no program reads. So a change of the
// address leaves a copy in managed memory, as the driver demands for executable graphs, and a write outside of it.
// A card's copies in managed memory are kernels, which wait for room on its multiprocessors (H200, driver 580). The
// write of a single value stands beside its copy, so that a kernel that fills the card and polls pinned memory sees it
// at once.
void AppendAll(Chain* chain, NodeValues* values) {
  CUDA_BATCH_MEM_OP_NODE_PARAMS& p = values->params;
  auto cell = values->cells.begin();
  // What tells the graph from others: at its start, wherever its first value goes.
  if (!IsWrite(p.paramArray[0])) {
    CUDA_MEMCPY3D copy = CopyOf(*cell, sizeof(uint32_t));
    copy.dstMemoryType = CU_MEMORYTYPE_HOST;
    copy.dstHost = cell++->unused();
    AppendCopy(chain, p.ctx, copy);
  }
  std::vector<CUstreamBatchMemOpParams> list = values->list;
  for (size_t i = 0; i < list.size();) {
    CUstreamBatchMemOpParams& op = list[i];
    if (IsWrite(op)) {
      *cell->value = IsWide(op) ? op.writeValue.value64 : op.writeValue.value;
      CUDA_MEMCPY3D copy = CopyOf(*cell, IsWide(op) ? 8 : 4);
      copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
      copy.dstDevice = values->sink;
      if (NamesManaged(op)) copy.dstDevice = std::exchange(op.writeValue.address, cell->at());
      AppendCopy(chain, p.ctx, copy);
      ++cell;
    }
    size_t end = i + 1;
    while (end < list.size() && !IsWrite(list[end])) ++end;
    const CUDA_BATCH_MEM_OP_NODE_PARAMS part{p.ctx, static_cast<unsigned>(end - i), list.data() + i, p.flags};
    chain->Append([&](CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count) {
      return g_real.cuGraphAddBatchMemOpNode(node, graph, after, count, &part);
    });
    i = end;
  }
}

// With a reference for the graph. The words end with the last graph that has a copy of it.
CUresult KeepIn(CUgraph graph, NodeValues* values) {
  if (!g_real.cuUserObjectCreate || !g_real.cuGraphRetainUserObject) return CUDA_ERROR_NOT_SUPPORTED;
  const CUresult made = g_real.cuUserObjectCreate(&values->object, values, End, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
  if (made != CUDA_SUCCESS) return made;
  return g_real.cuGraphRetainUserObject(graph, values->object, 1, CU_GRAPH_USER_OBJECT_MOVE);
}

std::vector<CUgraphNode> NodesOf(CUgraph graph) {
  size_t count = 0;
  if (g_real.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) return {};
  std::vector<CUgraphNode> nodes(count);
  if (count && g_real.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return {};
  return nodes;
}

// Those of a graph that Fill has made, or that the driver has copied from one: a root is the copy of its first word.
NodeValues* Recognize(CUgraph graph) {
  std::array<CUgraphNode, 2> roots{};
  size_t count = roots.size();
  if (g_real.cuGraphGetRootNodes(graph, roots.data(), &count) != CUDA_SUCCESS || count == 0 || count > roots.size())
    return nullptr;
  const auto is_copy = [](CUgraphNode node) {
    CUgraphNodeType type{};
    return g_real.cuGraphNodeGetType(node, &type) == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEMCPY;
  };
  CUDA_MEMCPY3D copy{};  // NOLINT(bugprone-invalid-enum-default-initialization): the driver fills it
  CUgraphNode* const end = roots.data() + count;
  CUgraphNode* const root = std::find_if(roots.data(), end, is_copy);
  if (root == end || g_real.cuGraphMemcpyNodeGetParams(*root, &copy) != CUDA_SUCCESS) return nullptr;
  const void* const from = copy.srcMemoryType == CU_MEMORYTYPE_HOST
                               ? copy.srcHost
                               : reinterpret_cast<const void*>(copy.srcDevice);  // NOLINT(performance-no-int-to-ptr)
  MutexLock lock(g_mutex);
  const auto it = Known().find(from);
  return it == Known().end() ? nullptr : it->second;
}

}  // namespace

CUgraph GraphOf(CUgraphNode node) {
  CUgraphNodeType type{};
  CUgraph graph = nullptr;
  if (g_real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_GRAPH) return nullptr;
  return g_real.cuGraphChildGraphNodeGetGraph(node, &graph) == CUDA_SUCCESS ? graph : nullptr;
}

const NodeValues* ValuesOf(CUgraphNode node) {
  if (!node || g_known.load(std::memory_order_acquire) == 0) return nullptr;
  RelaxedCapture relaxed;
  CUgraph const graph = GraphOf(node);
  return graph ? Recognize(graph) : nullptr;
}

CUDA_BATCH_MEM_OP_NODE_PARAMS ParamsOf(const NodeValues& values) { return values.params; }

CUresult Fill(CUgraph graph, const CUDA_BATCH_MEM_OP_NODE_PARAMS& p) {
  auto values = std::make_unique<NodeValues>();
  values->list.assign(p.paramArray, p.paramArray + p.count);
  values->params = {p.ctx, p.count, values->list.data(), p.flags};
  if (!p.ctx) g_real.cuCtxGetCurrent(&values->params.ctx);
  const ContextScope scope(values->params.ctx);
  RelaxedCapture relaxed;
  values->sink = value_cells::Sink(values->params.ctx);
  if (!values->sink) return CUDA_ERROR_OUT_OF_MEMORY;
  size_t needed = IsWrite(values->list.front()) ? 0 : 1;
  for (const CUstreamBatchMemOpParams& op : values->list) needed += IsWrite(op);
  values->cells = value_cells::Take(values->params.ctx, needed);
  if (values->cells.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
  NodeValues* const old = Recognize(graph);
  const std::vector<CUgraphNode> old_nodes = NodesOf(graph);
  Chain chain(graph, IsSingleWrite(*values));
  AppendAll(&chain, values.get());
  CUresult result = chain.result();
  if (result == CUDA_SUCCESS) {
    MutexLock lock(g_mutex);
    Known()[values->cells.front().value] = values.get();
    g_known = Known().size();
  }
  if (result == CUDA_SUCCESS) result = KeepIn(graph, values.get());
  if (result != CUDA_SUCCESS) {
    if (values->object) {
      g_real.cuUserObjectRelease(values.release()->object, 1);  // ends them
    } else {
      End(values.release());
    }
    return result;
  }
  chain.Keep();
  values.release();  // NOLINT(bugprone-unused-return-value): the graph has them
  for (CUgraphNode node : old_nodes) g_real.cuGraphDestroyNode(node);
  if (old) g_real.cuGraphReleaseUserObject(graph, old->object, 1);
  return CUDA_SUCCESS;
}

}  // namespace sluice::value_graphs
