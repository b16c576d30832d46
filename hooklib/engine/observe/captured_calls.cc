#include "hooklib/engine/observe/captured_calls.h"

#include <algorithm>
#include <array>
#include <optional>
#include <unordered_map>

#include "common/mutex.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/streams.h"
#include "hooklib/engine/observe/params.h"

namespace sluice {

namespace {

constexpr int kMaxDepth = 8;  // of graphs in graphs

// The kernel of a node, with its parameters.
struct NodeContents {
  CUfunction function = nullptr;
  std::array<unsigned, 7> shape{};
  std::vector<uint64_t> parameters;  // every byte
  bool operator==(const NodeContents&) const = default;
};

struct CapturedNote {
  CUgraph graph = nullptr;
  std::shared_ptr<const CapturedCall> call;
  std::optional<NodeContents> contents;  // nothing while the capture lasts
};

Mutex g_mutex;  // guards the three maps; no other lock is taken and no driver call is made inside
std::unordered_map<CUgraphNode, CapturedNote>& Notes() SLUICE_REQUIRES(g_mutex) {
  static auto& notes = *new std::unordered_map<CUgraphNode, CapturedNote>();
  return notes;
}
std::unordered_map<CUgraph, std::vector<CUgraphNode>>& NodesOf() SLUICE_REQUIRES(g_mutex) {
  static auto& nodes = *new std::unordered_map<CUgraph, std::vector<CUgraphNode>>();
  return nodes;
}
std::unordered_map<CUgraphNode, std::vector<CUgraph>>& Bodies() SLUICE_REQUIRES(g_mutex) {
  static auto& bodies = *new std::unordered_map<CUgraphNode, std::vector<CUgraph>>();
  return bodies;
}
// Read without the lock: nothing is looked up where nothing is kept.
std::atomic<size_t> g_notes{0}, g_conditional{0};
bool KeepsAnything() { return g_notes.load() > 0 || g_conditional.load() > 0; }

void KeepNote(CUgraphNode node, CapturedNote note) {
  MutexLock lock(g_mutex);
  std::vector<CUgraphNode>& nodes = NodesOf()[note.graph];
  if (std::find(nodes.begin(), nodes.end(), node) == nodes.end()) nodes.push_back(node);
  Notes()[node] = std::move(note);
  g_notes = Notes().size();
}

void DropNote(CUgraphNode node, CUgraph graph) SLUICE_REQUIRES(g_mutex) {
  const auto it = Notes().find(node);
  if (it != Notes().end() && it->second.graph == graph) Notes().erase(it);
  g_notes = Notes().size();
}

void DropNotesOf(CUgraph graph) {
  MutexLock lock(g_mutex);
  const auto it = NodesOf().find(graph);
  if (it == NodesOf().end()) return;
  for (CUgraphNode node : it->second) DropNote(node, graph);
  NodesOf().erase(it);
}

std::optional<NodeContents> ContentsOf(const CUDA_KERNEL_NODE_PARAMS_v2& p) {
  NodeContents contents;
  contents.function = FunctionOf(p);
  if (!contents.function) return std::nullopt;
  contents.shape = {p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY, p.blockDimZ, p.sharedMemBytes};
  std::vector<uint64_t> words;
  if (!CollectWords(*InfoOf(contents.function, p.ctx), p.kernelParams, p.extra, &words, &contents.parameters))
    return std::nullopt;
  return contents;
}

std::vector<CUgraphNode> AllNodes(CUgraph graph) {
  size_t count = 0;
  if (g_real.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) return {};
  std::vector<CUgraphNode> nodes(count);
  if (count && g_real.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return {};
  return nodes;
}

CUgraph ChildOf(CUgraphNode node) {
  CUgraphNodeType type{};
  CUgraph child = nullptr;
  if (g_real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_GRAPH) return nullptr;
  return g_real.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS ? child : nullptr;
}

void CopyNotes(CUgraph original, CUgraph copy, int depth) {
  const std::vector<CUgraphNode> from = AllNodes(original), to = AllNodes(copy);
  if (depth > kMaxDepth || from.size() != to.size()) return;
  for (size_t i = 0; i < from.size(); ++i) {
    // The driver names the pairs of a clone. Nodes of a child's copy are in the same order; if they were not, their
    // contents would differ.
    CUgraphNode node = nullptr;
    if (g_real.cuGraphNodeFindInClone(&node, from[i], copy) != CUDA_SUCCESS || !node) node = to[i];
    std::optional<CapturedNote> note;
    {
      MutexLock lock(g_mutex);
      if (const auto it = Notes().find(from[i]); it != Notes().end() && it->second.contents) note = it->second;
    }
    if (note) {
      note->graph = copy;
      KeepNote(node, *std::move(note));
    } else if (CUgraph child = ChildOf(from[i])) {
      if (CUgraph inner_copy = ChildOf(node)) CopyNotes(child, inner_copy, depth + 1);
    }
  }
}

void ForgetGraphsIn(CUgraphNode node, int depth);

void ForgetTree(CUgraph graph, int depth) {
  DropNotesOf(graph);
  if (depth > kMaxDepth) return;
  for (CUgraphNode node : AllNodes(graph)) ForgetGraphsIn(node, depth + 1);
}

void ForgetGraphsIn(CUgraphNode node, int depth) {
  for (CUgraph inner : GraphsIn(node)) ForgetTree(inner, depth);
  MutexLock lock(g_mutex);
  Bodies().erase(node);
  g_conditional = Bodies().size();
}

struct CaptureState {
  CUgraph graph = nullptr;
  CUgraphNode last = nullptr;  // the one node that the stream's next node depends on, if it is one
};

CaptureState CaptureOf(CUstream stream) {
  RelaxedCapture relaxed;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  CUgraph graph = nullptr;
  const CUgraphNode* nodes = nullptr;
  size_t count = 0;
  CUresult result = CUDA_ERROR_NOT_SUPPORTED;
  if (g_real.cuStreamGetCaptureInfo_v3) {  // the older function fails where edges have data
    const CUgraphEdgeData* edges = nullptr;
    result = g_real.cuStreamGetCaptureInfo_v3(stream, &status, nullptr, &graph, &nodes, &edges, &count);
  } else if (g_real.cuStreamGetCaptureInfo_v2) {
    result = g_real.cuStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, &nodes, &count);
  }
  if (result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return {};
  return {graph, count == 1 ? nodes[0] : nullptr};
}

}  // namespace

bool KernelParamsOf(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v2* params) {
  if (g_real.cuGraphKernelNodeGetParams_v2 && g_real.cuGraphKernelNodeGetParams_v2(node, params) == CUDA_SUCCESS)
    return true;
  CUDA_KERNEL_NODE_PARAMS_v1 old{};
  if (!g_real.cuGraphKernelNodeGetParams || g_real.cuGraphKernelNodeGetParams(node, &old) != CUDA_SUCCESS) return false;
  *params = ToVersion2(old);
  return true;
}

CUDA_KERNEL_NODE_PARAMS_v2 ToVersion2(const CUDA_KERNEL_NODE_PARAMS_v1& p) {
  return {p.func,      p.gridDimX,       p.gridDimY,     p.gridDimZ, p.blockDimX, p.blockDimY,
          p.blockDimZ, p.sharedMemBytes, p.kernelParams, p.extra,    nullptr,     nullptr};
}

CUfunction FunctionOf(const CUDA_KERNEL_NODE_PARAMS_v2& p) {
  CUfunction function = p.func;
  if (!function && p.kern && g_real.cuKernelGetFunction &&
      g_real.cuKernelGetFunction(&function, p.kern) == CUDA_SUCCESS)
    NoteFunctionOf(p.kern, function);
  return function;
}

void NoteCapturedLaunch(CUstream stream) {
  LibraryCall* const call = CurrentLibraryCall();
  if (!call) return;
  const CaptureState capture = CaptureOf(stream);
  if (!capture.last) return;
  auto kept = std::make_shared<CapturedCall>();
  kept->ranges.assign(call->ranges.begin(), call->ranges.end());
  kept->call.ranges = kept->ranges;
  kept->call.known = call->known;
  kept->call.has_unseen_pointers = call->has_unseen_pointers;
  KeepNote(capture.last, {capture.graph, std::move(kept), {}});
}

CUgraph CapturedGraph(CUstream stream) { return stream && g_notes.load() ? CaptureOf(stream).graph : nullptr; }

void SealCapture(CUgraph graph, bool succeeded) {
  if (!graph) return;
  if (!succeeded) return DropNotesOf(graph);
  std::vector<CUgraphNode> nodes;
  {
    MutexLock lock(g_mutex);
    if (const auto it = NodesOf().find(graph); it != NodesOf().end()) nodes = it->second;
  }
  RelaxedCapture relaxed;
  for (CUgraphNode node : nodes) {
    CUDA_KERNEL_NODE_PARAMS_v2 params{};
    std::optional<NodeContents> contents;
    if (KernelParamsOf(node, &params)) contents = ContentsOf(params);
    MutexLock lock(g_mutex);
    const auto it = Notes().find(node);
    if (it == Notes().end() || it->second.contents) continue;
    if (contents) {
      it->second.contents = std::move(contents);
    } else {
      DropNote(node, graph);
    }
  }
}

void NoteGraphCopy(CUgraph original, CUgraph copy) {
  if (!g_notes.load()) return;
  RelaxedCapture relaxed;
  CopyNotes(original, copy, 0);
}

void NoteBodies(CUgraphNode node, const CUDA_CONDITIONAL_NODE_PARAMS& params) {
  MutexLock lock(g_mutex);
  Bodies()[node].assign(params.phGraph_out, params.phGraph_out + params.size);
  g_conditional = Bodies().size();
}

std::vector<CUgraph> GraphsIn(CUgraphNode node) {
  if (CUgraph child = ChildOf(node)) return {child};
  CUgraphNodeType type{};
  if (g_real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS || type != CU_GRAPH_NODE_TYPE_CONDITIONAL) return {};
  MutexLock lock(g_mutex);
  const auto it = Bodies().find(node);
  return it == Bodies().end() ? std::vector<CUgraph>() : it->second;
}

void ForgetGraph(CUgraph graph) {
  if (!graph || !KeepsAnything()) return;
  RelaxedCapture relaxed;
  ForgetTree(graph, 0);
}

void ForgetNode(CUgraphNode node) {
  if (!node || !KeepsAnything()) return;
  RelaxedCapture relaxed;
  ForgetGraphsIn(node, 0);
  MutexLock lock(g_mutex);
  const auto it = Notes().find(node);
  if (it == Notes().end()) return;
  std::erase(NodesOf()[it->second.graph], node);
  DropNote(node, it->second.graph);
}

std::shared_ptr<const CapturedCall> CapturedCallOf(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2& params) {
  if (!g_notes.load()) return nullptr;
  CapturedNote note;
  {
    MutexLock lock(g_mutex);
    const auto it = Notes().find(node);
    if (it == Notes().end()) return nullptr;
    note = it->second;
  }
  return note.contents && ContentsOf(params) == note.contents ? note.call : nullptr;
}

size_t CapturedNodes() { return g_notes.load(); }

}  // namespace sluice
