// The parts of graphs, for the entry points in graph.cc (nodes, edges) and graph_exec.cc (executable graphs).
#ifndef SIMGPU_API_GRAPH_OPS_H_
#define SIMGPU_API_GRAPH_OPS_H_

#include <map>
#include <memory>
#include <vector>

#include "call.h"

namespace simgpu {

inline bool ValidGraph(CUgraph g) { return g != nullptr && g->magic == kGraphMagic; }
inline bool ValidExec(CUgraphExec g) { return g != nullptr && g->magic == kGraphMagic; }

// Dependencies first, else in the order of creation. False: there is a cycle.
bool Order(CUgraph g, std::vector<CUgraphNode>* out);
// `map`: each node's copy.
std::unique_ptr<CUgraph_st> CloneGraph(CUgraph g, std::map<CUgraphNode, CUgraphNode>* map);
void RunNodes(Call& call, const std::vector<CUgraphNode>& order, CUstream s);

// The operation of a node, made from its parameters.
CUresult SetKernel(CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS& p);
CUresult SetCopy(CUgraphNode n, const CUDA_MEMCPY3D& p);
CUresult SetMemset(CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS& p);
CUresult SetHost(CUgraphNode n, const CUDA_HOST_NODE_PARAMS& p);
CUresult SetValues(CUgraphNode n, const CUDA_BATCH_MEM_OP_NODE_PARAMS& p);

// user_object.cc: references of graphs.
void CopyKept(CUgraph from, CUgraph to);
void DropKept(const CUgraphNode_st& node);
void DropKept(CUgraph g);
Op* KeepWhileRunning(CUgraph g);  // null: it holds none. To be queued behind the launch

// conditional.cc
CUresult SetConditional(CUgraphNode n, CUDA_CONDITIONAL_NODE_PARAMS* p);  // with empty bodies
bool HasConditional(CUgraph g);    // such a graph can be neither cloned nor a child
void AssignConditions(CUgraph g);  // a launch begins
void SetCondition(SimKernelCall* kernel);
void RunConditional(Call& call, const SimConditional& node, CUstream s);

}  // namespace simgpu

#endif  // SIMGPU_API_GRAPH_OPS_H_
