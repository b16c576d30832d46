// Graphs: a graph launch is one super-kernel whose access set is that of all its nodes.
#include <algorithm>
#include <map>
#include <memory>

#include "hooklib/cuda/params.h"
#include "hooklib/cuda/turn.h"
#include "hooklib/cuda/work.h"
#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"

namespace sluice {

namespace {

// What the nodes name. Words are resolved at each launch, since ranges come and go under a graph that stays.
struct GraphAccess {
  std::vector<uint64_t> words;
  std::vector<core::Extent> exact;
  bool known = true;
  bool sized = false;  // looked at once for what cannot be held
};

std::mutex g_mutex;
std::map<CUgraphExec, std::shared_ptr<GraphAccess>>& Graphs() {
  static auto& map = *new std::map<CUgraphExec, std::shared_ptr<GraphAccess>>();
  return map;
}

void AddKernel(CUfunction function, CUkernel kernel, void** parameters, void** extra, GraphAccess* access) {
  if (!function && kernel && g_real.cuKernelGetFunction) g_real.cuKernelGetFunction(&function, kernel);
  if (!function) {
    access->known = false;
    return;
  }
  access->known &= CollectWords(*InfoOf(function), parameters, extra, &access->words);
}

void AddRows(CUdeviceptr base, size_t pitch, size_t width, size_t height, GraphAccess* access) {
  if (MayBeTracked(base)) access->exact.push_back({base, height > 1 ? pitch * (height - 1) + width : width});
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
        AddKernel(p.func, p.kern, p.kernelParams, p.extra, access);
      } else if (g_real.cuGraphKernelNodeGetParams && g_real.cuGraphKernelNodeGetParams(node, &old) == CUDA_SUCCESS) {
        AddKernel(old.func, nullptr, old.kernelParams, old.extra, access);
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

// After instantiation or an update: what the graph's nodes name now. An update adds; what a node named before may still
// be in use.
void Learn(CUgraphExec executable, CUgraph graph) {
  auto access = std::make_shared<GraphAccess>();
  RelaxedCapture relaxed;
  Walk(graph, access.get(), 0);
  std::sort(access->words.begin(), access->words.end());
  access->words.erase(std::unique(access->words.begin(), access->words.end()), access->words.end());
  if (Device* device = CurrentDevice()) {
    for (const uint64_t word : access->words) device->MarkCaptured(word);
    for (const core::Extent& extent : access->exact) device->MarkCaptured(extent.base);
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
    if (first) stream->device->SayIfTooLarge(access->words, access->exact);
    work.words = access->words;
    work.exact = access->exact;
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

// One node of an instantiated graph got new parameters.
void Add(CUgraphExec executable, const GraphAccess& more) {
  std::lock_guard lock(g_mutex);
  auto& entry = Graphs()[executable];
  auto next = entry ? std::make_shared<GraphAccess>(*entry) : std::make_shared<GraphAccess>();
  next->words.insert(next->words.end(), more.words.begin(), more.words.end());
  next->exact.insert(next->exact.end(), more.exact.begin(), more.exact.end());
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
    AddKernel(p->func, p->kern, p->kernelParams, p->extra, &more);
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
