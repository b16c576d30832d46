// The recorded host's pace: its time between two launches.
#ifndef SLUICE_TRACE_TOOLS_INTERVAL_H_
#define SLUICE_TRACE_TOOLS_INTERVAL_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "trace/reader.h"

namespace sluice::trace {

// Host time, ns, from each launch of a kernel whose name contains `kernel` to the next such launch, where a launch of a
// kernel whose name contains `between` lies between them; in the trace's order. The first step and all events before it
// are left out: the host warms up. No interval spans a step marker or a call that waits.
std::vector<uint64_t> Intervals(const Trace& trace, std::string_view kernel, std::string_view between);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_INTERVAL_H_
