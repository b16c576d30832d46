// Carries the truth of a measured launch over to its counterparts in other steps.
#ifndef SLUICE_TRACE_TOOLS_SETTLE_CARRY_H_
#define SLUICE_TRACE_TOOLS_SETTLE_CARRY_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "live_tensors.h"
#include "settle_truth.h"
#include "trace/reader.h"

namespace sluice::trace {

// A piece, expressed by the parameters that name its tensor.
struct PortablePiece {
  std::vector<size_t> words;  // the parameter words that point into the tensor
  uint64_t offset, bytes;
  Access access;
  Range tensor;
};

// A launch of the first measured step.
struct MeasuredLaunch {
  size_t launch = SIZE_MAX;  // SIZE_MAX: the recording was cut off before it
  std::vector<PortablePiece> pieces;
  std::vector<Range> named;  // the tensor that each of its words pointed into
};

std::vector<PortablePiece> MakePortable(const Launch& launch, const std::vector<Piece>& pieces);

// Padding of a kernel's parameters holds words of earlier calls. A word is ignored if its tensor is left untouched by
// some launch of the kernel, and another word names the piece.
void DropLeftoverWords(std::vector<MeasuredLaunch>& measured, const std::vector<Launch>& launches);

// The ranges of `launch` that correspond to the pieces; merged.
std::vector<Range> Carry(const std::vector<PortablePiece>& pieces, const Launch& launch, const LiveTensors& live);

// In a step unlike the measured ones (the first, and the events before it) a launch is known by its shape: kernel,
// number of words, grid and block.
using Shape = std::vector<uint64_t>;
Shape ShapeOf(const Launch& launch);

// The candidate whose parameters are most like this launch's: equal numbers, pointers to the same place in tensors of
// equal size. Null where a piece has no such tensor: its bytes would not be this launch's. (Small tensors that share a
// faulted page with a named tensor do not count.)
const MeasuredLaunch* MostAlike(const std::vector<const MeasuredLaunch*>& candidates, const Launch& launch,
                                const std::vector<Launch>& launches, const LiveTensors& live);

}  // namespace sluice::trace

#endif  // SLUICE_TRACE_TOOLS_SETTLE_CARRY_H_
