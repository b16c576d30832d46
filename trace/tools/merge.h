// Writes traces, whole or in part.
#ifndef SLUICE_TRACE_TOOLS_MERGE_H_
#define SLUICE_TRACE_TOOLS_MERGE_H_

#include <absl/status/status.h>

#include <functional>
#include <string>

#include "trace/reader.h"

namespace sluice::trace {

// Writes a trace with the recorder, event by event. `keep` may drop events; null keeps all.
absl::Status Write(const Trace& trace, const std::string& to, const std::function<bool(const Event&)>& keep);

// Copies the events before the first step marker and the first `steps` steps. InvalidArgument where there are fewer.
absl::Status Cut(const std::string& from, const std::string& to, int steps);

// Copies a trace without step markers, and lets a step begin behind each synchronization of the host with the device,
// or before each launch of a kernel whose name contains `kernel` unless that is empty, which has at least `launches`
// launches behind it, up to the next one. All host times are multiplied by `pace`: a recording that times launches
// slows the host. InvalidArgument where the trace has steps, or would have fewer than two.
absl::Status MarkSteps(const std::string& from, const std::string& to, int launches, double pace,
                       const std::string& kernel = "");

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_MERGE_H_
