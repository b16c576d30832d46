// When the launches of a raw recording are made, and how long they run.
#ifndef SLUICE_TRACE_TOOLS_SETTLE_TIMES_H_
#define SLUICE_TRACE_TOOLS_SETTLE_TIMES_H_

#include <cstdint>
#include <vector>

#include "trace/reader.h"

namespace sluice::trace {

// `steps`: the launches of each step that is like the measured ones, none of the others.
// - Durations were recorded in the first steps only: a launch without one runs as long as its likes, the median of all
//   undisturbed steps but the first.
// - Host times are those of a light step (one in which nothing but the calls was recorded: the shortest), in every step
// but
//   the first;
//   where the recording has none ("light-from"), measured steps take those of the step before them.
void SettleTimes(Trace& trace, const std::vector<std::vector<uint64_t>>& steps, size_t measured);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_SETTLE_TIMES_H_
