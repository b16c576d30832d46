// Graphs that stand for nodes that write values. The driver refuses such nodes in memory that moves. A child graph
// takes a node's place: copies from pinned words write the values there, and nodes of the driver's do the rest. Its
// shape follows from the operations alone: where their memory lies may change in an executable graph.
//
// The driver copies a graph in many ways. So a copy is known by itself: it begins with a copy from a word that belongs
// to the node's values.
#ifndef SLUICE_HOOKLIB_ENGINE_EXECUTE_VALUE_GRAPHS_H_
#define SLUICE_HOOKLIB_ENGINE_EXECUTE_VALUE_GRAPHS_H_

#include <vector>

#include "hooklib/dispatch/cuda_api.h"

namespace sluice::value_graphs {

struct NodeValues;  // lasts as long as a graph, or a launch under way, has the words

// All of this is thread-safe, but for calls on one graph at a time. An error is the driver's.
// Makes the graph's nodes those of the values. Its earlier nodes, of other values, go.
CUresult Fill(CUgraph graph, const CUDA_BATCH_MEM_OP_NODE_PARAMS& values);
// The values that the node stands for; null: it is no such node.
const NodeValues* ValuesOf(CUgraphNode node);
CUgraph GraphOf(CUgraphNode node);
CUDA_BATCH_MEM_OP_NODE_PARAMS ParamsOf(const NodeValues& values);

}  // namespace sluice::value_graphs

#endif  // SLUICE_HOOKLIB_ENGINE_EXECUTE_VALUE_GRAPHS_H_
