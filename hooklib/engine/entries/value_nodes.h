// Nodes of graphs that write values.
#ifndef SLUICE_HOOKLIB_ENGINE_ENTRIES_VALUE_NODES_H_
#define SLUICE_HOOKLIB_ENGINE_ENTRIES_VALUE_NODES_H_

#include <functional>

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

// Adds a node for the values: by `real`, the driver's call for them, or by `add_child` a graph that does the same.
// Thread-safe, as all below. An error is the driver's.
CUresult AddValues(const CUDA_BATCH_MEM_OP_NODE_PARAMS& p, const std::function<CUresult()>& real,
                   const std::function<CUresult(CUgraph)>& add_child);
// The same behind the last work of a stream that is captured.
CUresult CaptureValues(CUstream handle, bool per_thread, unsigned count, CUstreamBatchMemOpParams* list,
                       const std::function<CUresult()>& real);
// Changes such a node, in its graph or in an executable one.
CUresult SetValues(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS& p, const std::function<CUresult()>& real);
CUresult SetValuesIn(CUgraphExec executable, CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS& p,
                     const std::function<CUresult()>& real);
// Of the general form of the same calls.
CUDA_BATCH_MEM_OP_NODE_PARAMS ValuesIn(const CUgraphNodeParams& params);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_ENTRIES_VALUE_NODES_H_
