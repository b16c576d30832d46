// Memory that the driver gave a device beside its allocations.
#ifndef SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_ARENAS_H_
#define SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_ARENAS_H_

#include <vector>

#include "hooklib/dispatch/cuda_api.h"
#include "hooklib/memory/types.h"

namespace sluice {

// A reservation for VMM memory. Its chunks are known to residency in parts, from their first mapping on: PyTorch
// reserves more than the GPU has.
struct Reservation {
  memory::Extent range;
  CUcontext context;
  std::vector<bool> was_mapped;        // by chunk
  std::vector<memory::Extent> arenas;  // parts that residency knows
  uint64_t mapped_bytes = 0;           // of chunks that were mapped: these count as requested
};

// Wholly free arenas that the driver has not taken back yet. They count as requested.
struct FreeArena {
  CUcontext context;
  memory::Extent range;
  bool is_managed;
  uint64_t requested;  // its bytes that count as such
};

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_DEVICE_DEVICE_ARENAS_H_
