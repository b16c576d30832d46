// Graphs: a graph launch is one super-kernel whose access set is that of all its nodes.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <tuple>

#include "hooklib/compute/launch_token.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/captured_calls.h"
#include "hooklib/engine/observe/library_launches.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/engine/observe/params.h"
#include "hooklib/engine/observe/trace_recording.h"

namespace sluice {

namespace {

using Source = trace::AccessSource;

// What the nodes name: resolved at each launch, since ranges come and go under a graph that stays.
struct GraphAccess {
  struct Use {
    size_t nodes = 0;
    bool only_read = true;  // no node names the place otherwise
  };
  std::map<std::tuple<uint64_t, uint64_t, uint64_t>, Use> places;  // by the reach's pointer, begin, end
  struct Order {
    std::vector<libraries::Reach> reaches;  // the places, most used first
    size_t hotter = 0;                      // so many of them are used by more nodes than the least used
  };
  std::shared_ptr<const Order> order;  // null: to be made anew
  bool known = true;
  bool by_extents = false;  // of some kernel all is known by its library call
  bool unseen = false;      // a library call of it writes through pointers that nobody saw
  bool sized = false;       // looked at once for what cannot be held
  size_t kernels = 0, of_libraries = 0;
  // What its own nodes allocate, and most of that at a time, if they ran one by one as they were made.
  std::map<CUdeviceptr, uint64_t> own;
  uint64_t own_now = 0, own_most = 0;
  // While recording: of each node that touches memory.
  std::map<CUgraphNode, NodePlaces> nodes;
  CUgraphNode node = nullptr;  // whose places are being added

