// Graphs: a graph launch is one super-kernel whose access set is that of all its nodes.
#include <algorithm>
#include <map>
#include <memory>
#include <tuple>

#include "hooklib/cuda/params.h"
#include "hooklib/cuda/turn.h"
#include "hooklib/cuda/work.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"

namespace sluice {

namespace {

// What the nodes name: resolved at each launch, since ranges come and go under a graph that stays. Most used first.
struct GraphAccess {
  std::vector<dnn::Reach> reaches;
  bool known = true;
  bool sized = false;  // looked at once for what cannot be held
};

std::mutex g_mutex;
std::map<CUgraphExec, std::shared_ptr<GraphAccess>>& Graphs() {
  static auto& map = *new std::map<CUgraphExec, std::shared_ptr<GraphAccess>>();
  return map;
}

template <typename Params>  // CUDA_KERNEL_NODE_PARAMS, of either version
void AddKernel(CUfunction function, const Params& p, GraphAccess* access) {
  const dnn::LaunchShape shape{{p.gridDimX, p.gridDimY, p.gridDimZ}, {p.blockDimX, p.blockDimY, p.blockDimZ}};
  Named named;
  access->known &= Collect(*InfoOf(function), shape, p.kernelParams, p.extra, &named);
  // Once for each node, however often its parameters say it.
  std::sort(named.words.begin(), named.words.end());
  named.words.erase(std::unique(named.words.begin(), named.words.end()), named.words.end());
  for (const uint64_t word : named.words) access->reaches.push_back({word});
  access->reaches.insert(access->reaches.end(), named.reaches.begin(), named.reaches.end());
}

void AddKernel(const CUDA_KERNEL_NODE_PARAMS_v2& p, GraphAccess* access) {
  CUfunction function = p.func;
  if (!function && p.kern && g_real.cuKernelGetFunction) g_real.cuKernelGetFunction(&function, p.kern);
  if (!function) {
    access->known = false;
    return;
  }
  AddKernel(function, p, access);
}

void AddRows(CUdeviceptr base, size_t pitch, size_t width, size_t height, GraphAccess* access) {
  const size_t bytes = height > 1 ? pitch * (height - 1) + width : width;
  if (MayBeTracked(base)) access->reaches.push_back({base, base, base + bytes});
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
      CUDA_KERNEL_NODE_PARAMS_v1 old{};
      if (g_real.cuGraphKernelNodeGetParams_v2 && g_real.cuGraphKernelNodeGetParams_v2(node, &p) == CUDA_SUCCESS) {
        AddKernel(p, access);
      } else if (g_real.cuGraphKernelNodeGetParams && g_real.cuGraphKernelNodeGetParams(node, &old) == CUDA_SUCCESS) {
        AddKernel(old.func, old, access);
      } else {
        access->known = false;
      }
    } else if (type == CU_GRAPH_NODE_TYPE_MEMCPY) {
      CUDA_MEMCPY3D c{};
      if (g_real.cuGraphMemcpyNodeGetParams(node, &c) != CUDA_SUCCESS) continue;
      const size_t rows = c.Height * (c.Depth ? c.Depth : 1);
      AddRows(c.dstDevice, c.dstPitch, c.WidthInBytes, rows, access);
      AddRows(c.srcDevice, c.srcPitch, c.WidthInBytes, rows, access);
    } else if (type == CU_GRAPH_NODE_TYPE_MEMSET) {
      CUDA_MEMSET_NODE_PARAMS s{};
      if (g_real.cuGraphMemsetNodeGetParams(node, &s) == CUDA_SUCCESS)
        AddRows(s.dst, s.pitch, s.width * s.elementSize, s.height, access);
    } else if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
      CUgraph child = nullptr;
      if (g_real.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS) Walk(child, access, depth + 1);
    }
  }
}

