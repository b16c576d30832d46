// How much more host memory this process's container may take. Evicted bytes lie there.
#ifndef SLUICE_HOOKLIB_CUDA_HOST_MEMORY_H_
#define SLUICE_HOOKLIB_CUDA_HOST_MEMORY_H_

#include <cstdint>

namespace sluice {

// Bytes left under the memory cgroup's limit (v2 or v1) and of what the machine has available, whichever is less. Read
// from /proc and /sys at most every 100 ms. UINT64_MAX where nothing is known.
uint64_t HostMemoryLeft();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_CUDA_HOST_MEMORY_H_