  void Begin(CUgraphNode next) {
    node = next;
    if (Recording()) nodes[node].clear();
  }
  void Add(const libraries::Reach& reach, trace::AccessSource source) {
    if (Recording()) nodes[node].emplace_back(reach, source);
    Use& use = places[{reach.pointer, reach.begin, reach.end}];
    ++use.nodes;
    use.only_read &= reach.only_read;
  }
};

std::mutex g_mutex;
std::atomic<bool> g_allocating{false};  // some graph has had memory of its own
std::map<CUgraphExec, GraphAccess>& Graphs() {
  static auto& map = *new std::map<CUgraphExec, GraphAccess>();
  return map;
}

// A kernel's words and PyTorch's structs, and of a library's kernel what the call said while it was captured.
void AddKernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v2& p, GraphAccess* access) {
  access->Begin(node);
  const CUfunction function = FunctionOf(p);
  if (!function) {
    access->known = false;
    return;
  }
  const libraries::LaunchShape shape{{p.gridDimX, p.gridDimY, p.gridDimZ}, {p.blockDimX, p.blockDimY, p.blockDimZ}};
  Named named;
  bool known = Collect(*InfoOf(function), shape, p.kernelParams, p.extra, &named);
  ++access->kernels;
  if (const auto captured = CapturedCallOf(node, p)) {
    ++access->of_libraries;
    const LibraryCall& call = captured->call;
    access->by_extents |= call.known;
    access->unseen |= call.has_unseen_pointers;
    known |= call.known;
    DropOperands(call, &named);
    if (Device* device = CurrentDevice()) {
      std::lock_guard lock(device->mutex);
      NoteWordsBeyond(device, call, named.words);
    }
    for (const LibraryRange& range : call.ranges) {
      if (!MayBeTracked(range.address)) continue;
      const libraries::Reach whole{range.address, 0, libraries::Reach::kAll, !range.written};
      const libraries::Reach part{0, range.address, range.address + range.bytes, !range.written};
      access->Add(range.bytes ? part : whole, Source::kLibrary);
    }
  }
  access->known &= known;
  // Once for each node, however often its parameters say it.
  std::sort(named.words.begin(), named.words.end());
  named.words.erase(std::unique(named.words.begin(), named.words.end()), named.words.end());
  for (const uint64_t word : named.words) access->Add({word}, Source::kParameters);
  for (const libraries::Reach& reach : named.reaches) access->Add(reach, Source::kStruct);
}

void AddRows(CUdeviceptr base, size_t pitch, size_t width, size_t height, bool written, GraphAccess* access) {
  const size_t bytes = height > 1 ? pitch * (height - 1) + width : width;
  if (MayBeTracked(base)) access->Add({base, base, base + bytes, !written}, Source::kCopy);
}

void AddCopy(CUgraphNode node, const CUDA_MEMCPY3D& c, GraphAccess* access) {
  access->Begin(node);
  const size_t rows = c.Height * (c.Depth ? c.Depth : 1);
  const auto at = [](CUdeviceptr base, size_t pitch, size_t height, size_t x, size_t y, size_t z) {
    return base + x + (y + z * height) * pitch;
  };
  AddRows(at(c.dstDevice, c.dstPitch, c.dstHeight, c.dstXInBytes, c.dstY, c.dstZ), c.dstPitch, c.WidthInBytes, rows,
          true, access);
  AddRows(at(c.srcDevice, c.srcPitch, c.srcHeight, c.srcXInBytes, c.srcY, c.srcZ), c.srcPitch, c.WidthInBytes, rows,
          false, access);
}

void AddMemset(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS& s, GraphAccess* access) {
  access->Begin(node);
  AddRows(s.dst, s.pitch, s.width * s.elementSize, s.height, true, access);
}

void AddValues(CUgraphNode node, const CUstreamBatchMemOpParams* list, unsigned count, GraphAccess* access) {
  access->Begin(node);
  ForEachWritten(list, count, [&](CUdeviceptr at) { AddRows(at, 8, 8, 1, true, access); });
}

void Walk(CUgraph graph, GraphAccess* access, int depth) {
  size_t count = 0;
  if (depth > 8 || g_real.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) {
    access->known = false;
    return;
  }
  std::vector<CUgraphNode> nodes(count);
  if (count && g_real.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS) return;
  for (CUgraphNode node : nodes) {
    CUgraphNodeType type{};
    if (g_real.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) continue;
    if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
      CUDA_KERNEL_NODE_PARAMS_v2 p{};
      if (KernelParamsOf(node, &p)) {
        AddKernel(node, p, access);
      } else {
        access->known = false;
      }
    } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
      CUDA_MEMCPY3D c{};  // NOLINT(bugprone-invalid-enum-default-initialization): the driver fills it
      if (g_real.cuGraphMemcpyNodeGetParams(node, &c) == CUDA_SUCCESS) AddCopy(node, c, access);
    } else if (type == CU_GRAPH_NODE_TYPE_MEMSET) {
      CUDA_MEMSET_NODE_PARAMS s{};
      if (g_real.cuGraphMemsetNodeGetParams(node, &s) == CUDA_SUCCESS) AddMemset(node, s, access);
    } else if (type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
      CUDA_BATCH_MEM_OP_NODE_PARAMS values{};
      if (g_real.cuGraphBatchMemOpNodeGetParams &&
          g_real.cuGraphBatchMemOpNodeGetParams(node, &values) == CUDA_SUCCESS) {
        AddValues(node, values.paramArray, values.count, access);
      } else {
        access->known = false;
      }
    } else if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
      CUDA_MEM_ALLOC_NODE_PARAMS p{};  // NOLINT(bugprone-invalid-enum-default-initialization): the driver fills it
      if (g_real.cuGraphMemAllocNodeGetParams && g_real.cuGraphMemAllocNodeGetParams(node, &p) == CUDA_SUCCESS &&
          p.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        access->own[p.dptr] = p.bytesize;
        access->own_most = std::max(access->own_most, access->own_now += p.bytesize);
      }
    } else if (type == CU_GRAPH_NODE_TYPE_MEM_FREE) {
      CUdeviceptr pointer = 0;
      if (g_real.cuGraphMemFreeNodeGetParams && g_real.cuGraphMemFreeNodeGetParams(node, &pointer) == CUDA_SUCCESS) {
        if (const auto it = access->own.find(pointer); it != access->own.end()) access->own_now -= it->second;
      }
    } else if (type == CU_GRAPH_NODE_TYPE_GRAPH || type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
      // Which of its bodies run, and how often, is not known before: all of them count.
      const std::vector<CUgraph> inner = GraphsIn(node);
      for (CUgraph graph_in_it : inner) Walk(graph_in_it, access, depth + 1);
      access->known &= !inner.empty();
    }
  }
}

// The graph may use these at any launch, whatever a framework reports as freed meanwhile.
void Mark(const GraphAccess& access) {
  Device* const device = CurrentDevice();
  if (!device) return;
  for (const auto& [place, use] : access.places) {
    const auto [pointer, begin, end] = place;
    device->MarkCaptured(pointer ? pointer : begin);
  }
  std::lock_guard lock(device->mutex);
  if (access.by_extents) NoteExtentsSeen(device);
}

