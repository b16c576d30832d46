// Residency: what is fetched before the launch that needs it, and what leaves before anybody needs its room
// (EvictProactively).
//
// In two ways. What the next launches need comes in place of what is needed later than they are, as long as that is not
// yet many bytes ahead of the link (PrefetchUpcoming). What is needed farther ahead comes while the link is idle, but
// only in place of what is dead (PrefetchFar): of all that died in a forward pass much is free until the backward pass
// fills it.
#include "hooklib/policy/residency.h"

namespace sluice::policy {

namespace {

constexpr size_t kUnderWay = 12;     // fetches of one stream, beyond which no more is fetched for launches to come ...
constexpr size_t kFarUnderWay = 20;  // ... not even where the room stays free
// What is free stays so: for what launches take anew, which would else wait behind what was fetched.
constexpr uint64_t kFarSpares = uint64_t{256} << 20;
constexpr uint64_t kFarRest = 16;  // launches, once nothing dead made room ...
constexpr uint64_t kFarAgain = 8;  // ... or as long as no more is free than the last time
// Launches for whose sake, bytes that leave at a time, and launches until it is looked again where there were none
// such.
constexpr uint64_t kEarly = 512, kEarlyBytes = uint64_t{64} << 20, kEarlyRest = 2;

}  // namespace

// Whether a launch to come, whose execution id this is, is to find the chunk on the card.
bool Residency::ShouldPrefetch(Chunk* chunk, uint64_t id, StreamId stream) {
  using AccessClass = LaunchClassifier::AccessClass;
  if (chunk->live_bytes == 0 || chunk->cold || IsRepopulatedBy(*chunk, id) || IsBeingProbed(*chunk)) return false;
  // What streams or is left to faults, or has not been tried yet, comes in no living byte's place; nor what would be
  // tried all the same.
  const AccessClass verdict = may_map_remote_ ? classifier_.ClassOf(id, false, now_) : AccessClass::kRereading;
  const bool settled = verdict == AccessClass::kStreaming || verdict == AccessClass::kFaulting;
  const bool comes = verdict == AccessClass::kStreaming && CheaperSwapped(*chunk);
  if (chunk->has_contents && verdict != AccessClass::kRereading && !comes &&
      (verdict == AccessClass::kFaulting || IsLongLived(*chunk, id)) &&
      (settled || (verdict == AccessClass::kUnknown && CheaperRemote(*chunk)) ||
       Room(stream) + idle_bytes_ < kChunkBytes)) {
    return false;
  }
  if (chunk->evict_op == kNever) return false;  // behind this very launch
  return !chunk->evict_op || chunk->evict_stream == stream || timeline_->OutDone(chunk->evict_stream, chunk->evict_op);
}

void Residency::PrefetchChunk(Chunk* chunk, uint64_t at, StreamQueues* queues, StreamId stream) {
  UnmapForFetch(chunk);
  FetchResident(chunk, stream, &plan_.ahead);
  chunk->prefetched = true;
  queues->prefetched_bytes += kChunkBytes;
  chunk->next_use = at;
  candidates_.Unrank(chunk);
}

// Whether there was anything to look at.
bool Residency::PrefetchUpcoming(StreamQueues* queues, StreamId stream) {
  if (!queues->evictions.empty() || !queues->fetches.empty()) DrainOps(queues, stream);
  if (queues->fetches.size() > kFarUnderWay || queues->evictions.size() > kUnderWay) return false;
  if (!queues->predictor.HasAhead(kHorizonLaunches)) return false;
  if (queues->fetches.size() <= kUnderWay) PrefetchNear(queues, stream);
  if (queues->prefetched_bytes >= max_prefetch_bytes_ || queues->fetches.size() > kUnderWay)
    PrefetchFar(queues, stream);
  EvictProactively(*queues, stream);
  candidates_.End();
  if (!plan_.ahead.empty()) FinishStep(stream, &plan_.ahead);
  return true;
}

void Residency::PrefetchNear(StreamQueues* queues, StreamId stream) {
  uint64_t at = 0, id = 0;
  while (queues->prefetched_bytes < max_prefetch_bytes_) {
    const auto chunks = queues->predictor.NextAhead(kHorizonLaunches, &at, &id);
    if (chunks.empty()) break;
    if (graph_strategies_.Knows(id)) continue;  // how what it misses comes was measured
    for (Chunk* chunk : chunks) {
      if (chunk->resident) {
        if (chunk->next_use == kNever || chunk->next_use < now_) {
          chunk->next_use = at;
          candidates_.Unrank(chunk);
        }
        continue;
      }
      if (!ShouldPrefetch(chunk, id, stream)) continue;
      if (Room(stream) < kChunkBytes && (budget_rising_ || MakeRoomAgain(stream, kChunkBytes, at, &plan_.ahead) == 0))
        return;
      PrefetchChunk(chunk, at, queues, stream);
    }
  }
}

void Residency::PrefetchFar(StreamQueues* queues, StreamId stream) {
  if (now_ < far_paused_until_ || budget_rising_ || !queues->evictions.empty()) return;
  const auto full = [this] { return resident_bytes_ - idle_bytes_ + far_reserve_bytes_ + kChunkBytes > capacity_; };
  if (now_ < far_full_until_ && full()) return;
  uint64_t at = 0, id = 0;
  while (true) {
    const auto chunks = queues->predictor.NextAhead(kHorizonLaunches, &at, &id);
    if (chunks.empty()) return;
    if (graph_strategies_.Knows(id)) continue;
    far_reserve_bytes_ = queues->predictor.GrowthAhead() * kChunkBytes + kFarSpares;
    for (Chunk* chunk : chunks) {
      if (chunk->resident || !ShouldPrefetch(chunk, id, stream)) continue;
      if (full()) {
        far_full_until_ = now_ + kFarAgain;
        return queues->predictor.RevisitLast();
      }
      Settle();
      if (Room(stream) < kChunkBytes && DiscardFreed(kChunkBytes, stream, &plan_.ahead, at) == 0) {
        far_paused_until_ = now_ + kFarRest;
        return queues->predictor.RevisitLast();
      }
      PrefetchChunk(chunk, at, queues, stream);
    }
  }
}

// While nothing leaves, what is needed last does, as far as more will live soon than there is room for: a launch that
// takes new memory would wait for that.
void Residency::EvictProactively(const StreamQueues& queues, StreamId stream) {
  if (slow_write_back_ || budget_rising_ || !queues.evictions.empty() || now_ < proactive_paused_until_) return;
  const uint64_t room = capacity_ - std::min(capacity_, resident_bytes_ - idle_bytes_);
  const uint64_t need = queues.predictor.GrowthWithin(kEarly) * kChunkBytes;
  const uint64_t bytes = std::min(kEarlyBytes, need - std::min(need, room));
  if (!bytes || Evict(stream, bytes, now_ + kEarly, &plan_.ahead) < bytes) proactive_paused_until_ = now_ + kEarlyRest;
}

void Residency::EndPrefetch(Chunk* chunk) {
  if (!chunk->prefetched) return;
  chunk->prefetched = false;
  uint64_t& bytes = queues_[chunk->fetch_stream].prefetched_bytes;
  bytes -= std::min(bytes, kChunkBytes);
}

}  // namespace sluice::policy
