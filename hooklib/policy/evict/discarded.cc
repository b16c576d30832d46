// Residency, after a discard: a discarded chunk is fetched before any launch may write it, even for a launch that is
// left to demand faults.
//
// By the manual a write undoes a discard as a prefetch does. But a kernel that writes a discarded chunk by faults takes
// 2.1 s a GiB on an H200. Now and then such a write went through without a fault and was lost with the next eviction
// (driver 580, a host that ran ahead of the GPU; 306 MiB at once). The fetch moves nothing, so where nothing can be
// queued the chunks that a launch names are populated at once.
//
// Four cases are not covered:
//  - a chunk that another GPU's stream writes first: the launch is planned on that GPU (test/differential/README.md);
//  - chunks beyond 512 MiB that a launch does not name;
//  - a launch of another stream that does not name a chunk does not wait for the chunk's fetch;
//  - where nothing can be queued: chunks that the launch does not name, or whose discard is still to run in stream
//    order.
#include <algorithm>

#include "hooklib/policy/residency.h"

namespace sluice::policy {

// Whether the chunk was discarded, and may still be so for work that `stream` queues now. The stream's own launches
// have waited for its fetch. Another stream's fetch may hang on work that the application did not order before this
// work.
bool Residency::IsDiscarded(Chunk* chunk, StreamId stream) {
  if (!chunk->discarded) return false;
  if (chunk->fetch_op ? timeline_->InDone(chunk->fetch_stream, chunk->fetch_op) : chunk->resident)
    chunk->discarded = false;
  return chunk->discarded && !(chunk->fetch_op && chunk->fetch_stream == stream);
}

// A launch that does not name a reused chunk may write it (by a table of pointers in GPU memory). So each launch
// fetches a part of these chunks, whatever it names; nearly always it names them. Returns how many of
// reused_after_discard_, from its begin, it fetches.
size_t Residency::FetchReused(StreamId stream) {
  constexpr size_t kMaxChunks = (uint64_t{512} << 20) / kChunkBytes;
  std::erase_if(reused_after_discard_, [this](Chunk* chunk) {
    const bool waits = chunk->discarded && !chunk->fetch_op && chunk->live_bytes != 0 && chunk->named_at != now_;
    chunk->reused_after_discard = waits;
    return !waits;
  });
  const size_t count = std::min(kMaxChunks, reused_after_discard_.size());
  // They make no room for the launch's own chunks, nor for one another.
  for (size_t i = 0; i < count; ++i) reused_after_discard_[i]->named_at = now_;
  uint64_t room = Room(stream);
  if (room < count * kChunkBytes) room += MakeRoom(stream, count * kChunkBytes - room, 0, &plan_.now);
  if (room < count * kChunkBytes) ++stats_.over_budget_launches;
  for (size_t i = 0; i < count; ++i) {
    Chunk* const chunk = reused_after_discard_[i];
    UnmapRemote(chunk);
    if (room >= kChunkBytes) {
      FetchResident(chunk, stream, &plan_.now);
      chunk->has_contents = true;  // it may have been written
      chunk->last_use = now_;
      candidates_.Unrank(chunk);
      room -= kChunkBytes;
    } else {
      FetchTransient(chunk, stream);
    }
  }
  return count;
}

// The launch waits for these fetches, so the chunks stay until it is over.
void Residency::NoteReused(size_t count, Mark mark) {
  const auto end = reused_after_discard_.begin() + static_cast<std::ptrdiff_t>(count);
  std::for_each(reused_after_discard_.begin(), end, [&](Chunk* chunk) {
    chunk->reused_after_discard = false;
    NoteUse(chunk, mark);
  });
  reused_after_discard_.erase(reused_after_discard_.begin(), end);
}

}  // namespace sluice::policy
