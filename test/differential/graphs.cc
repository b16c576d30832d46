// Graphs of generated programs that are built node by node.
#include <algorithm>
#include <cstring>
#include <vector>

#include "machine.h"
#include "try.h"

namespace differential {
namespace {

CUgraphNode g_nodes[kMaxGraphs];  // the kernel node of each graph, as its executable graph knows it

// The work of one graph's nodes: an update of `data`, a copy of it, a fill, and values written by the last node.
struct Nodes {
  int module;
  CUdeviceptr data, copy;
  size_t bytes;
  uint64_t k;
  int values;
  bool by_struct;  // cuGraphAddNode instead of a call for each type
};

CUresult AddByStruct(CUgraphNode* out, CUgraph graph, const CUgraphNode* after, CUgraphNodeParams* params) {
  const size_t count = after == nullptr ? 0 : 1;
#if CUDA_VERSION >= 13000
  return cuGraphAddNode(out, graph, after, nullptr, count, params);
#else
  return cuGraphAddNode(out, graph, after, count, params);
#endif
}

CUresult AddKernel(CUgraphNode* out, CUgraph graph, const Nodes& nodes) {
  uint64_t words[] = {nodes.data, nodes.bytes, nodes.k};
  void* params[] = {&words[0], &words[1], &words[2]};
  const CUDA_KERNEL_NODE_PARAMS kernel = UpdateNode(nodes.module, params);
  if (!nodes.by_struct) return cuGraphAddKernelNode(out, graph, nullptr, 0, &kernel);
  CUgraphNodeParams any{};
  any.type = CU_GRAPH_NODE_TYPE_KERNEL;
  any.kernel.func = kernel.func;
  any.kernel.gridDimX = kernel.gridDimX;
  any.kernel.gridDimY = kernel.gridDimY;
  any.kernel.gridDimZ = kernel.gridDimZ;
  any.kernel.blockDimX = kernel.blockDimX;
  any.kernel.blockDimY = kernel.blockDimY;
  any.kernel.blockDimZ = kernel.blockDimZ;
  any.kernel.kernelParams = params;
  return AddByStruct(out, graph, nullptr, &any);
}

CUresult AddCopy(CUgraphNode* out, CUgraph graph, CUgraphNode after, const Nodes& nodes, CUcontext context) {
  CUDA_MEMCPY3D moved{};
  moved.srcMemoryType = moved.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  moved.srcDevice = nodes.data;
  moved.dstDevice = nodes.copy;
  moved.srcPitch = moved.dstPitch = moved.WidthInBytes = nodes.bytes;
  moved.srcHeight = moved.dstHeight = moved.Height = moved.Depth = 1;
  if (!nodes.by_struct) return cuGraphAddMemcpyNode(out, graph, &after, 1, &moved, context);
  CUgraphNodeParams any{};
  any.type = CU_GRAPH_NODE_TYPE_MEMCPY;
  any.memcpy.copyCtx = context;
  any.memcpy.copyParams = moved;
  return AddByStruct(out, graph, &after, &any);
}

CUresult AddFill(CUgraphNode* out, CUgraph graph, CUgraphNode after, const Nodes& nodes, CUcontext context) {
  CUDA_MEMSET_NODE_PARAMS fill{};
  fill.dst = nodes.data;
  fill.elementSize = 4;
  fill.value = static_cast<unsigned>(nodes.k);
  fill.width = nodes.bytes / 4 / 2 + 1;
  fill.height = 1;
  if (!nodes.by_struct) return cuGraphAddMemsetNode(out, graph, &after, 1, &fill, context);
  CUgraphNodeParams any{};
  any.type = CU_GRAPH_NODE_TYPE_MEMSET;
  any.memset.dst = fill.dst;
  any.memset.elementSize = fill.elementSize;
  any.memset.value = fill.value;
  any.memset.width = fill.width;
  any.memset.height = fill.height;
  any.memset.ctx = context;
  return AddByStruct(out, graph, &after, &any);
}

// Each node after the one before. `kernel`: the first.
CUresult AddNodes(CUgraph graph, const Nodes& nodes, CUcontext context, CUgraphNode* kernel) {
  CUgraphNode copied = nullptr, filled = nullptr, written = nullptr;
  TRY(AddKernel(kernel, graph, nodes));
  TRY(AddCopy(&copied, graph, *kernel, nodes, context));
  TRY(AddFill(&filled, graph, copied, nodes, context));
  if (nodes.values == 0) return CUDA_SUCCESS;
  std::vector<CUstreamBatchMemOpParams> list(static_cast<size_t>(nodes.values));
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].writeValue.operation = i % 2 ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
    list[i].writeValue.address = nodes.data + (i * 1048 + 8) % (nodes.bytes - 8) / 8 * 8;
    list[i].writeValue.value64 = (nodes.k + i) * 0x100000001u;
  }
  const CUDA_BATCH_MEM_OP_NODE_PARAMS batch{context, static_cast<unsigned>(nodes.values), list.data(), 0};
  return cuGraphAddBatchMemOpNode(&written, graph, &filled, 1, &batch);
}

