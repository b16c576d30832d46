// Residency: of a launch that cannot be held whole and says what it uses most (a graph, whose nodes are counted), that
// stays on the card. The rest is used in host memory or comes by faults, as for any launch larger than the budget;
// which part that is does not change from launch to launch, so nothing goes to and fro.
#include <algorithm>

#include "hooklib/core/residency.h"

namespace sluice::core {

// set_ is in the order of use, most used first: its first `fits` bytes are to be on the card. What is missing of them
// moves from missing_ to hottest_, and as much of the rest leaves, if it may.
void Residency::SplitHottest(StreamId stream, uint64_t fits) {
  const size_t first_cold = std::min<size_t>(fits / kChunkBytes, set_.size());
  missing_.clear();
  for (size_t i = 0; i < set_.size(); ++i) {
    if (!set_[i]->resident) (i < first_cold ? hottest_ : missing_).push_back(set_[i]);
  }
  uint64_t lacking = hottest_.size() * kChunkBytes;
  const uint64_t room = Room(stream);
  lacking -= std::min(lacking, room);
  for (size_t i = set_.size(); i > first_cold && lacking; --i) {
    Chunk* const chunk = set_[i - 1];
    if (!chunk->resident || !MayLeave(*chunk, stream)) continue;
    Depart(chunk, stream, &plan_.now);
    missing_.push_back(chunk);
    lacking -= kChunkBytes;
  }
}

}  // namespace sluice::core