// Each reach once, those that most nodes name first.
void SortByUse(std::vector<dnn::Reach>* reaches) {
  const auto place = [](const dnn::Reach& r) { return std::tuple(r.pointer, r.begin, r.end); };
  std::sort(reaches->begin(), reaches->end(), [&](const auto& a, const auto& b) { return place(a) < place(b); });
  std::vector<std::pair<size_t, dnn::Reach>> counted;
  for (const dnn::Reach& reach : *reaches) {
    if (counted.empty() || counted.back().second != reach) counted.push_back({0, reach});
    ++counted.back().first;
  }
  std::stable_sort(counted.begin(), counted.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  reaches->clear();
  for (const auto& [count, reach] : counted) reaches->push_back(reach);
}

// After instantiation or an update: what the graph's nodes name now.
void Learn(CUgraphExec executable, CUgraph graph) {
  auto access = std::make_shared<GraphAccess>();
  RelaxedCapture relaxed;
  Walk(graph, access.get(), 0);
  SortByUse(&access->reaches);
  if (Device* device = CurrentDevice()) {
    for (const dnn::Reach& reach : access->reaches) device->MarkCaptured(reach.pointer);
  }
  std::lock_guard lock(g_mutex);
  Graphs()[executable] = std::move(access);
}

template <typename Issue>
CUresult LaunchGraph(CUgraphExec executable, CUstream handle, bool ptsz, Issue issue) {
  Stream* stream = FindStream(handle, ptsz);
  if (!stream) return issue();
  NoteQueued();
  Turn turn(stream, [&] { return reinterpret_cast<uintptr_t>(executable) | 1; });
  const auto run = [&] { return turn.Run(issue); };
  if (!MustLook(stream)) return Counted(stream, run);
  std::shared_ptr<GraphAccess> access;
  bool first = false;
  {
    std::lock_guard lock(g_mutex);
    if (const auto it = Graphs().find(executable); it != Graphs().end()) access = it->second;
    if (access && !access->sized && stream->device->active.load(std::memory_order_relaxed))
      access->sized = first = true;
  }
  Work work;
  work.stream = stream;
  work.known = access && access->known;
  if (access) {
    if (first) stream->device->SayIfTooLarge(access->reaches);
    work.reaches = access->reaches;
    work.hottest_first = true;
  }
  work.id = reinterpret_cast<uintptr_t>(executable) | 1;
  return RunWork(work, run);
}

template <typename Make>
CUresult Instantiate(CUgraphExec* executable, CUgraph graph, Make make) {
  const CUresult result = make();
  if (result == CUDA_SUCCESS && executable) Learn(*executable, graph);
  return result;
}

// One node of an instantiated graph got new parameters. What it named before may still be in use.
void Add(CUgraphExec executable, const GraphAccess& more) {
  std::lock_guard lock(g_mutex);
  auto& entry = Graphs()[executable];
  auto next = entry ? std::make_shared<GraphAccess>(*entry) : std::make_shared<GraphAccess>();
  next->reaches.insert(next->reaches.end(), more.reaches.begin(), more.reaches.end());
  next->known &= more.known;
  entry = std::move(next);
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
  if (result == CUDA_SUCCESS) Learn(e, g);
  return result;
}
CUresult cuGraphExecUpdate_v2(CUgraphExec e, CUgraph g, CUgraphExecUpdateResultInfo* r) {
  const CUresult result = g_real.cuGraphExecUpdate_v2(e, g, r);
  if (result == CUDA_SUCCESS) Learn(e, g);
  return result;
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec e, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS* p) {
  const CUresult result = g_real.cuGraphExecKernelNodeSetParams_v2(e, n, p);
  if (result == CUDA_SUCCESS && p) {
    GraphAccess more;
    AddKernel(*p, &more);
    Add(e, more);
  }
  return result;
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_MEMCPY3D* c, CUcontext context) {
  const CUresult result = g_real.cuGraphExecMemcpyNodeSetParams(e, n, c, context);
  if (result == CUDA_SUCCESS && c) {
    GraphAccess more;
    AddRows(c->dstDevice, c->dstPitch, c->WidthInBytes, c->Height * (c->Depth ? c->Depth : 1), &more);
    AddRows(c->srcDevice, c->srcPitch, c->WidthInBytes, c->Height * (c->Depth ? c->Depth : 1), &more);
    Add(e, more);
  }
  return result;
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec e, CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS* s,
                                        CUcontext context) {
  const CUresult result = g_real.cuGraphExecMemsetNodeSetParams(e, n, s, context);
  if (result == CUDA_SUCCESS && s) {
    GraphAccess more;
    AddRows(s->dst, s->pitch, s->width * s->elementSize, s->height, &more);
    Add(e, more);
  }
  return result;
}
CUresult cuGraphExecDestroy(CUgraphExec e) {
  {
    std::lock_guard lock(g_mutex);
    Graphs().erase(e);
  }
  return g_real.cuGraphExecDestroy(e);
}
CUresult cuGraphLaunch(CUgraphExec e, CUstream stream) {
  return LaunchGraph(e, stream, false, [&] { return g_real.cuGraphLaunch(e, stream); });
}
CUresult cuGraphLaunch_ptsz(CUgraphExec e, CUstream stream) {
  return LaunchGraph(e, stream, true, [&] { return g_real.cuGraphLaunch_ptsz(e, stream); });
}

}  // namespace entry
}  // namespace sluice
