#include "c10_standin.h"

#include <atomic>

namespace {
std::atomic<uint64_t> calls{0};
}

// The number of reports, for tests of this path.
extern "C" __attribute__((visibility("default"))) uint64_t sluice_standin_reports() { return calls.load(); }

namespace c10 {

void reportMemoryUsageToProfiler(void*, int64_t, size_t, size_t, Device) {
  calls.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace c10
