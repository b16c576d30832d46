// Residency, launch sets: the chunks that a launch names, and the notes on their use.
//
// Most launches of a program in steady state find their set resident. Such a launch costs no more than the work on each
// of its chunks here and one look at the predictor's log. So nothing here looks anything up twice, and chunks are
// ranked only when room is needed (victims.cc).
#include <algorithm>

#include "hooklib/policy/fetch/link_bytes.h"
#include "hooklib/policy/residency.h"

namespace sluice::policy {

// Marks the whole chunks of [begin, end) up to the first one that the launch has named before, and returns that one. A
// function of its own without calls: the compiler keeps all values in registers.
Chunk* Residency::MarkNamed(Chunk* begin, Chunk* end, PlannedLaunch* launch, uint64_t awaited_in_op,
                            Chunk*** to) const {
  const uint64_t now = now_;
  const StreamId stream = launch->stream;
  bool lacks_chunks = false;
  Chunk** next = *to;
  Chunk* chunk = begin;
  for (; chunk < end && chunk->named_at != now; ++chunk) {
    chunk->named_at = now;
    chunk->named_bytes = kChunkBytes;
    const bool is_own = chunk->fetch_stream() == stream;
    if (!chunk->resident() || (is_own ? chunk->fetch_op() > awaited_in_op : chunk->discarded())) lacks_chunks = true;
    *next++ = chunk;
  }
  *to = next;
  if (lacks_chunks) launch->lacks_chunks = true;
  return chunk;
}

// Collects each chunk once, in the order of the extents. Returns how many chunks belong to the first `hot_extents`
// extents.
size_t Residency::CollectSet(std::span<const Extent> extents, size_t overwritten_extents,
                             std::optional<size_t> hot_extents, const StreamQueues& queues, PlannedLaunch* launch) {
  size_t max_chunks = 0, hot_chunks = 0;
  for (const Extent& extent : extents) max_chunks += std::min<size_t>(extent.bytes / kChunkBytes + 2, chunks_.size());
  if (set_storage_.size() < max_chunks) set_storage_.resize(max_chunks);
  Chunk** next = set_storage_.data();
  operands_.resize(extents.size());
  for (size_t i = 0; i < extents.size(); ++i) {
    if (i == hot_extents) hot_chunks = static_cast<size_t>(next - set_storage_.data());
    const Extent& extent = extents[i];
    const bool whole =
        i + overwritten_extents >= extents.size();  // the other extents come first, so that their chunks are marked
    // The same extent again, as in-place work names it: only at its ends may more bytes be named.
    const bool again = i > 0 && extent == extents[i - 1];
    chunks_.ForEachRun(extent, [&](Chunk* const begin, Chunk* const end) {
      for (Chunk* chunk = begin; chunk < end;) {
        Chunk* const unnamed = chunk;
        chunk = MarkNamed(unnamed, end, launch, queues.awaited_in_op, &next);
        if (chunk != unnamed) {
          launch->hash.Add(unnamed->base, chunk[-1].base + kChunkBytes);
          if (unnamed == begin) begin->named_bytes = Overlap(extent, *begin);
          if (chunk == end) end[-1].named_bytes = Overlap(extent, end[-1]);
          for (Chunk* at = unnamed; whole && at < chunk; ++at) {
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
  return hot_extents && *hot_extents >= extents.size() ? set_.size() : hot_chunks;
}

// Notes the ranges that the set names, and its use: in one pass where nothing has to be done between the two.
template <bool kNames, bool kUses>
void Residency::NoteSet(const PlannedLaunch& launch, Seq seq) {
  const StreamId stream = launch.stream;
  const uint64_t now = now_, iteration = iterations_.number(), last_graph_at = last_graph_at_;
  const Share touched = launch.traits.touched;
  const bool required = RequiresResidency(launch), counts = iterations_.Counts(now);
  uint64_t bytes_since_graph = 0;
  bool needs_more = false;  // some chunks need more than the usual
  for (Chunk* chunk : set_) {
    if constexpr (kNames) {
      if (counts) CountLinkBytes(chunk, OverLink(*chunk, touched), iteration);
      if (required) chunk->last_required_at = now;
    }
    if constexpr (kUses) {
      if (chunk->last_use <= last_graph_at) bytes_since_graph += kChunkBytes;
      chunk->last_use = now;
      chunk->NoteContents();
      Mark& use = chunk->use[chunk->use[0].stream == stream ? 0 : 1];
      if (use.stream == stream) use.seq = seq;
      if (use.stream != stream || !chunk->unranked || chunk->prefetched()) needs_more = true;
    }
  }
  bytes_since_graph_ += bytes_since_graph;
  if (!needs_more) return;
  for (Chunk* chunk : set_) {
    // Another stream's launch did not wait for the fetch.
    if (chunk->prefetched() &&
        (chunk->fetch_stream() == stream || timeline_->InDone(chunk->fetch_stream(), chunk->fetch_op())))
      EndPrefetch(chunk);
    if (chunk->use[0].stream != stream && chunk->use[1].stream != stream) NoteUse(chunk, {stream, seq});
    if (chunk->resident()) candidates_.Unrank(chunk);
  }
}
template void Residency::NoteSet<true, true>(const PlannedLaunch&, Seq);
template void Residency::NoteSet<true, false>(const PlannedLaunch&, Seq);
template void Residency::NoteSet<false, true>(const PlannedLaunch&, Seq);

}  // namespace sluice::policy
