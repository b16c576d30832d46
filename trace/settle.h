// Makes one trace of a raw recording of test/gpu/truth: undisturbed steps first, then measured ones.
#ifndef SLUICE_TRACE_SETTLE_H_
#define SLUICE_TRACE_SETTLE_H_

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>

#include "reader.h"

namespace sluice::trace {

struct Settled {
  Trace trace;
  uint64_t measured = 0, carried_over = 0, without = 0;              // launches by where their truth came from
  uint64_t faulted_bytes = 0, guessed_bytes = 0, refused_bytes = 0;  // of the measured ones
  uint64_t checked_bytes = 0, differing_bytes = 0;  // carried over to measured launches, for comparison
};

// - Truth. What faulted was touched. Of what the driver's density heuristic brought beside it, what lies in the same
//   tensor (PyTorch's reports; else block) and the same 2 MiB as a fault counts as touched, a neighbour's does not.
// - Every step launches the same kernels: the truth of a measured launch is carried over to its like in the other
// steps,
//   from tensor to tensor as the parameters name them; measured launches get the durations and host times of
//   undisturbed ones.
// - Host times are multiplied by `host_scale`: what recording added to them is taken off.
// - What comes after the last copy or wait (the program's end) is left out.
// InvalidArgument where the recording names no slow step, or its steps are not alike.
absl::StatusOr<Settled> Settle(Trace raw, double host_scale);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_SETTLE_H_
