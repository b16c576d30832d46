// The one function of libc10.so that the hook wraps. The replayer links a stand-in library of that name, so that its
// calls take the same path as PyTorch's: through the preloaded shim to the calling object's own libc10.
#ifndef SLUICE_TRACE_REPLAY_C10_STANDIN_H_
#define SLUICE_TRACE_REPLAY_C10_STANDIN_H_

#include <cstddef>
#include <cstdint>

namespace c10 {

struct Device {
  int8_t type;  // 1: CUDA
  int8_t index;
};

// As PyTorch 2.11 declares it; bytes < 0: freed.
__attribute__((visibility("default"))) void reportMemoryUsageToProfiler(void* address, int64_t bytes,
                                                                        size_t total_allocated, size_t total_reserved,
                                                                        Device device);

}  // namespace c10

#endif  // SLUICE_TRACE_REPLAY_C10_STANDIN_H_
