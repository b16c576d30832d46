#include "hooklib/engine/observe/graph_access.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/device/locations.h"
#include "hooklib/engine/execute/copy_sides.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/captured_calls.h"
#include "hooklib/engine/observe/library_launches.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/engine/observe/params.h"

namespace sluice {

namespace {
using Source = trace::AccessSource;
constexpr int kMaxDepth = 8;  // of graphs in graphs
}  // namespace

void GraphAccess::BeginNode(CUgraphNode node) {
  node_ = node;
  uses_of_[{outer_, node}];  // also of a node that names nothing
  if (Recording()) recorded_[node].clear();
}

void GraphAccess::AddReach(const libraries::Reach& reach, trace::AccessSource source) {
  if (Recording()) recorded_[node_].emplace_back(reach, source);
  const Place place{reach.pointer, reach.begin, reach.end};
  for (Use* const use : {&uses_[place], &uses_of_[{outer_, node_}][place]}) {
    ++use->nodes;
    use->writers += !reach.only_read;
  }
}

// Words and PyTorch's structs; of a library's kernel also the call's ranges, as they were kept while it was captured.
void GraphAccess::AddKernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2& p) {
  BeginNode(node);
  const CUfunction function = FunctionOf(p);
  if (!function) {
    known_ = false;
    return;
  }
  const libraries::LaunchShape shape{{p.gridDimX, p.gridDimY, p.gridDimZ}, {p.blockDimX, p.blockDimY, p.blockDimZ}};
  NamedMemory named;
  bool is_known = CollectNames(*InfoOf(function, p.ctx), shape, p.kernelParams, p.extra, &named);
  ++kernels_;
  if (const auto captured = CapturedCallOf(node, p)) {
    ++library_kernels_;
    const LibraryCall& call = captured->call;
    has_library_extents_ |= call.known;
    has_unseen_pointers_ |= call.has_unseen_pointers;
    is_known |= call.known;
    DropOperands(call, &named);
    if (Device* device = CurrentDevice()) {
      DeviceLock lock(device->mutex);
      NoteWordsOutside(device, call, named.words);
    }
    for (const LibraryRange& range : call.ranges) {
      if (!MayBeTracked(range.address)) continue;
      const libraries::Reach whole{range.address, 0, libraries::Reach::kAll, !range.written};
      const libraries::Reach part{0, range.address, range.address + range.bytes, !range.written};
      AddReach(range.bytes ? part : whole, Source::kLibrary);
    }
  }
  known_ &= is_known;
  // Once for each node, however often its parameters repeat it.
  std::sort(named.words.begin(), named.words.end());
  named.words.erase(std::unique(named.words.begin(), named.words.end()), named.words.end());
  for (const uint64_t word : named.words) AddReach({word}, Source::kParameters);
  for (const libraries::Reach& reach : named.reaches) AddReach(reach, Source::kStruct);
}

void GraphAccess::AddRows(CUdeviceptr base, size_t pitch, size_t width, size_t height, bool written) {
  const size_t bytes = height > 1 ? pitch * (height - 1) + width : width;
  if (MayBeTracked(base)) AddReach({base, base, base + bytes, !written}, Source::kCopy);
}

void GraphAccess::AddCopy(CUgraphNode node, const CUDA_MEMCPY3D& c) {
  BeginNode(node);
  // A node of a copy of fewer dimensions may leave the others out.
  CUDA_MEMCPY3D copy = c;
  copy.Height = std::max<size_t>(copy.Height, 1);
  copy.Depth = std::max<size_t>(copy.Depth, 1);
  const auto [to, from] = Sides3D(&copy);
  AddRows(to.base, to.bytes, to.bytes, 1, true);
  AddRows(from.base, from.bytes, from.bytes, 1, false);
}

void GraphAccess::AddMemset(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS& s) {
  BeginNode(node);
  AddRows(s.dst, s.pitch, s.width * s.elementSize, s.height, true);
}

void GraphAccess::AddStreamOperations(CUgraphNode node, const CUstreamBatchMemOpParams* list, unsigned count) {
  BeginNode(node);
  ForEachWritten(list, count, [&](CUdeviceptr at) { AddRows(at, 8, 8, 1, true); });
}

