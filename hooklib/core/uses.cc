// Residency: which chunks a launch names, and what is noted of their use.
//
// Most launches of a program that has settled find all of theirs on the card. What is done for each of their chunks is
// all that such a launch costs beside its one look at the launch before: so nothing here asks a table twice, and who
// leaves first is only worked out when somebody has to (victims.cc).
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

}  // namespace sluice::core
