// Access sets of graphs. A graph launch is planned as one kernel with the access sets of all its nodes. Words and
// reaches are resolved at each launch, because blocks are allocated and freed while a graph stays.
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_GRAPH_ACCESS_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_GRAPH_ACCESS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/engine/device/graph_memory.h"
#include "hooklib/engine/observe/trace_recording.h"
#include "hooklib/libraries/extents/torch_kernels.h"

namespace sluice {

// Reaches of a graph's nodes, most used first.
struct RankedReaches {
  std::vector<libraries::Reach> reaches;
  size_t hot_count = 0;  // so many at the start are used by more nodes than the least used
};

class GraphAccess {
 public:
  // The access set of a graph that is about to be instantiated, or has just updated an executable one.
  static GraphAccess Of(CUgraph graph);

  // One node, or the graph of a child node, as its parameters say.
  void AddKernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2& p);
  void AddCopy(CUgraphNode node, const CUDA_MEMCPY3D& c);
  void AddMemset(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS& s);
  void AddStreamOperations(CUgraphNode node, const CUstreamBatchMemOpParams* list, unsigned count);
  void AddChild(CUgraphNode node, CUgraph graph);  // new contents of a child graph's node
  // Takes the sets of nodes that got new parameters in place of their old ones. Launches under way have theirs.
  void Replace(GraphAccess&& changed);

  // The graph may use these at any launch, whatever a framework reports as freed meanwhile.
  void MarkCaptured() const;

  std::shared_ptr<const RankedReaches> Ranked();
  bool known() const { return known_; }
  bool may_write_anywhere() const { return has_unseen_pointers_ || !known_; }
  // Memory of the graph's own nodes, if they run one by one as they were made.
  const graph_memory::Needs& memory() const { return memory_; }
  // True once, at the first call.
  bool TakeSizeCheck();
  // While recording: the reaches of each node that touches memory.
  std::vector<NodeReaches> RecordedNodes() const;

 private:
  struct Use {
    size_t nodes = 0, writers = 0;
    bool operator==(const Use&) const = default;
  };
  using Place = std::tuple<uint64_t, uint64_t, uint64_t>;  // a reach's pointer, begin, end
  void BeginNode(CUgraphNode node);
  void AddReach(const libraries::Reach& reach, trace::AccessSource source);
  void AddRows(CUdeviceptr base, size_t pitch, size_t width, size_t height, bool written);
  void AddNode(CUgraphNode node, int depth);
  void AddGraph(CUgraph graph, int depth);
  void Drop(const std::map<Place, Use>& uses);

  std::map<Place, Use> uses_;
  // The same by the outermost node with a graph in it (null: none), and the node.
  std::map<std::pair<CUgraphNode, CUgraphNode>, std::map<Place, Use>> uses_of_;
  std::vector<CUgraphNode> replaced_children_;   // nodes of child graphs, in a set of changes
  std::shared_ptr<const RankedReaches> ranked_;  // null: out of date
  bool known_ = true;
  bool has_library_extents_ = false;  // everything is known of some kernel, by its library call
  bool has_unseen_pointers_ = false;  // of some library call
  bool size_checked_ = false;
  size_t kernels_ = 0, library_kernels_ = 0;
  graph_memory::Needs memory_;
  graph_memory::BytesByGpu allocated_;  // by the nodes so far
  std::map<CUgraphNode, NodeReaches> recorded_;
  CUgraphNode node_ = nullptr;   // whose reaches are being added
  CUgraphNode outer_ = nullptr;  // the outermost node with a graph that it is in
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_GRAPH_ACCESS_H_
