#include "hooklib/policy/chunk_notes.h"

#include <algorithm>
#include <utility>

namespace sluice::policy {

void ChunkNotes::NotePrefetched(Chunk* chunk) {
  chunk->SetPrefetched(true);
  queues_[chunk->fetch_stream()].prefetched_bytes += kChunkBytes;
}

void ChunkNotes::EndPrefetch(Chunk* chunk) {
  if (!chunk->prefetched()) return;
  chunk->SetPrefetched(false);
  uint64_t& bytes = queues_[chunk->fetch_stream()].prefetched_bytes;
  bytes -= std::min(bytes, kChunkBytes);
}

// The chunk was used remotely, was fetched since and is evicted again: the room did not stay free.
void ChunkNotes::EndPromotion(Chunk* chunk) {
  if (!chunk->remote_iteration) return;
  chunk->remote_iteration = 0;
  if (placement_.promote_bytes || placement_.promotion_pause == 0)
    placement_.next_promotion_pause = std::min<uint32_t>(64, placement_.next_promotion_pause * 2);
  placement_.promote_bytes = 0;
  placement_.promotion_pause = placement_.next_promotion_pause;
}

void ChunkNotes::NoteEvicted(Chunk* chunk) {
  if (chunk->cold || !chunk->has_contents() || chunk->evicted_iteration == iterations_.number() ||
      !IsLongLived(*chunk, 0))
    return;
  chunk->evicted_repeatedly = chunk->evicted_iteration && chunk->evicted_iteration + 2 >= iterations_.number();
  chunk->evicted_iteration = iterations_.number();
}

// A swapped chunk is fetched. Where each pass would fetch it, it stays remote for a while instead.
void ChunkNotes::NoteSwappedIn(Chunk* chunk) {
  if (chunk->swapped_in_at && chunk->swapped_in_at + iterations_.length() / 2 > now_)
    chunk->remote_until = now_ + 32 * iterations_.length();
  chunk->swapped_in_at = now_;
}

// Whether remote use costs less than swapping: the chunk is mapped remotely, or was evicted in each iteration and is
// used so little that it had better stay in host memory. A convolution net's parameters and momenta are evicted in the
// forward pass, since they are needed last, and are used two or three times in an iteration, which may count one use
// more. By the driver's calls that is cheaper remote.
bool ChunkNotes::CheaperRemote(const Chunk& chunk) const {
  if (chunk.mapped_remote()) return true;
  // Write-backs by threads run beside all else. Chunks of one pass that stayed remote took the transformer's step at a
  // third of its live bytes from 314 to 343 ms.
  if (!link_.slow_write_back()) return false;
  if (!chunk.evicted_repeatedly || chunk.evicted_iteration + 2 < iterations_.number()) return false;
  const bool is_used_now = chunk.link_iteration == iterations_.number();
  if (!is_used_now && chunk.link_iteration + 1 < iterations_.number()) return true;
  const uint64_t used = is_used_now ? chunk.previous_link_bytes : chunk.link_bytes;
  return link_.IsCheaper(Residence::kRemote, Residence::kSwapped, kChunkBytes, used);
}

// Whether an iteration passes over the chunk so often that swapping costs less than remote use. Where several threads
// evict, an optimizer's second moments are such chunks, its first moments are not.
bool ChunkNotes::CheaperSwapped(const Chunk& chunk) const {
  // Not before its next use can be predicted.
  if (prefetch_ != Prefetch::kPredict || chunk.live_since + iterations_.length() * 15 / 8 > now_ ||
      chunk.remote_until > now_) {
    return false;
  }
  const bool is_used_now = chunk.link_iteration == iterations_.number();
  if (!is_used_now && chunk.link_iteration + 1 != iterations_.number()) return false;
  const uint64_t used = is_used_now ? std::max(chunk.previous_link_bytes, chunk.link_bytes) : chunk.link_bytes;
  return link_.IsCheaper(Residence::kSwapped, Residence::kRemote, kChunkBytes, used);
}

void ChunkNotes::MapRemote(Chunk* chunk) {
  if (chunk->mapped_remote()) return;
  chunk->Map();
  plan_.map_remote.push_back({chunk->base, kChunkBytes});
}

void ChunkNotes::UnmapRemote(Chunk* chunk) {
  if (!chunk->mapped_remote()) return;
  chunk->Unmap();
  plan_.unmap_remote.push_back({chunk->base, kChunkBytes});
  // Queued work that was to use it remotely faults instead.
  if (!chunk->resident() && IsUsedElsewhere(*chunk)) fault_residue_.Add(chunk);
}

// The chunk is fetched for a launch that requires it resident. The mapping would only make its next eviction cost more,
// unless the chunk is used remotely in nearly every iteration. A swapped chunk keeps its mapping: queued launches that
// use it remotely would fault without it.
void ChunkNotes::UnmapForFetch(Chunk* chunk) {
  if (CheaperSwapped(*chunk)) return;
  if (!IsLongLived(*chunk, 0) || chunk->remote_iteration + 2 <= iterations_.number()) UnmapRemote(chunk);
}

void ChunkNotes::NoteRequired(Chunk* chunk, uint64_t id, uint64_t iterations) {
  chunk->required_until = std::max(chunk->required_until, now_ + iterations * iterations_.length());
  chunk->required_by = id;
}

void ChunkNotes::NoteUse(Chunk* chunk, Mark mark) {
  const auto is_own = [&mark](const Mark& use) { return use.stream == mark.stream || use.stream == 0; };
  const auto is_over = [this](const Mark& use) { return timeline_->Done(use); };
  Mark* slot = std::find_if(std::begin(chunk->use), std::end(chunk->use), is_own);
  if (slot == std::end(chunk->use)) slot = std::find_if(std::begin(chunk->use), std::end(chunk->use), is_over);
  if (slot != std::end(chunk->use)) {
    // Sets of the other stream are steady only while its uses are noted in their chunks.
    if (slot->stream && slot->stream != mark.stream) NoteChange();
    *slot = mark;
  } else {
    chunk->use_epoch = fences_->Hold();  // closed when room is needed, behind this launch
  }
}

// Whether unfinished work of other streams than the launch's uses the chunk.
bool ChunkNotes::IsUsedElsewhere(const Chunk& chunk) {
  const auto is_elsewhere = [this](const Mark& use) {
    return use.stream && use.stream != last_queues_.first && !timeline_->Done(use);
  };
  return std::any_of(std::begin(chunk.use), std::end(chunk.use), is_elsewhere) ||
         (chunk.use_epoch && !fences_->Done(chunk.use_epoch));
}

// The host runs ahead: a prefetch for a later launch may arrive before the launch that is timed without it runs.
bool ChunkNotes::IsBeingProbed(const Chunk& chunk) {
  return chunk.probed() && std::any_of(std::begin(chunk.use), std::end(chunk.use),
                                       [this](const Mark& use) { return use.stream && !timeline_->Done(use); });
}

// A chunk that is evicted again is among those whose use is the rarest. From then on it is used in host memory: a fault
// costs several times as much.
void ChunkNotes::NoteUnnamedEviction(Chunk* chunk) {
  if (!std::exchange(chunk->unnamed_by_faults, false) || chunk->last_use > chunk->touched_at) return;  // or named since
  if (chunk->unnamed_out && unnamed_.may_map && chunk->has_contents()) MapRemote(chunk);
  chunk->unnamed_out = now_;
}

}  // namespace sluice::policy
