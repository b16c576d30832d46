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

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_MERGE_H_