std::shared_ptr<const GraphAccess::Order> ByUse(const GraphAccess& access) {
  std::vector<std::pair<size_t, libraries::Reach>> counted;
  for (const auto& [place, use] : access.places) {
    const auto [pointer, begin, end] = place;
    counted.push_back({use.nodes, {pointer, begin, end, use.only_read}});
  }
  std::stable_sort(counted.begin(), counted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  auto order = std::make_shared<GraphAccess::Order>();
  for (const auto& [count, reach] : counted) {
    order->reaches.push_back(reach);
    order->hotter += count > counted.back().first;
  }
  return order;
}

// What the graph's nodes name.
GraphAccess Look(CUgraph graph) {
  GraphAccess access;
  RelaxedCapture relaxed;
  Walk(graph, &access, 0);
  access.order = ByUse(access);
  const std::vector<libraries::Reach>& reaches = access.order->reaches;
  const auto only_read = [](const libraries::Reach& reach) { return reach.only_read; };
  SLUICE_LOG(kDebug, "a graph of %zu kernels, %zu of them known by library calls: %zu places, %td only read",
             access.kernels, access.of_libraries, access.places.size(),
             std::count_if(reaches.begin(), reaches.end(), only_read));
  return access;
}

// After instantiation or an update.
void Keep(CUgraphExec executable, GraphAccess access) {
  Mark(access);
  std::lock_guard lock(g_mutex);
  if (access.own_most) g_allocating = true;
  Graphs()[executable] = std::move(access);
}

// Memory of graphs' own is the driver's: it comes when such a graph is launched or uploaded, is kept for the next one,
// and only the driver knows how much of it.
void CountMemory(CUgraphExec executable) {
  if (!g_allocating.load(std::memory_order_relaxed)) return;
  {
    std::lock_guard lock(g_mutex);
    const auto it = Graphs().find(executable);
    if (it == Graphs().end() || it->second.own_most == 0) return;
  }
  if (Device* device = CurrentDevice()) device->CountGraphMemory();
}

// One node of an instantiated graph got new parameters, if the driver took them. What it named before may still be in
// use. A program may do this before each launch: what is named again changes nothing.
template <typename Params, typename Name>
CUresult Change(CUgraphExec executable, CUresult result, Params params, Name name) {
  if (result != CUDA_SUCCESS || !params) return result;
  GraphAccess more;
  {
    RelaxedCapture relaxed;
    name(&more);
    Mark(more);
  }
  std::lock_guard lock(g_mutex);
  GraphAccess& access = Graphs()[executable];
  access.known &= more.known;
  access.unseen |= more.unseen;
  for (auto& [node, places] : more.nodes) access.nodes[node] = std::move(places);
  for (const auto& [place, use] : more.places) {
    const auto [it, fresh] = access.places.emplace(place, use);
    if (!fresh && it->second.only_read <= use.only_read) continue;
    it->second.only_read &= use.only_read;
    access.order.reset();
  }
  return result;
}

void RecordNodes(const Stream& stream, CUgraphExec executable) {
  std::vector<NodePlaces> nodes;
  {
    std::lock_guard lock(g_mutex);
    for (const auto& [node, places] : Graphs()[executable].nodes) nodes.push_back(places);
  }
  RecordGraphLaunch(stream, executable, nodes);
}

template <typename Issue>
CUresult LaunchGraph(CUgraphExec executable, CUstream handle, bool ptsz, Issue issue) {
  Stream* stream = FindStream(handle, ptsz);
  if (!stream) return issue();
  NoteQueued();
  Turn turn(stream, [&] { return reinterpret_cast<uintptr_t>(executable) | 1; });
  const auto run = [&] { return turn.Run(issue); };
  if (Recording()) RecordNodes(*stream, executable);
  if (!MustLook(stream)) return Counted(stream, run);
  std::shared_ptr<const GraphAccess::Order> order;
  Work work;
  work.stream = stream;
  work.known = false;
  work.unseen = true;
  bool first = false;
  {
    std::lock_guard lock(g_mutex);
    if (const auto it = Graphs().find(executable); it != Graphs().end()) {
      GraphAccess& access = it->second;
      if (!access.order) access.order = ByUse(access);
      order = access.order;
      work.known = access.known;
      work.unseen = access.unseen || !access.known;
      first = !access.sized && stream->device->active.load(std::memory_order_relaxed);
      access.sized |= first;
    }
  }
  if (order) {
    if (first) stream->device->LogIfTooLarge(order->reaches);
    work.reaches = order->reaches;
    work.hotter = order->hotter;
  }
  work.id = reinterpret_cast<uintptr_t>(executable) | 1;
  return RunWork(work, run);
}

template <typename Make>
CUresult Instantiate(CUgraphExec* executable, CUgraph graph, Make make) {
  GraphAccess access = Look(graph);
  Device* const device = access.own_most ? CurrentDevice() : nullptr;
  if (device && !device->TakeGraphMemory(access.own_most)) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = make();
  if (result != CUDA_SUCCESS || !executable) {
    if (device) device->CountGraphMemory();
    return result;
  }
  Keep(*executable, std::move(access));
  if (Recording())
    g_recorder->GraphInstantiate(reinterpret_cast<uintptr_t>(graph), reinterpret_cast<uintptr_t>(*executable));
  return result;
}

void NoteChild(CUgraphNode node, CUgraph original) {
  CUgraph copy = nullptr;
  RelaxedCapture relaxed;
  if (g_real.cuGraphChildGraphNodeGetGraph(node, &copy) == CUDA_SUCCESS) NoteGraphCopy(original, copy);
}

CUresult AddNode(const CUgraphNode* node, const CUgraphNodeParams* params, CUresult result) {
  if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_GRAPH) NoteChild(*node, params->graph.graph);
  if (result == CUDA_SUCCESS && params->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) NoteBodies(*node, params->conditional);
  return result;
}

}  // namespace

