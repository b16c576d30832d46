// Residency: which of what streaming launches use is worth its place on the card.
//
// Where everything streams and nothing moves any more (a decoder that holds twice its budget), each chunk that lies in
// host memory costs what launches use of it, over the link, in every round; a chunk on the card saves that. An
// embedding table of which a lookup reads four rows, or a cache of keys and values at its first positions, saves next
// to nothing, a weight all of its 2 MiB. So of two such chunks the one that is used whole is kept. What a launch uses
// is what it names, to the byte where that is known (extents of library calls, PyTorch's structs); a sixteenth of that
// where it was seen to be done with host memory in a fraction of the time that the link takes (host_access.h).
//
// To exchange two chunks costs 100 and 22 ms a GiB, once; it saves 24 in each round. So only what differs by much is
// exchanged, and only where nothing else has moved for two rounds: a program whose working set comes and goes places
// its chunks anyway.
#include <algorithm>

#include "hooklib/core/residency.h"

namespace sluice::core {

namespace {
constexpr uint32_t kLittle = kChunkBytes / 8;  // of a chunk, in a round
constexpr uint32_t kMuch = kChunkBytes / 2;
constexpr uint64_t kStill = uint64_t{16} << 20;  // bytes a window that may move all the same
constexpr uint32_t kStillWindows = 2;
constexpr uint64_t kLeast = uint64_t{8} << 20;   // less is not worth a look
constexpr uint64_t kMost = uint64_t{256} << 20;  // at once: 30 ms
}  // namespace

// When a window has just begun: what of the chunks would leave their places for others.
void Residency::ChangePlaces() {
  const uint64_t moved = stats_.bytes_in + stats_.bytes_out;
  const bool still = moved - moved_before_window_ <= kStill && window_length_ == still_length_;
  moved_before_window_ = moved;
  still_length_ = window_length_;
  still_windows_ = still ? still_windows_ + 1 : 0;
  if (still_windows_ < kStillWindows || promote_ || !may_stay_ || prefetch_ != Prefetch::kPredict) return;
  std::vector<Chunk*> cold;
  uint64_t hot = 0;
  chunks_.ForAll([&](Chunk& chunk) {
    if (chunk.link_window + 1 != window_) return;  // not used in the window that is over
    if (chunk.resident) {
      const bool little = std::max(chunk.link_bytes, chunk.link_before) <= kLittle;
      if (little && chunk.live_bytes && chunk.mark != now_ && IsLasting(chunk, 0)) cold.push_back(&chunk);
    } else if (chunk.host_window + 1 == window_ && chunk.link_bytes >= kMuch) {
      hot += kChunkBytes;
    }
  });
  const uint64_t bytes = std::min({cold.size() * kChunkBytes, hot, kMost});
  if (bytes < kLeast) return;
  std::sort(cold.begin(), cold.end(), [](const Chunk* a, const Chunk* b) { return a->link_bytes < b->link_bytes; });
  cold.resize(bytes / kChunkBytes);
  for (Chunk* chunk : cold) {
    chunk->cold = true;
    Push(chunk);
  }
  promote_ = bytes;
}

// Whether a launch uses so little of it that it stays in host memory, where it was put to make place. Launches of a
// shape never met before are not timed first: what they name is too little to matter.
bool Residency::StaysCold(Chunk* chunk, uint64_t id) {
  if (!chunk->cold || OverLink(*chunk, host_access_.Sparse(id)) > kLittle) return false;
  MapInHost(chunk);
  return true;
}

}  // namespace sluice::core
