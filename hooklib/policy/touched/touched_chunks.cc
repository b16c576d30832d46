// Residency, touched chunks: chunks that launches name and do not touch are left out of their sets (touch_sampler.h).
//
// A chunk that is left out is neither fetched nor used remotely, and it does not protect its neighbours' room. If a
// launch touches it after all, it faults: the driver's records say so, and it is resident from then on. Discarded
// chunks are never left out, since they must not be written by faults.
#include <algorithm>

#include "hooklib/policy/residency.h"

namespace sluice::policy {

namespace {
using memory::Touch;
constexpr uint32_t kUsesOfGraph = 4;       // one replay is a whole iteration
constexpr uint64_t kMinAgeIterations = 32;  // since a chunk was touched, before it is tried again
}  // namespace

// Whether the chunk may be tried, if it has been live for `min_age` launches.
bool Residency::MayTry(const Chunk& chunk, uint64_t min_age) const {
  return chunk.touch == Touch::kUnknown && chunk.has_contents && chunk.live_bytes != 0 && !chunk.discarded &&
         !chunk.reused_after_discard && !chunk.duplicate && chunk.live_since + min_age < now_;
}

// Takes chunks out of the set that are not touched, and those that are tried from here on. Returns the hot chunks.
size_t Residency::LeaveOutUntouched(std::span<const Extent> extents, std::optional<size_t> hot_extents,
                                    const StreamQueues& queues, PlannedLaunch* launch, Seq seq) {
  size_t kept = 0, hot_chunks = 0;
  bool lacks_chunks = false;
  const bool full = resident_bytes_ - std::min(resident_bytes_, idle_bytes_) + kMaxIdleRoom > capacity_;
  const bool tries = launch->can_queue && launch->lacks_chunks && full;
  const uint64_t min_age = hot_extents ? 1 : iterations_.length() * 8 / 9;
  const auto may_try_absent = [&](const Chunk& chunk) {
    return !chunk.resident && MayTry(chunk, min_age) && !IsEvicting(chunk) && !chunk.evicting_elsewhere;
  };
  for (size_t i = 0, from = 0; i < operands_.size(); ++i) {
    const size_t to = operands_[i].end;
    size_t absent = 0;
    for (size_t at = from; tries && at < to; ++at) absent += may_try_absent(*set_[at]);
    size_t tried = 0;
    if (absent) {
      const bool is_graph = hot_extents && set_.size() * kChunkBytes > launch->capacity;
      tried = touched_.Allowance(extents[i], absent);
      if (is_graph && !touched_.IsTouchedWhole(extents[i]) && extents[i].bytes >= TouchSampler::kMinOperandBytes)
        tried = absent;
    }
    // Spread evenly: every stride-th.
    const size_t stride = tried ? absent / tried : 0;
    size_t seen = tried ? now_ % stride : 0;
    for (size_t at = from; at < to; ++at) {
      Chunk* const chunk = set_[at];
      if (tried && may_try_absent(*chunk) && seen++ % stride == 0) {
        touched_.Begin(chunk, extents[i]);
        UnmapRemote(chunk);
        --tried;
      }
      if (TouchSampler::IsLeftOut(*chunk) && !chunk->discarded) {
        if (chunk->touch == Touch::kTrial && !chunk->resident && !IsEvicting(*chunk) && !chunk->mapped_remote)
          touched_.NoteNamed(*chunk, {launch->stream, seq}, hot_extents ? kUsesOfGraph : 1);
        chunk->named_at = 0;
        continue;
      }
      const bool is_own = chunk->fetch_stream == launch->stream;
      lacks_chunks |= !chunk->resident || (is_own ? chunk->fetch_op > queues.awaited_in_op : chunk->discarded);
      set_[kept++] = chunk;
    }
    from = to;
    operands_[i].end = kept;
    if (hot_extents && i + 1 == *hot_extents) hot_chunks = kept;
  }
  set_ = set_.first(kept);
  launch->lacks_chunks = lacks_chunks || !plan_.unmap_remote.empty();
  if (hot_extents && launch->can_queue && kept * kChunkBytes > launch->capacity)
    SampleGraph(extents, launch);
  return hot_extents && *hot_extents >= extents.size() ? set_.size() : std::min(hot_chunks, set_.size());
}

// A graph names more than fits: resident chunks of operands that are mostly untouched leave, as far as it exceeds the
// capacity, and are tried.
void Residency::SampleGraph(std::span<const Extent> extents, PlannedLaunch* launch) {
  size_t over = set_.size() - launch->capacity / kChunkBytes, kept = 0;
  for (size_t i = 0, from = 0; i < operands_.size(); ++i) {
    const size_t to = operands_[i].end;
    const bool is_suspect = over && touched_.IsSuspect(extents[i]) && extents[i].bytes >= TouchSampler::kMinOperandBytes;
    for (size_t at = from; at < to; ++at) {
      Chunk* const chunk = set_[at];
      if (is_suspect && over && chunk->resident && MayTry(*chunk, 1) && MayEvict(*chunk, launch->stream)) {
        touched_.Begin(chunk, extents[i]);
        chunk->named_at = 0;
        EvictChunk(chunk, launch->stream, &plan_.now);
        --over;
        continue;
      }
      set_[kept++] = chunk;
    }
    from = to;
    operands_[i].end = kept;
  }
  set_ = set_.first(kept);
  if (plan_.now.out_op) launch->lacks_chunks = true;
}

// Launches lack bytes: a few resident chunks of other operands leave and are tried, so that room is found which is not
// touched.
void Residency::SampleResident(StreamId stream) {
  touched_.SampleInTurn([&](Extent operand, size_t count) {
    const bool is_suspect = touched_.IsSuspect(operand);
    size_t evicted = 0;
    const uint64_t length = iterations_.length();
    uint64_t chunks = operand.bytes / kChunkBytes;
    Va va = RoundDown(operand.base, kChunkBytes) + now_ * 7 % std::max<uint64_t>(chunks, 1) * kChunkBytes;
    for (uint64_t looked = std::min<uint64_t>(chunks, 256); looked > 0 && evicted < count; --looked) {
      Chunk* const chunk = chunks_.Find(va);
      va += kChunkBytes;
      if (va >= operand.end()) va = RoundUp(operand.base, kChunkBytes);
      if (!chunk || !chunk->resident || chunk->named_at == now_ || chunk->prefetched) continue;
      if (is_suspect && chunk->touch == Touch::kTouched && chunk->touched_at + kMinAgeIterations * length < now_ &&
          touched_.PayForReview())
        touched_.Forget(chunk);
      if (!MayTry(*chunk, length) || !MayEvict(*chunk, stream)) continue;
      EvictChunk(chunk, stream, &plan_.now);
      UnmapRemote(chunk);
      touched_.Begin(chunk, operand);
      ++evicted;
    }
    return evicted != 0;
  });
}

void Residency::ConcludeTouches(std::span<const Va> pages, bool lost) {
  for (const Va page : pages) {
    Chunk* const chunk = chunks_.Find(page);
    if (!chunk || !touched_.NoteFault(chunk, page, now_) || chunk->resident) continue;
    Settle();
    SetResident(chunk, true);
    chunk->last_use = now_;
    chunk->fetch_op = 0;
    candidates_.Unrank(chunk);
    if (chunk->has_contents) stats_.fault_bytes += kChunkBytes;
  }
  touched_.Conclude(&chunks_, lost);
}

void Residency::ForgetTouches() {
  touched_.set_enabled(false);
  chunks_.ForAll([this](Chunk& chunk) { touched_.Forget(&chunk); });
}

}  // namespace sluice::policy