namespace entry {

CUresult cuGraphInstantiate(CUgraphExec* e, CUgraph g, CUgraphNode* n, char* log, size_t bytes) {
  return Instantiate(e, g, [&] { return g_real.cuGraphInstantiate(e, g, n, log, bytes); });
}
CUresult cuGraphInstantiate_v2(CUgraphExec* e, CUgraph g, CUgraphNode* n, char* log, size_t bytes) {
  return Instantiate(e, g, [&] { return g_real.cuGraphInstantiate_v2(e, g, n, log, bytes); });
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* e, CUgraph g, unsigned long long flags) {
  return Instantiate(e, g, [&] { return g_real.cuGraphInstantiateWithFlags(e, g, flags); });
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* e, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS* p) {
  return Instantiate(e, g, [&] { return g_real.cuGraphInstantiateWithParams(e, g, p); });
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* e, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS* p) {
  return Instantiate(e, g, [&] { return g_real.cuGraphInstantiateWithParams_ptsz(e, g, p); });
}
CUresult cuGraphExecUpdate(CUgraphExec e, CUgraph g, CUgraphNode* n, CUgraphExecUpdateResult* r) {
  const CUresult result = g_real.cuGraphExecUpdate(e, g, n, r);
  if (result == CUDA_SUCCESS) Keep(e, Look(g));
  return result;
}
CUresult cuGraphExecUpdate_v2(CUgraphExec e, CUgraph g, CUgraphExecUpdateResultInfo* r) {
  const CUresult result = g_real.cuGraphExecUpdate_v2(e, g, r);
  if (result == CUDA_SUCCESS) Keep(e, Look(g));
  return result;
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS_v1* p) {
  return Change(e, g_real.cuGraphExecKernelNodeSetParams(e, n, p), p,
                [&](GraphAccess* more) { AddKernel(n, Newer(*p), more); });
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec e, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS_v2* p) {
  return Change(e, g_real.cuGraphExecKernelNodeSetParams_v2(e, n, p), p,
                [&](GraphAccess* more) { AddKernel(n, *p, more); });
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_MEMCPY3D* c, CUcontext context) {
  return Change(e, g_real.cuGraphExecMemcpyNodeSetParams(e, n, c, context), c,
                [&](GraphAccess* more) { AddCopy(n, *c, more); });
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS* s,
                                        CUcontext context) {
  return Change(e, g_real.cuGraphExecMemsetNodeSetParams(e, n, s, context), s,
                [&](GraphAccess* more) { AddMemset(n, *s, more); });
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraph child) {
  return Change(e, g_real.cuGraphExecChildGraphNodeSetParams(e, n, child), child,
                [&](GraphAccess* more) { Walk(child, more, 1); });
}

CUresult cuGraphExecNodeSetParams(CUgraphExec e, CUgraphNode n, CUgraphNodeParams* p) {
  return Change(e, g_real.cuGraphExecNodeSetParams(e, n, p), p, [&](GraphAccess* more) {
    if (p->type == CU_GRAPH_NODE_TYPE_KERNEL) {
      const CUDA_KERNEL_NODE_PARAMS_v3& k = p->kernel;
      AddKernel(n,
                {k.func, k.gridDimX, k.gridDimY, k.gridDimZ, k.blockDimX, k.blockDimY, k.blockDimZ, k.sharedMemBytes,
                 k.kernelParams, k.extra, k.kern, k.ctx},
                more);
    } else if (p->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
      AddCopy(n, p->memcpy.copyParams, more);
    } else if (p->type == CU_GRAPH_NODE_TYPE_MEMSET) {
      const CUDA_MEMSET_NODE_PARAMS_v2& s = p->memset;
      AddMemset(n, {s.dst, s.pitch, s.value, s.elementSize, s.width, s.height}, more);
    } else if (p->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
      AddValues(n, p->memOp.paramArray, p->memOp.count, more);
    } else if (p->type == CU_GRAPH_NODE_TYPE_GRAPH) {
      Walk(p->graph.graph, more, 1);
    }
  });
}
CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_BATCH_MEM_OP_NODE_PARAMS* p) {
  return Change(e, g_real.cuGraphExecBatchMemOpNodeSetParams(e, n, p), p,
                [&](GraphAccess* more) { AddValues(n, p->paramArray, p->count, more); });
}

