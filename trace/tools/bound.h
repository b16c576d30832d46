// What any engine must move, computed from a whole trace with the future known: the yardstick beside measured bytes.
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
  // Left although nothing had written them since they came, and were needed again (Belady) or might be (LRU, FIFO).
  // `out_bytes` lets them go for nothing, as an engine can that keeps the host's copy. UVM's prefetch moves the only
  // copy there is, so with managed memory they cost the way out as well, unless they were advised read-mostly.
  uint64_t clean_out_bytes = 0;
  // Left without a copy although they were written and still live, since they are freed before anybody needs them
  // (Belady). Whoever does not know the future copies them out, or keeps them in the place of others.
  uint64_t dropped_bytes = 0;
};

// Bytes that a card with `budget` bytes moves in each step of the trace (events before the first step marker are
// played, not counted), in pages of kPageBytes. A page is brought in for the launch that touches it; contents that are
// dead (freed, reported freed, or never needed again while they live) leave without a copy; what was only read since it
// came in leaves without one; what was never written needs none to come. The victim is the page whose next use is
// farthest (Belady), least recently used, or oldest.
std::vector<StepTraffic> Traffic(const Trace& trace, uint64_t budget, Policy policy);

// What Traffic reads of the trace, for programs that compute with it (experiments/bench/least_moved.py), a line each:
// `S` a step begins; `L 5r 7w` a launch reads page 5 and writes page 7; `D 5` page 5's contents died.
absl::Status WriteUses(const Trace& trace, const std::string& path);

// Milliseconds that a step takes at least: its kernels, or its traffic over a link of `bytes_per_s` in each direction.
double LinkLimitMs(const StepTraffic& step, double bytes_per_s);

// The same where pages of managed memory are moved, clean ones out as well: out at `out_per_s`, both ways together at
// `both_per_s`.
double ManagedLimitMs(const StepTraffic& step, double out_per_s, double both_per_s);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_BOUND_H_
