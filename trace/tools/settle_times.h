// The host times and durations of the launches of a raw recording.
#ifndef SLUICE_TRACE_TOOLS_SETTLE_TIMES_H_
#define SLUICE_TRACE_TOOLS_SETTLE_TIMES_H_

#include <cstdint>
#include <vector>

#include "trace/reader.h"

namespace sluice::trace {

// `steps`: the launches of each step that is like the measured ones; empty for the others.
// - Durations were recorded in the first steps only: a launch without one gets the median of its counterparts in the
//   undisturbed steps, the first left out.
// - Every step but the first gets the host times of a light step: one in which only the calls were recorded, the
//   shortest. Where the recording has no light step ("light-from"), measured steps get the times of the step before
//   them.
void SettleTimes(Trace& trace, const std::vector<std::vector<uint64_t>>& steps, size_t measured);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_SETTLE_TIMES_H_
