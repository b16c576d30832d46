// Rewrites traces: joins two recordings of one program, keeps a part of one.
#ifndef SLUICE_TRACE_MERGE_H_
#define SLUICE_TRACE_MERGE_H_

#include <absl/status/status.h>

#include <functional>
#include <string>

#include "reader.h"

namespace sluice::trace {

// Writes a trace with the recorder, event by event. `keep` may drop events; null keeps all.
absl::Status Write(const Trace& trace, const std::string& to, const std::function<bool(const Event&)>& keep);

// The slow recording (one launch at a time, truth column) with the host times and durations of the fast one. Both ran
// the same program: launch by launch the same kernels, or an error that names the first difference.
absl::Status MergeTimes(const std::string& slow, const std::string& fast, const std::string& to);

// What precedes the first step marker, and the first `steps` steps. InvalidArgument where there are fewer.
absl::Status Cut(const std::string& from, const std::string& to, int steps);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_MERGE_H_
