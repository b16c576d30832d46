// The bytes that any engine must move, computed from a whole trace with the future known: a bound for measured bytes.
#ifndef SLUICE_TRACE_TOOLS_BOUND_H_
#define SLUICE_TRACE_TOOLS_BOUND_H_

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trace/reader.h"

namespace sluice::trace {

enum class Policy : uint8_t { kBelady, kLru, kFifo };

struct StepTraffic {
  uint64_t in_bytes = 0, out_bytes = 0;
  uint64_t kernel_ns = 0;
  uint64_t touched_bytes = 0;
  // Clean pages that were evicted although they were needed again (Belady) or might be (LRU, FIFO). `out_bytes` does
  // not count them: an engine that keeps the host's copy drops them at no cost. UVM's prefetch moves the only copy, so
  // with managed memory they cost the way out as well, unless they were advised read-mostly.
  uint64_t clean_out_bytes = 0;
  // Dirty, live pages that were dropped without a copy, since they are freed before their next use (Belady). An engine
  // that does not know the future writes them back, or keeps them resident instead of other pages.
  uint64_t dropped_bytes = 0;
};

// Bytes that a GPU with a budget of `budget` bytes moves in each step of the trace, in pages of kPageBytes. Events
// before the first step marker are played, not counted.
// - A page is fetched for the launch that touches it; a page that was never written needs no fetch.
// - A page is dropped without a copy when it was only read since its fetch, or when its contents are dead: freed,
//   reported freed, or never used again.
// - The victim is the page whose next use is farthest (Belady), the least recently used, or the oldest.
std::vector<StepTraffic> Traffic(const Trace& trace, uint64_t budget, Policy policy);

// Writes the input of Traffic as text, for programs that compute with it (experiments/bench/least_moved.py). One line
// each: `S` a step begins; `L 5r 7w` a launch reads page 5 and writes page 7; `D 5` page 5's contents are freed.
absl::Status WriteUses(const Trace& trace, const std::string& path);

// Lower bound of a step in milliseconds: its kernels, or its traffic over a link of `bytes_per_s` in each direction.
double LinkLimitMs(const StepTraffic& step, double bytes_per_s);

// The same bound for managed memory, whose clean pages are copied out as well: `out_per_s` bytes a second out,
// `both_per_s` in both directions together.
double ManagedLimitMs(const StepTraffic& step, double out_per_s, double both_per_s);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_BOUND_H_
