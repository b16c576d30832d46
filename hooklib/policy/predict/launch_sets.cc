// Residency: which chunks a launch names, and what is noted of their use.
//
// Most launches of a program that has settled find all of theirs on the card. What is done for each of their chunks is
// all that such a launch costs beside its one look at the launch before: so nothing here asks a table twice, and who
// leaves first is only worked out when somebody has to (victims.cc).
#include <algorithm>

#include "hooklib/policy/fetch/link_bytes.h"
#include "hooklib/policy/residency.h"

namespace sluice::policy {

// Of [begin, end), whole chunks, those up to the first that the launch has named before; which that is. On its own and
// without a call: all that is asked of each stays at hand.
Chunk* Residency::MarkNamed(Chunk* begin, Chunk* end, PlannedLaunch* launch, uint64_t waited_in, Chunk*** to) const {
  const uint64_t now = now_;
  const StreamId stream = launch->stream;
  bool lacks = false;
  Chunk** next = *to;
  Chunk* chunk = begin;
  for (; chunk < end && chunk->named_at != now; ++chunk) {
    chunk->named_at = now;
    chunk->named_bytes = kChunkBytes;
    const bool own = chunk->fetch_stream == stream;
    if (!chunk->resident || (own ? chunk->fetch_op > waited_in : chunk->discarded)) lacks = true;
    *next++ = chunk;
  }
  *to = next;
  if (lacks) launch->lacks_chunks = true;
  return chunk;
}

// Each chunk once, in the order in which they are named. How many are among the first `hotter` extents.
size_t Residency::CollectSet(std::span<const Extent> extents, size_t overwritten, std::optional<size_t> hotter,
                             const StreamQueues& queues, PlannedLaunch* launch) {
  size_t most = 0, hotter_chunks = 0;
  for (const Extent& extent : extents) most += std::min<size_t>(extent.bytes / kChunkBytes + 2, chunks_.size());
  if (set_storage_.size() < most) set_storage_.resize(most);
  Chunk** next = set_storage_.data();
  operands_.resize(extents.size());
  for (size_t i = 0; i < extents.size(); ++i) {
    if (i == hotter) hotter_chunks = static_cast<size_t>(next - set_storage_.data());
    const Extent& extent = extents[i];
    const bool whole = i + overwritten >= extents.size();  // the others are before it, so what they name is marked
    // The same once more, as work in place names it: only of its ends may more be named.
    const bool again = i > 0 && extent == extents[i - 1];
    chunks_.ForEachRun(extent, [&](Chunk* const begin, Chunk* const end) {
      for (Chunk* chunk = begin; chunk < end;) {
        Chunk* const fresh = chunk;
        chunk = MarkNamed(fresh, end, launch, queues.awaited_in_op, &next);
        if (chunk != fresh) {
          launch->hash.Add(fresh->base, chunk[-1].base + kChunkBytes);
          if (fresh == begin) begin->named_bytes = Overlap(extent, *begin);
          if (chunk == end) end[-1].named_bytes = Overlap(extent, end[-1]);
          for (Chunk* at = fresh; whole && at < chunk; ++at) {
            if (at->named_bytes == kChunkBytes) at->overwritten_at = now_;
          }
        }
        for (; chunk < end && chunk->named_at == now_; ++chunk) {
          chunk->named_bytes += std::min<uint32_t>(Overlap(extent, *chunk), kChunkBytes - chunk->named_bytes);
          if (again && chunk + 2 < end) chunk = end - 2;
        }
      }
    });
    const auto count = static_cast<size_t>(next - set_storage_.data());
    operands_[i] = {extent.bytes, count};
  }
  set_ = {set_storage_.data(), next};
  launch->set_hash = launch->hash.sum();
  return hotter && *hotter >= extents.size() ? set_.size() : hotter_chunks;
}

// What the set is named for, and that it is used: in one pass where nothing has to be done between the two.
template <bool kNames, bool kUses>
void Residency::NoteSet(const PlannedLaunch& launch, Seq seq) {
  const StreamId stream = launch.stream;
  const uint64_t now = now_, window = iterations_.number(), graph_before = last_graph_at_;
  const bool sparse = launch.traits.sparse, fetches = RequiresResidency(launch);
  uint64_t between = 0;
  bool rest = false;  // of some there is more to do than most need
  for (Chunk* chunk : set_) {
    if constexpr (kNames) {
      CountLinkBytes(chunk, OverLink(*chunk, sparse), window);
      if (fetches) chunk->last_required_at = now;
    }
    if constexpr (kUses) {
      if (chunk->last_use <= graph_before) between += kChunkBytes;
      chunk->last_use = now;
      chunk->has_contents = true;
      Mark& use = chunk->use[chunk->use[0].stream == stream ? 0 : 1];
      if (use.stream == stream) use.seq = seq;
      if (use.stream != stream || !chunk->unranked || chunk->prefetched) rest = true;
    }
  }
  bytes_since_graph_ += between;
  if (!rest) return;
  for (Chunk* chunk : set_) {
    if (chunk->prefetched) EndPrefetch(chunk);
    if (chunk->use[0].stream != stream && chunk->use[1].stream != stream) NoteUse(chunk, {stream, seq});
    if (chunk->resident) candidates_.Unrank(chunk);
  }
}
template void Residency::NoteSet<true, true>(const PlannedLaunch&, Seq);
template void Residency::NoteSet<true, false>(const PlannedLaunch&, Seq);
template void Residency::NoteSet<false, true>(const PlannedLaunch&, Seq);

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

}  // namespace sluice::policy
