#include "c10_standin.h"

#include <atomic>

namespace {
std::atomic<uint64_t> calls{0};
}

// How many reports arrived: the test of the road asks.
extern "C" __attribute__((visibility("default"))) uint64_t sluice_standin_reports() { return calls.load(); }

namespace c10 {

void reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, Device) {
  calls.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace c10
