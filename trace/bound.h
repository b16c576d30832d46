// What any engine must move, computed from a whole trace with the future known: the yardstick beside measured bytes.
#ifndef SLUICE_TRACE_BOUND_H_
#define SLUICE_TRACE_BOUND_H_

#include <cstdint>
#include <vector>

#include "reader.h"

namespace sluice::trace {

enum class Policy : uint8_t { kBelady, kLru, kFifo };

struct StepTraffic {
  uint64_t in_bytes = 0, out_bytes = 0;
  uint64_t kernel_ns = 0;
  uint64_t touched_bytes = 0;
};

// Bytes that a card with `budget` bytes moves in each step of the trace (events before the first step marker are
// played, not counted), in pages of kPageBytes. A page is brought in for the launch that touches it; contents that are
// dead (freed, reported freed, or never needed again while they live) leave without a copy; what was only read since it
// came in leaves without one; what was never written needs none to come. The victim is the page whose next use is
// farthest (Belady), least recently used, or oldest.
std::vector<StepTraffic> Traffic(const Trace& trace, uint64_t budget, Policy policy);

// Milliseconds that a step takes at least: its kernels, or its traffic over a link of `bytes_per_s` in each direction.
double LinkLimitMs(const StepTraffic& step, double bytes_per_s);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_BOUND_H_
