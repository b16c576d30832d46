// The bytes that a measured launch of a raw recording touched, and in which direction.
#ifndef SLUICE_TRACE_TOOLS_SETTLE_TRUTH_H_
#define SLUICE_TRACE_TOOLS_SETTLE_TRUTH_H_

#include <cstdint>
#include <vector>

#include "live_tensors.h"
#include "trace/reader.h"

namespace sluice::trace {

// A touched range and the tensor that it lies in (bytes 0: in none).
struct Piece {
  Range range, tensor;
};

// The touched pieces of a measured launch: pages that faulted, and the guessed pages that count as touched (settle.h).
// Adds the bytes of accepted guesses to `accepted`.
std::vector<Piece> TouchedPieces(const Launch& launch, const LiveTensors& live, uint64_t& accepted);

// Splits the pieces by direction: changed bytes were written, the rest was only read. Some values are overwritten by
// equal ones, so a tensor of which at least half changed counts as written whole.
void AddDirections(std::vector<Piece>& pieces, const std::vector<Range>& changed);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_SETTLE_TRUTH_H_
