// Makes a trace of a raw recording by test/gpu/truth, which holds undisturbed steps first, then measured ones.
#ifndef SLUICE_TRACE_TOOLS_SETTLE_H_
#define SLUICE_TRACE_TOOLS_SETTLE_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "trace/reader.h"

namespace sluice::trace {

struct Settled {
  Trace trace;
  uint64_t measured = 0, carried_over = 0, carried_by_shape = 0, without = 0;  // launches by the origin of their truth
  uint64_t faulted_bytes = 0, guessed_bytes = 0, refused_bytes = 0;            // of the measured launches
  uint64_t read_bytes = 0, written_bytes = 0, both_bytes = 0;  // of the measured launches with known directions
  uint64_t checked_bytes = 0, differing_bytes = 0;             // carried over to measured launches, for comparison
};

// - Truth. Pages that faulted were touched. A page that the driver's density heuristic fetched beside them counts as
//   touched if it lies in the same tensor (PyTorch's reports; else block) and the same 2 MiB as a fault or a change.
// - Directions. Changed bytes were written; a tensor of which most bytes changed was written whole. Bytes that were
//   overwritten while still filled with one word were not read. Unchanged bytes were only read.
// - Every step launches the same kernels: the truth of a measured launch is carried over to its counterpart in the
//   other steps, from tensor to tensor as the parameters name them. In a step with other launches (the first) it is
//   carried over to launches of the same kernel and shape.
// - Times: see settle_times.h.
// - Events after the last copy or wait (the program's end) are left out.
// InvalidArgument where the recording names no slow step, or its steps differ.
absl::StatusOr<Settled> Settle(Trace raw);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_SETTLE_H_
