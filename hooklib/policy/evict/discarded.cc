// Residency: what was discarded is fetched before any launch may write it, even one that is left to faults.
//
// The manual has a write undo a discard as well as a prefetch does, but a kernel that writes by faults what was
// discarded takes 2.1 s a GiB on an H200, and now and then such a write went through without one and was lost with the
// next departure (driver 580, a host far ahead; 306 MiB at once). To fetch it moves nothing, so where nothing can be
// queued what a launch names of it is brought on the spot. Three cases are not covered: at most 512 MiB that a launch
// does not name come with it; what another stream's launch brings so is not waited for by a launch that does not name
// it; and where nothing can be queued, what a launch does not name, or is to be discarded in a stream's order yet.
#include <algorithm>

#include "hooklib/policy/residency.h"

namespace sluice::policy {

// Whether it was discarded, and may still be so when work that `stream` queues now touches it. Its own launches have
// waited for its fetch; another stream's may hang on work that the application did not order before that.
bool Residency::IsDiscarded(Chunk* chunk, StreamId stream) {
  if (!chunk->discarded) return false;
  if (chunk->fetch_op ? timeline_->InDone(chunk->fetch_stream, chunk->fetch_op) : chunk->resident)
    chunk->discarded = false;
  return chunk->discarded && !(chunk->fetch_op && chunk->fetch_stream == stream);
}

// What was discarded and is alive again may be written by a launch that does not name it (a table of pointers in the
// card's memory), so it comes with whatever launch is next, a part at a time. Nearly always that one names it. How many
// of reused_after_discard_, the first ones, it brings.
size_t Residency::FetchReused(StreamId stream) {
  constexpr size_t kMost = (uint64_t{512} << 20) / kChunkBytes;
  std::erase_if(reused_after_discard_, [this](Chunk* chunk) {
    const bool waits = chunk->discarded && !chunk->fetch_op && chunk->live_bytes != 0 && chunk->named_at != now_;
    chunk->reused_after_discard = waits;
    return !waits;
  });
  const size_t count = std::min(kMost, reused_after_discard_.size());
  // They make no place for what this launch names, nor for one another.
  for (size_t i = 0; i < count; ++i) reused_after_discard_[i]->named_at = now_;
  uint64_t room = Room(stream);
  if (room < count * kChunkBytes) room += MakeRoom(stream, count * kChunkBytes - room, 0, &plan_.now);
  if (room < count * kChunkBytes) ++stats_.over_budget_launches;
  for (size_t i = 0; i < count; ++i) {
    Chunk* const chunk = reused_after_discard_[i];
    UnmapRemote(chunk);
    if (room >= kChunkBytes) {
      FetchResident(chunk, stream, &plan_.now);
      chunk->has_contents = true;  // for all that anybody knows
      chunk->last_use = now_;
      candidates_.Unrank(chunk);
      room -= kChunkBytes;
    } else {
      FetchTransient(chunk, stream);
    }
  }
  return count;
}

// The launch waits for what it brings, so until it is over that does not leave.
void Residency::NoteReused(size_t count, Mark mark) {
  const auto end = reused_after_discard_.begin() + static_cast<std::ptrdiff_t>(count);
  std::for_each(reused_after_discard_.begin(), end, [&](Chunk* chunk) {
    chunk->reused_after_discard = false;
    NoteUse(chunk, mark);
  });
  reused_after_discard_.erase(reused_after_discard_.begin(), end);
}

}  // namespace sluice::policy
