// Residency: which chunks a launch names, what is noted of their use, and who of them all leaves first.
//
// Most launches of a program that has settled find all of theirs on the card. What is done for each of their chunks is
// all that such a launch costs beside its one look at the launch before: so nothing here asks a table twice, and who
// leaves first is only worked out when somebody has to.
#include <algorithm>

#include "hooklib/core/residency.h"

namespace sluice::core {

// Each chunk once, in the order in which they are named. How many are among the first `hotter` extents.
size_t Residency::Collect(std::span<const Extent> extents, size_t overwritten, std::optional<size_t> hotter) {
  size_t most = 0, count = 0, hotter_chunks = 0;
  for (const Extent& extent : extents) most += std::min<size_t>(extent.bytes / kChunkBytes + 2, chunks_.size());
  set_.resize(most);
  operands_.resize(extents.size());
  const uint64_t now = now_;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (i == hotter) hotter_chunks = count;
    const Extent& extent = extents[i];
    const bool whole = i + overwritten >= extents.size();  // the others are before it, so what they name is marked
    chunks_.ForEachRun(extent, [&](Chunk* begin, Chunk* end) {
      for (Chunk* chunk = begin; chunk < end; ++chunk) {
        const uint32_t named = Overlap(extent, *chunk);
        if (chunk->mark == now) {
          chunk->named_bytes += std::min<uint32_t>(named, kChunkBytes - chunk->named_bytes);
          continue;
        }
        chunk->mark = now;
        chunk->named_bytes = named;
        if (whole && named == kChunkBytes) chunk->overwritten_at = now;
        set_[count++] = chunk;
      }
    });
    operands_[i] = {extent.bytes, count};
  }
  set_.resize(count);
  return hotter && *hotter >= extents.size() ? set_.size() : hotter_chunks;
}

void Residency::NoteUses(StreamId stream, Seq seq) {
  const uint64_t now = now_;
  for (Chunk* chunk : set_) {
    if (chunk->ahead) EndAhead(chunk);
    if (chunk->last_use <= graph_before_) between_ += kChunkBytes;
    chunk->last_use = now;
    chunk->content = true;
    if (chunk->use[0].stream == stream) {
      chunk->use[0].seq = seq;
    } else {
      NoteUse(chunk, {stream, seq});
    }
    if (chunk->resident) Unrank(chunk);
  }
}

void Residency::NoteUse(Chunk* chunk, Mark mark) {
  const auto own = [&mark](const Mark& use) { return use.stream == mark.stream || use.stream == 0; };
  const auto over = [this](const Mark& use) { return timeline_->Done(use); };
  Mark* place = std::find_if(std::begin(chunk->use), std::end(chunk->use), own);
  if (place == std::end(chunk->use)) place = std::find_if(std::begin(chunk->use), std::end(chunk->use), over);
  if (place != std::end(chunk->use)) {
    *place = mark;
  } else {
    chunk->use_epoch = fences_->Use();  // closed when room is needed, behind this launch
  }
}

uint64_t Residency::Rank(const Chunk& chunk) const {
  constexpr uint64_t kClass = uint64_t{1} << 62;
  if (chunk.cold) return 3 * kClass;
  if (chunk.last_fetcher + window_length_ < now_ && now_ > 2 * window_length_ && IsLasting(chunk, 0)) {
    return 2 * kClass + std::min(chunk.next_use, kClass - 1);
  }
  // Of what launches leave to faults only a part is there: what is sent away of it is little, whenever it is used next,
  // and had better go early than while the next faults come in.
  const bool scattered = chunk.left_at && !chunk.sure;
  if (chunk.next_use != kNever && chunk.next_use >= now_ && !scattered) {
    // To drop a duplicate and bring it back takes a third of what it takes to send another away and bring that.
    const uint64_t away = (chunk.next_use - now_) * (chunk.duplicate ? 3 : 1);
    return std::min(now_ + away, kClass - 1);
  }
  return kClass + (kClass - 1 - std::min(chunk.last_use, kClass - 1));
}

// What was touched since room was last needed.
void Residency::RankAnew() {
  const bool many = unranked_.size() > candidates_.size() / 8;
  for (Chunk* chunk : unranked_) {
    chunk->unranked = false;
    if (!chunk->resident) continue;
    candidates_.push_back({Rank(*chunk), chunk, ++chunk->rank_stamp});
    if (!many) std::push_heap(candidates_.begin(), candidates_.end());
  }
  if (many) std::make_heap(candidates_.begin(), candidates_.end());
  unranked_.clear();
}

// Drops outdated entries, and ranks anew what was predicted for a time that has passed.
void Residency::Rebuild() {
  rebuilt_at_ = now_;
  candidates_.clear();
  unranked_.clear();
  chunks_.ForAll([this](Chunk& chunk) {
    chunk.unranked = false;
    if (chunk.resident) candidates_.push_back({Rank(chunk), &chunk, ++chunk.rank_stamp});
  });
  std::make_heap(candidates_.begin(), candidates_.end());
}

}  // namespace sluice::core
