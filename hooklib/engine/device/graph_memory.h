// Memory of graphs' own allocation nodes that outlives the launches: it is shared with no other graph.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_GRAPH_MEMORY_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_GRAPH_MEMORY_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "hooklib/dispatch/cuda_api.h"

namespace sluice::graph_memory {

using BytesByGpu = std::map<CUdevice, uint64_t>;
using Blocks = std::map<CUdeviceptr, std::pair<CUdevice, uint64_t>>;  // their GPU and bytes

struct Needs {
  BytesByGpu peaks;                // by GPU, what its nodes hold at most at a time
  Blocks left;                     // blocks that it allocates and does not free
  std::vector<CUdeviceptr> freed;  // blocks of others that it frees
  bool any() const { return !peaks.empty() || !freed.empty(); }
};

// Before a graph is instantiated, and before each launch and upload: room for its memory beside blocks that other
// graphs have left. False: the budget has none. All functions here are thread-safe and take the devices' locks.
bool Reserve(const Needs& needs);
// Behind a launch that the driver took.
void NoteLaunched(const Needs& needs);
// Behind a free that the driver took, of memory that the engine does not know.
void NoteFreed(CUdeviceptr block);
// Counts the memory that the driver keeps for graphs now: only the driver knows how much it is.
void CountAgain(const BytesByGpu& peaks);

}  // namespace sluice::graph_memory

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_GRAPH_MEMORY_H_
