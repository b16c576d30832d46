// The working set that an engine estimated, beside the chunks that were truly touched.
#ifndef SLUICE_TRACE_TOOLS_WORKING_SET_H_
#define SLUICE_TRACE_TOOLS_WORKING_SET_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "trace/reader.h"

namespace sluice::trace {

// At the time of the engine's newest estimate, over the minute before it. Bytes of managed memory in chunks of 2 MiB,
// over all devices.
struct WorkingSetCheck {
  bool is_known = false;  // the engine recorded an estimate
  uint64_t estimated_bytes = 0;
  uint64_t touched_bytes = 0;              // by the truth column, and by copies and memsets
  size_t launches = 0, without_truth = 0;  // in that minute
};

// `replayed` was recorded by the engine while `source`, which has the truth column, was played. The two belong
// together, as Explain has checked.
WorkingSetCheck CheckWorkingSet(const Trace& source, const Trace& replayed);

// A line; empty where no estimate was recorded.
std::string WorkingSetText(const WorkingSetCheck& check);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_WORKING_SET_H_
