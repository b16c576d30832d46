// Reports of PyTorch's caching allocator about its blocks, as libc10_cuda makes them; only the preloaded shim defines
// the function.
#ifndef SLUICE_TEST_ENGINE_REPORT_H_
#define SLUICE_TEST_ENGINE_REPORT_H_

#include <cuda.h>

#include <cstddef>

namespace scenario {

struct C10Device {
  signed char type, index;
};
extern "C" __attribute__((weak)) void report(void* p, long bytes, size_t, size_t, C10Device) __asm__(
    "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");

// Whether the hook takes reports.
inline bool AreReportsTaken() { return &report != nullptr; }
// `bytes` of the block at `p` are taken or, if negative, freed to the allocator's cache.
inline void Report(CUdeviceptr p, long bytes) {
  if (&report != nullptr) report(reinterpret_cast<void*>(p), bytes, 0, 0, {1, 0});
}

}  // namespace scenario

#endif  // SLUICE_TEST_ENGINE_REPORT_H_