CUresult cuGraphClone(CUgraph* clone, CUgraph original) {
  const CUresult result = g_real.cuGraphClone(clone, original);
  if (result == CUDA_SUCCESS) NoteGraphCopy(original, *clone);
  return result;
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* n, CUgraph g, const CUgraphNode* after, size_t count, CUgraph child) {
  const CUresult result = g_real.cuGraphAddChildGraphNode(n, g, after, count, child);
  if (result == CUDA_SUCCESS) NoteChild(*n, child);
  return result;
}
CUresult cuGraphAddNode(CUgraphNode* n, CUgraph g, const CUgraphNode* after, size_t count, CUgraphNodeParams* p) {
  return AddNode(n, p, g_real.cuGraphAddNode(n, g, after, count, p));
}
CUresult cuGraphAddNode_v2(CUgraphNode* n, CUgraph g, const CUgraphNode* after, const CUgraphEdgeData* edges,
                           size_t count, CUgraphNodeParams* p) {
  return AddNode(n, p, g_real.cuGraphAddNode_v2(n, g, after, edges, count, p));
}
CUresult cuGraphDestroyNode(CUgraphNode n) {
  ForgetNode(n);
  return g_real.cuGraphDestroyNode(n);
}
CUresult cuGraphDestroy(CUgraph g) {
  ForgetGraph(g);
  return g_real.cuGraphDestroy(g);
}
CUresult cuGraphExecDestroy(CUgraphExec e) {
  bool allocates = false;
  {
    std::lock_guard lock(g_mutex);
    if (const auto it = Graphs().find(e); it != Graphs().end()) {
      allocates = it->second.own_most != 0;
      Graphs().erase(it);
    }
  }
  const CUresult result = g_real.cuGraphExecDestroy(e);
  Device* const device = allocates ? CurrentDevice() : nullptr;
  if (device) device->CountGraphMemory();
  return result;
}
CUresult cuGraphLaunch(CUgraphExec e, CUstream stream) {
  const CUresult result = LaunchGraph(e, stream, false, [&] { return g_real.cuGraphLaunch(e, stream); });
  CountMemory(e);
  return result;
}
CUresult cuGraphLaunch_ptsz(CUgraphExec e, CUstream stream) {
  const CUresult result = LaunchGraph(e, stream, true, [&] { return g_real.cuGraphLaunch_ptsz(e, stream); });
  CountMemory(e);
  return result;
}
CUresult cuGraphUpload(CUgraphExec e, CUstream stream) {
  const CUresult result = g_real.cuGraphUpload(e, stream);
  CountMemory(e);
  return result;
}
CUresult cuGraphUpload_ptsz(CUgraphExec e, CUstream stream) {
  const CUresult result = g_real.cuGraphUpload_ptsz(e, stream);
  CountMemory(e);
  return result;
}
CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
  const CUresult result = g_real.cuDeviceGraphMemTrim(ordinal);
  if (Device* const device = DeviceByOrdinal(ordinal)) device->CountGraphMemory();
  return result;
}

}  // namespace entry
}  // namespace sluice
