// Makes one trace of a raw recording of test/gpu/truth: undisturbed steps first, then measured ones.
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
  uint64_t measured = 0, carried_over = 0, carried_by_shape = 0, without = 0;  // launches by where their truth is from
  uint64_t faulted_bytes = 0, guessed_bytes = 0, refused_bytes = 0;            // of the measured ones
  uint64_t read_bytes = 0, written_bytes = 0, both_bytes = 0;  // of the measured ones, where directions are known
  uint64_t checked_bytes = 0, differing_bytes = 0;             // carried over to measured launches, for comparison
};

// - Truth. What faulted was touched. Of what the driver's density heuristic brought beside it, what lies in the same
//   tensor (PyTorch's reports; else block) and the same 2 MiB as a fault or a change counts as touched, a neighbour's
//   does not.
// - Directions. What changed was written; of a tensor that changed for the better part, everything. What was written
//   over while it was still filled with one word was not read. What did not change was read only.
// - Every step launches the same kernels: the truth of a measured launch is carried over to its like in the other
//   steps, from tensor to tensor as the parameters name them; in steps of other launches (the first) to those of the
//   same kernel and shape.
// - Times (settle_times.h).
// - What comes after the last copy or wait (the program's end) is left out.
// InvalidArgument where the recording names no slow step, or its steps are not alike.
absl::StatusOr<Settled> Settle(Trace raw);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_SETTLE_H_
