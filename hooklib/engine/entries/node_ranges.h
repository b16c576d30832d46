// Ranges of a graph's copies and memsets.
#ifndef SLUICE_HOOKLIB_ENGINE_ENTRIES_NODE_RANGES_H_
#define SLUICE_HOOKLIB_ENGINE_ENTRIES_NODE_RANGES_H_

#include "hooklib/dispatch/cuda_api.h"

namespace sluice {

// Whether the node reaches past a block of the application's, which the driver refuses (block_ends.h). False for null
// and for nodes of other kinds. Thread-safe.
bool ReachesPastItsBlock(const CUDA_MEMCPY3D* copy);
bool ReachesPastItsBlock(const CUDA_MEMSET_NODE_PARAMS* set);
bool ReachesPastItsBlock(const CUgraphNodeParams* node);

// For memory of another GPU than the node's (peers.h). Null and nodes of other kinds: no effect. Thread-safe.
void KeepWhereAllocated(CUcontext context, const CUDA_MEMCPY3D* copy);
void KeepWhereAllocated(CUcontext context, const CUDA_MEMSET_NODE_PARAMS* set);
void KeepWhereAllocated(const CUgraphNodeParams* node);

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_ENTRIES_NODE_RANGES_H_
