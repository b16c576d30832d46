// The recorded host's pace: how long it took between two launches.
#ifndef SLUICE_TRACE_TOOLS_INTERVAL_H_
#define SLUICE_TRACE_TOOLS_INTERVAL_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "trace/reader.h"

namespace sluice::trace {

// Host time, ns, from each launch of a kernel whose name holds `kernel` to the next such launch, in the trace's order,
// where a launch of one whose name holds `between` lies between them. The first step and what precedes it are left out:
// the host warms up. Intervals do not reach over a step's marker, nor over a call that waits.
std::vector<uint64_t> Intervals(const Trace& trace, std::string_view kernel, std::string_view between);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_INTERVAL_H_