// The body of an if node whose condition holds at each launch.
CUresult AddBody(CUgraph graph, CUcontext context, CUgraph* body) {
#if CUDA_VERSION >= 12040
  CUgraphConditionalHandle handle = 0;
  TRY(cuGraphConditionalHandleCreate(&handle, graph, context, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
  CUgraphNodeParams any{};
  any.type = CU_GRAPH_NODE_TYPE_CONDITIONAL;
  any.conditional.handle = handle;
  any.conditional.type = CU_GRAPH_COND_TYPE_IF;
  any.conditional.size = 1;
  any.conditional.ctx = context;
  CUgraphNode node = nullptr;
  TRY(AddByStruct(&node, graph, nullptr, &any));
  *body = any.conditional.phGraph_out[0];
  return CUDA_SUCCESS;
#else
  *body = graph;
  return CUDA_SUCCESS;
#endif
}

// The nodes that no other node follows.
CUresult Leaves(CUgraph graph, std::vector<CUgraphNode>* out) {
  size_t nodes = 0, edges = 0;
  TRY(cuGraphGetNodes(graph, nullptr, &nodes));
  out->resize(nodes);
  if (nodes == 0) return CUDA_SUCCESS;
  TRY(cuGraphGetNodes(graph, out->data(), &nodes));
#if CUDA_VERSION >= 13000
  TRY(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
  std::vector<CUgraphNode> from(edges), to(edges);
  if (edges != 0) TRY(cuGraphGetEdges(graph, from.data(), to.data(), nullptr, &edges));
#else
  TRY(cuGraphGetEdges(graph, nullptr, nullptr, &edges));
  std::vector<CUgraphNode> from(edges), to(edges);
  if (edges != 0) TRY(cuGraphGetEdges(graph, from.data(), to.data(), &edges));
#endif
  const auto has_next = [&](CUgraphNode node) { return std::find(from.begin(), from.end(), node) != from.end(); };
  out->erase(std::remove_if(out->begin(), out->end(), has_next), out->end());
  return CUDA_SUCCESS;
}

}  // namespace

CUresult BuildGraph(int graph, GraphShape shape, CUdeviceptr data, CUdeviceptr copy, size_t bytes, uint64_t k,
                    int values, int module) {
  const Nodes nodes{module, data, copy, bytes, k, values, shape == kByStruct};
  CUgraph* const out = &g[graph];
  CUgraphNode* const kernel = &g_nodes[graph];
  CUcontext context = nullptr;
  TRY(cuCtxGetCurrent(&context));
  TRY(cuGraphCreate(out, 0));
  if (shape == kInConditional) {
    CUgraph body = nullptr;
    TRY(AddBody(*out, context, &body));
    return AddNodes(body, nodes, context, kernel);
  }
  if (shape != kInChild && shape != kCloned) return AddNodes(*out, nodes, context, kernel);
  // The graph that is copied ends here: its copy stays.
  CUgraph inner = nullptr;
  CUgraphNode child = nullptr, found = nullptr;
  TRY(cuGraphCreate(&inner, 0));
  TRY(AddNodes(inner, nodes, context, kernel));
  if (shape == kInChild) {
    TRY(cuGraphAddChildGraphNode(&child, *out, nullptr, 0, inner));
  } else {
    TRY(cuGraphDestroy(*out));
    TRY(cuGraphClone(out, inner));
    TRY(cuGraphNodeFindInClone(&found, *kernel, *out));
    *kernel = found;
  }
  return cuGraphDestroy(inner);
}

CUresult SetNode(int graph, int module, CUdeviceptr data, size_t bytes, uint64_t k) {
  uint64_t values[] = {data, bytes, k};
  void* params[] = {&values[0], &values[1], &values[2]};
  const CUDA_KERNEL_NODE_PARAMS kernel = UpdateNode(module, params);
  return cuGraphExecKernelNodeSetParams(x[graph], g_nodes[graph], &kernel);
}
CUresult CaptureTo(CUstream stream, int graph, CUstreamCaptureMode mode, bool is_new) {
#if CUDA_VERSION >= 12030
  if (is_new) TRY(cuGraphCreate(&g[graph], 0));
  std::vector<CUgraphNode> leaves;
  TRY(Leaves(g[graph], &leaves));
  return cuStreamBeginCaptureToGraph(stream, g[graph], leaves.data(), nullptr, leaves.size(), mode);
#else
  return CUDA_ERROR_NOT_SUPPORTED;
#endif
}
CUresult Instantiate(CUgraphExec* out, CUgraph graph) { return cuGraphInstantiateWithFlags(out, graph, 0); }
CUresult UpdateExec(CUgraphExec exec, CUgraph graph) {
  CUgraphExecUpdateResultInfo info{};
  const CUresult result = cuGraphExecUpdate(exec, graph, &info);
  Record("update of a graph: %d", static_cast<int>(info.result));
  return result;
}

}  // namespace differential
