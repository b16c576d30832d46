// Nodes of graphs that write values. Where a value lies in managed memory, which the driver refuses, the node is a
// child graph whose memsets do the same.
#include <atomic>

#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/entries/value_nodes.h"
#include "hooklib/engine/execute/stream_values.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

// Nodes one behind the other.
class Chain {
 public:
  Chain() : result_(g_real.cuGraphCreate(&graph_, 0)) {}
  ~Chain() {
    if (graph_) g_real.cuGraphDestroy(graph_);
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  template <typename Add>
  void Append(Add add) {
    if (result_ != CUDA_SUCCESS) return;
    CUgraphNode next = nullptr;
    result_ = add(&next, graph_, &last_, last_ ? size_t{1} : size_t{0});
    last_ = next;
  }
  CUgraph graph() const { return graph_; }
  CUresult result() const { return result_; }

 private:
  CUgraph graph_ = nullptr;
  CUgraphNode last_ = nullptr;
  CUresult result_;
};

void AppendWord(Chain* chain, CUcontext context, CUdeviceptr at, unsigned value) {
  const CUDA_MEMSET_NODE_PARAMS word{at, 0, value, 4, 1, 1};
  chain->Append([&](CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count) {
    return g_real.cuGraphAddMemsetNode(node, graph, after, count, &word, context);
  });
}

// The high word first: a reader of a counter below 2^32 sees no other value.
void AppendWrite(Chain* chain, CUcontext context, const CUstreamBatchMemOpParams& op) {
  const bool is_wide = op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
  const CUdeviceptr at = op.writeValue.address;
  if (is_wide) AppendWord(chain, context, at + 4, static_cast<unsigned>(op.writeValue.value64 >> 32));
  AppendWord(chain, context, at, is_wide ? static_cast<unsigned>(op.writeValue.value64) : op.writeValue.value);
}

bool IsReplaced(const CUstreamBatchMemOpParams& op) { return IsWrite(op) && NamesManaged(op); }

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
  if (!AnyNamesManaged(p.paramArray, p.count) || p.flags) return real();
  for (unsigned i = 0; i < p.count; ++i) {
    const CUstreamBatchMemOpParams& op = p.paramArray[i];
    if (!NamesManaged(op)) continue;
    if (IsWait(op)) {
      LogWaitRefused();
      return real();
    }
    if (op.writeValue.address % (op.operation == CU_STREAM_MEM_OP_WRITE_VALUE_64 ? 8 : 4)) return real();
  }
  CUcontext context = p.ctx;
  if (!context) g_real.cuCtxGetCurrent(&context);
  Chain chain;
  for (unsigned i = 0; i < p.count;) {
    unsigned end = i;
    while (end < p.count && !IsReplaced(p.paramArray[end])) ++end;
    if (end != i) {
      const CUDA_BATCH_MEM_OP_NODE_PARAMS part{p.ctx, end - i, p.paramArray + i, p.flags};
      chain.Append([&](CUgraphNode* node, CUgraph graph, const CUgraphNode* after, size_t count) {
        return g_real.cuGraphAddBatchMemOpNode(node, graph, after, count, &part);
      });
    } else {
      AppendWrite(&chain, context, p.paramArray[end++]);
    }
    i = end;
  }
  return chain.result() == CUDA_SUCCESS ? add_child(chain.graph()) : chain.result();
}

namespace entry {

CUresult cuGraphAddBatchMemOpNode(CUgraphNode* n, CUgraph g, const CUgraphNode* after, size_t count,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  const auto real = [&] { return g_real.cuGraphAddBatchMemOpNode(n, g, after, count, p); };
  if (!p) return real();
  return AddValues(*p, real, [&](CUgraph child) { return g_real.cuGraphAddChildGraphNode(n, g, after, count, child); });
}

}  // namespace entry
}  // namespace sluice
