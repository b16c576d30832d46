// Residency, after a discard: a discarded chunk is fetched before any launch may write it, even for a launch that is
// left to demand faults.
//
// By the manual a write undoes a discard as a prefetch does. But a kernel that writes a discarded chunk by faults takes
// 2.1 s a GiB on an H200. Now and then such a write went through without a fault and was lost with the next eviction
// (driver 580, a host that ran ahead of the GPU; 306 MiB at once). The fetch moves nothing, so where nothing can be
// queued the chunks are populated at once: on the GPU where they fit, else in host memory, from where faults bring
// them.
//
// Work of another GPU may write a chunk too (managed memory, peer access, a copy between GPUs), and is planned on that
// GPU. So where streams of several GPUs work, a chunk is populated in host memory when it is allocated again.
//
// Two cases are not covered:
//  - chunks beyond 512 MiB that a launch does not name;
//  - a launch of another stream that does not name a chunk does not wait for the chunk's fetch.
#include <algorithm>

#include "hooklib/policy/fetch/fetches.h"

namespace sluice::policy {

// Whether the chunk was discarded, and may still be so for work that `stream` queues now. The stream's own launches
// have waited for its fetch. Another stream's fetch may hang on work that the application did not order before this
// work.
bool Fetches::IsDiscarded(Chunk* chunk, StreamId stream) {
  if (!chunk->discarded()) return false;
  if (chunk->fetch_op() ? timeline_->InDone(chunk->fetch_stream(), chunk->fetch_op()) : chunk->resident())
    chunk->EndDiscard();
  return chunk->discarded() && !(chunk->fetch_op() && chunk->fetch_stream() == stream);
}

// A launch that does not name a reused chunk may write it (by a table of pointers in GPU memory). So each launch
// fetches a part of these chunks, whatever it names; nearly always it names them. Returns how many of
// reused_after_discard_, from its begin, it fetches.
size_t Fetches::FetchReused(StreamId stream) {
  constexpr size_t kMaxChunks = (uint64_t{512} << 20) / kChunkBytes;
  std::erase_if(reused_after_discard_, [this](Chunk* chunk) {
    const bool waits = chunk->discarded() && !chunk->fetch_op() && chunk->live_bytes != 0 && chunk->named_at != now_;
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
      chunk->NoteContents();  // it may have been written
      chunk->last_use = now_;
      candidates_.Unrank(chunk);
      room -= kChunkBytes;
    } else {
      FetchTransient(chunk, stream);
    }
  }
  return count;
}

// Undoes the discard on the host's time, without room on the GPU. The chunk may be written from now on.
void Fetches::PopulateOnHost(Chunk* chunk) {
  plan_.populate_on_host.push_back({chunk->base, kChunkBytes});
  chunk->EndDiscard();
  chunk->NoteContents();
  chunk->written_back = true;
  if (chunk->ever_evicted) return;
  chunk->ever_evicted = true;
  stats_.host_bytes += kChunkBytes;
}

void Fetches::PopulateReused() {
  for (Chunk* chunk : reused_after_discard_) {
    chunk->reused_after_discard = false;
    if (chunk->discarded() && !chunk->resident() && chunk->live_bytes != 0 && chunk->named_at != now_)
      PopulateOnHost(chunk);
  }
  reused_after_discard_.clear();
}

const Plan& Fetches::PopulateDiscarded(bool fetching) {
  ClearPlan();
  ++now_;  // no chunk is named
  PopulateReused();
  if (fetching) {
    chunks_.ForAll([this](Chunk& chunk) {
      if (!chunk.discarded() || chunk.live_bytes == 0) return;
      if (chunk.resident())
        plan_.populate_now.push_back({chunk.base, kChunkBytes});
      else
        PopulateOnHost(&chunk);
    });
  }
  Merge(&plan_.populate_now);
  Merge(&plan_.populate_on_host);
  return plan_;
}

// The launch waits for these fetches, so the chunks stay until it is over.
void Fetches::NoteReused(size_t count, Mark mark) {
  const auto end = reused_after_discard_.begin() + static_cast<std::ptrdiff_t>(count);
  std::for_each(reused_after_discard_.begin(), end, [&](Chunk* chunk) {
    chunk->reused_after_discard = false;
    NoteUse(chunk, mark);
  });
  reused_after_discard_.erase(reused_after_discard_.begin(), end);
}

}  // namespace sluice::policy
