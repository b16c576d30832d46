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
constexpr uint32_t kUsesOfGraph = 2;                   // one replay is a whole iteration
constexpr uint64_t kMaxIdleRoom = uint64_t{64} << 20;  // less is free: launches compete for room
constexpr uint32_t kMaxExploringReplays = 16;
constexpr uint64_t kMinAgeLaunches = 1024;  // since a chunk was touched, before it is tried again
}  // namespace

// Whether the chunk of a graph may be tried. Not where copies alone wrote it: such weights are duplicated, which a
// fault would end.
bool Residency::MayTry(const Chunk& chunk) const {
  return chunk.touch == Touch::kUnknown && chunk.has_contents && chunk.live_bytes != 0 && !chunk.discarded &&
         !chunk.reused_after_discard && !IsCopied(chunk) && !chunk.duplicate && chunk.live_since + 1 < now_;
}

// Takes chunks out of the set that are not touched, and those that are tried from here on. Returns the hot chunks.
size_t Residency::LeaveOutUntouched(std::span<const Extent> extents, std::optional<size_t> hot_extents,
                                    const StreamQueues& queues, PlannedLaunch* launch, Seq seq) {
  size_t kept = 0;
  bool lacks_chunks = false;
  const bool full = resident_bytes_ - std::min(resident_bytes_, idle_bytes_) + kMaxIdleRoom > capacity_;
  const bool exceeds = set_.size() * kChunkBytes > launch->capacity;  // with the chunks that are left out
  const bool tries = hot_extents && exceeds && launch->can_queue && launch->lacks_chunks && full;
  // A touched chunk is resident beyond the capacity until the next launch.
  double touched = std::min(TouchSampler::kMaxTouched, static_cast<double>(launch->capacity / kChunkBytes) / 8);
  const auto may_try_absent = [&](const Chunk& chunk) {
    return !chunk.resident && !chunk.maybe_mapped && MayTry(chunk);
  };
  for (size_t i = 0, from = 0; i < operands_.size(); ++i) {
    const size_t to = operands_[i].end;
    size_t absent = 0;
    for (size_t at = from; tries && at < to; ++at) absent += may_try_absent(*set_[at]);
    size_t tried = 0;
    if (absent) tried = touched_.Allowance(extents[i], absent, &touched);
    // Spread evenly: every stride-th.
    const size_t stride = tried ? absent / tried : 0;
    size_t seen = tried ? now_ % stride : 0;
    for (size_t at = from; at < to; ++at) {
      Chunk* const chunk = set_[at];
      if (tried && may_try_absent(*chunk) && seen++ % stride == 0) {
        touched_.Begin(chunk, extents[i]);
        --tried;
      }
      if (TouchSampler::IsLeftOut(*chunk) && !chunk->discarded) {
        if (chunk->touch == Touch::kSampled && !chunk->resident && !IsEvicting(*chunk) && !chunk->evicting_elsewhere)
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
  }
  set_ = set_.first(kept);
  launch->lacks_chunks = lacks_chunks;
  if (hot_extents && launch->can_queue && kept * kChunkBytes > launch->capacity) SampleGraph(extents, launch, touched);
  if (!hot_extents || *hot_extents == 0) return 0;
  return operands_.empty() ? 0 : operands_[std::min(*hot_extents, operands_.size()) - 1].end;
}

// A graph names more than fits: resident chunks of operands that may be untouched leave, as far as it exceeds the
// capacity, and are tried. `touched`: as in TouchSampler::Allowance.
void Residency::SampleGraph(std::span<const Extent> extents, PlannedLaunch* launch, double touched) {
  size_t over = set_.size() - launch->capacity / kChunkBytes, kept = 0;
  const auto may_try = [&](Chunk* chunk) {
    if (!chunk->resident || !MayEvict(*chunk, launch->stream)) return false;
    const bool is_old = chunk->touch == Touch::kTouched && chunk->touched_at + kMinAgeLaunches < now_;
    return is_old || MayTry(*chunk);
  };
  for (size_t i = 0, from = 0; i < operands_.size(); ++i) {
    const size_t to = operands_[i].end;
    size_t allowed = 0, stride = 1;
    if (over && !touched_.IsTouchedWhole(extents[i])) {
      const auto resident = static_cast<size_t>(std::count_if(set_.begin() + static_cast<std::ptrdiff_t>(from),
                                                              set_.begin() + static_cast<std::ptrdiff_t>(to), may_try));
      allowed = touched_.Allowance(extents[i], std::min(over, resident), &touched);
      if (allowed) stride = resident / allowed;
    }
    size_t seen = now_ % stride;
    for (size_t at = from; at < to; ++at) {
      Chunk* const chunk = set_[at];
      if (allowed && may_try(chunk) && seen++ % stride == 0) {
        --allowed;
        --over;
        touched_.Forget(chunk);
        touched_.Begin(chunk, extents[i]);
        chunk->named_at = 0;
        UnmapRemote(chunk);
        EvictChunk(chunk, launch->stream, &plan_.now);
        continue;
      }
      set_[kept++] = chunk;
    }
    from = to;
    operands_[i].end = kept;
  }
  set_ = set_.first(kept);
  launch->lacks_chunks |= plan_.now.out_op != 0;
  // Its chunks are fetched for it: their faults would fill the records.
  launch->explores = over && touched_.explores() && explored_replays_ < kMaxExploringReplays;
  explored_replays_ += launch->explores;
}

void Residency::MarkTouchesOver() {
  touched_.MarkOver([this](const Mark& mark) { return timeline_->Done(mark); });
}

void Residency::ConcludeTouches(std::span<const Va> pages, bool lost) {
  for (const Va page : pages) {
    Chunk* const chunk = chunks_.Find(page);
    const bool is_late = chunk && chunk->touch == Touch::kUntouched;
    if (!chunk || !touched_.NoteFault(chunk, now_) || chunk->resident) continue;
    Settle();
    SetResident(chunk, true);
    chunk->last_use = now_;
    chunk->fetch_op = 0;
    candidates_.Unrank(chunk);
    if (chunk->has_contents) stats_.fault_bytes += kChunkBytes;
    touched_late_.push_back(chunk->base);
    // Caches grow upwards: the chunk behind it is fetched with the next launch that names it.
    Chunk* const next = is_late ? chunks_.Find(chunk->base + kChunkBytes) : nullptr;
    if (next && next->touch == Touch::kUntouched) touched_.Presume(next, now_);
  }
  if (lost) {
    touched_.Repeat([this](Va base) {
      Chunk* const chunk = chunks_.Find(base);
      if (chunk && !chunk->resident) fault_residue_.Add(chunk);
    });
    fault_residue_.SweepSoon();
  } else {
    touched_.Conclude(&chunks_);
  }
}

// A launch that touches another page of such a chunk would fault again.
void Residency::FetchTouched(StreamId stream) {
  for (const Va base : touched_late_) {
    Chunk* const chunk = chunks_.Find(base);
    if (chunk && chunk->resident && !chunk->fetched_whole && !chunk->fetch_op) {
      chunk->fetched_whole = true;
      FetchChunk(chunk, stream, &plan_.now);
    }
  }
  touched_late_.clear();
}

void Residency::ForgetTouches() {
  touched_.set_enabled(false);
  chunks_.ForAll([this](Chunk& chunk) { touched_.Forget(&chunk); });
}

}  // namespace sluice::policy