void GraphAccess::AddNode(CUgraphNode node, int depth) {
  CUgraphNodeType type{};
  if (g_real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return;
  if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
    CUDA_KERNEL_NODE_PARAMS_v2 p{};
    if (KernelParamsOf(node, &p)) {
      AddKernel(node, p);
    } else {
      known_ = false;
    }
  } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
    CUDA_MEMCPY3D c{};  // NOLINT(bugprone-invalid-enum-default-initialization): the driver fills it
    if (g_real.cuGraphMemcpyNodeGetParams(node, &c) == CUDA_SUCCESS) AddCopy(node, c);
  } else if (type == CU_GRAPH_NODE_TYPE_MEMSET) {
    CUDA_MEMSET_NODE_PARAMS s{};
    if (g_real.cuGraphMemsetNodeGetParams(node, &s) == CUDA_SUCCESS) AddMemset(node, s);
  } else if (type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
    CUDA_BATCH_MEM_OP_NODE_PARAMS values{};
    if (g_real.cuGraphBatchMemOpNodeGetParams && g_real.cuGraphBatchMemOpNodeGetParams(node, &values) == CUDA_SUCCESS) {
      AddStreamOperations(node, values.paramArray, values.count);
    } else {
      known_ = false;
    }
  } else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
    CUDA_MEM_ALLOC_NODE_PARAMS p{};  // NOLINT(bugprone-invalid-enum-default-initialization): the driver fills it
    if (g_real.cuGraphMemAllocNodeGetParams && g_real.cuGraphMemAllocNodeGetParams(node, &p) == CUDA_SUCCESS) {
      if (const std::optional<CUdevice> device = DeviceOf(p.poolProps.location)) {
        memory_.left[p.dptr] = {*device, p.bytesize};
        uint64_t& peak = memory_.peaks[*device];
        peak = std::max(peak, allocated_[*device] += p.bytesize);
      }
    }
  } else if (type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
    CUdeviceptr pointer = 0;
    if (g_real.cuGraphMemFreeNodeGetParams && g_real.cuGraphMemFreeNodeGetParams(node, &pointer) == CUDA_SUCCESS) {
      if (const auto it = memory_.left.find(pointer); it != memory_.left.end()) {
        allocated_[it->second.first] -= it->second.second;
        memory_.left.erase(it);
      } else {
        memory_.freed.push_back(pointer);
      }
    }
  } else if (type == CU_GRAPH_NODE_TYPE_GRAPH || type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
    // Which bodies run, and how often, is not known before: all of them count.
    const std::vector<CUgraph> inner = GraphsIn(node);
    const CUgraphNode outer = std::exchange(outer_, outer_ ? outer_ : node);
    for (CUgraph graph : inner) AddGraph(graph, depth + 1);
    outer_ = outer;
    known_ &= !inner.empty();
  } else if (static_cast<int>(type) >= cuda_newer::kGraphNodeMemcpyBatch) {
    known_ = false;  // batches of copies, and kinds that newer drivers have
  }
}

void GraphAccess::AddGraph(CUgraph graph, int depth) {
  size_t count = 0;
  if (depth > kMaxDepth || g_real.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) {
    known_ = false;
    return;
  }
  std::vector<CUgraphNode> nodes(count);
  if (count && g_real.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return;
  for (CUgraphNode node : nodes) AddNode(node, depth);
}

void GraphAccess::AddChild(CUgraphNode node, CUgraph graph) {
  replaced_children_.push_back(node);
  outer_ = node;
  AddGraph(graph, 1);
  outer_ = nullptr;
}

void GraphAccess::MarkCaptured() const {
  Device* const device = CurrentDevice();
  if (!device) return;
  for (const auto& [place, use] : uses_) {
    const auto [pointer, begin, end] = place;
    device->MarkCaptured(pointer ? pointer : begin);
  }
  DeviceLock lock(device->mutex);
  if (has_library_extents_) NoteExtentsSeen(device);
}

std::shared_ptr<const RankedReaches> GraphAccess::Ranked() {
  if (ranked_) return ranked_;
  std::vector<std::pair<size_t, libraries::Reach>> counted;
  for (const auto& [place, use] : uses_) {
    const auto [pointer, begin, end] = place;
    counted.push_back({use.nodes, {pointer, begin, end, use.writers == 0}});
  }
  std::stable_sort(counted.begin(), counted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  auto ranked = std::make_shared<RankedReaches>();
  for (const auto& [count, reach] : counted) {
    ranked->reaches.push_back(reach);
    ranked->hot_count += count > counted.back().first;
  }
  return ranked_ = std::move(ranked);
}

GraphAccess GraphAccess::Of(CUgraph graph) {
  GraphAccess access;
  RelaxedCapture relaxed;
  access.AddGraph(graph, 0);
  for (const CUdeviceptr freed : access.memory_.freed) access.memory_.left.erase(freed);  // nodes have no order
  const std::vector<libraries::Reach>& reaches = access.Ranked()->reaches;
  const auto is_only_read = [](const libraries::Reach& reach) { return reach.only_read; };
  SLUICE_LOG(kDebug, "graph_access kernels=%zu library_kernels=%zu places=%zu read_only_places=%td", access.kernels_,
             access.library_kernels_, access.uses_.size(), std::count_if(reaches.begin(), reaches.end(), is_only_read));
  return access;
}

// A program may do this before each launch: a node that names the same again changes nothing.
void GraphAccess::Replace(GraphAccess&& changed) {
  known_ &= changed.known_;
  has_unseen_pointers_ |= changed.has_unseen_pointers_;
  for (auto& [node, reaches] : changed.recorded_) recorded_[node] = std::move(reaches);
  for (CUgraphNode child : changed.replaced_children_) {
    for (auto it = uses_of_.lower_bound({child, nullptr}); it != uses_of_.end() && it->first.first == child;
         it = uses_of_.erase(it))
      Drop(it->second);
  }
  for (auto& [node, uses] : changed.uses_of_) {
    std::map<Place, Use>& old = uses_of_[node];
    if (old == uses) continue;
    Drop(old);
    for (const auto& [place, use] : uses) {
      uses_[place].nodes += use.nodes;
      uses_[place].writers += use.writers;
    }
    old = std::move(uses);
    ranked_.reset();
  }
}

void GraphAccess::Drop(const std::map<Place, Use>& uses) {
  for (const auto& [place, use] : uses) {
    const auto it = uses_.find(place);
    it->second.nodes -= use.nodes;
    it->second.writers -= use.writers;
    if (it->second.nodes == 0) uses_.erase(it);
  }
  if (!uses.empty()) ranked_.reset();
}

bool GraphAccess::TakeSizeCheck() {
  const bool is_due = !size_checked_;
  size_checked_ = true;
  return is_due;
}

std::vector<NodeReaches> GraphAccess::RecordedNodes() const {
  std::vector<NodeReaches> nodes;
  nodes.reserve(recorded_.size());
  for (const auto& [node, reaches] : recorded_) nodes.push_back(reaches);
  return nodes;
}

}  // namespace sluice
