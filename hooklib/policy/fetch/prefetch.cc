// Residency, prefetch for later launches, and proactive eviction (EvictProactively).
//
// There are two kinds. PrefetchUpcoming serves the next launches: a chunk takes the place of chunks that are needed
// later, as long as the link can keep up with the prefetched bytes. PrefetchFar serves later launches while the
// link is idle, but only in place of free chunks: much that a forward pass frees stays free until the backward pass
// fills it.
#include "hooklib/policy/fetch/fetches.h"

namespace sluice::policy {

namespace {

constexpr size_t kMaxFetchesInFlight =
    12;  // fetches in flight of one stream beyond which nothing more is prefetched ...
constexpr size_t kMaxFarFetchesInFlight = 20;  // ... not even where the room stays free
// Room that stays free for new allocations, which would otherwise wait behind the prefetches.
constexpr uint64_t kFarFreeBytes = uint64_t{256} << 20;
constexpr uint64_t kFarPauseLaunches = 16;  // launches, once no free chunk made room ...
constexpr uint64_t kFarFullLaunches = 8;    // ... or as long as no more is free than the last time
// Proactive eviction: the launches that it looks ahead, bytes at a time, and launches until it is tried again where
// nothing could be evicted.
constexpr uint64_t kProactiveLaunches = 512, kProactiveBytes = uint64_t{64} << 20, kProactivePauseLaunches = 2;

}  // namespace

// Whether the chunk is to be resident for the later launch with this execution id.
bool Fetches::ShouldPrefetch(Chunk* chunk, uint64_t id, StreamId stream) {
  using AccessClass = LaunchClassifier::AccessClass;
  if (TouchSampler::IsLeftOut(*chunk)) return false;
  if (chunk->live_bytes == 0 || chunk->cold || IsRepopulatedBy(*chunk, id) || IsBeingProbed(*chunk)) return false;
  // A chunk that is used remotely, left to faults or not probed yet displaces no live byte. Nor does one that would be
  // probed all the same.
  const AccessClass access_class = may_map_remote_ ? classifier_.ClassOf(id, false, now_) : AccessClass::kFetch;
  const bool is_known = access_class == AccessClass::kStreaming || access_class == AccessClass::kFaulting;
  const bool is_swapped = access_class == AccessClass::kStreaming && CheaperSwapped(*chunk);
  if (chunk->has_contents() && access_class != AccessClass::kFetch && !is_swapped &&
      (access_class == AccessClass::kFaulting || IsLongLived(*chunk, id)) &&
      (is_known || (access_class == AccessClass::kUnknown && CheaperRemote(*chunk)) ||
       Room(stream) + idle_bytes_ < kChunkBytes)) {
    return false;
  }
  if (chunk->has_leave_pending()) return false;  // evicted behind this very launch
  return !IsEvictingBeside(chunk, stream);
}

void Fetches::PrefetchChunk(Chunk* chunk, uint64_t at, StreamId stream) {
  UnmapForFetch(chunk);
  FetchResident(chunk, stream, &plan_.ahead);
  NotePrefetched(chunk);
  chunk->next_use = at;
  candidates_.Unrank(chunk);
}

// Whether there was anything to look at.
bool Fetches::PrefetchUpcoming(StreamQueues* queues, StreamId stream) {
  if (!queues->evictions.empty() || !queues->fetches.empty()) DrainOps(queues, stream);
  if (queues->fetches.size() > kMaxFarFetchesInFlight || queues->evictions.size() > kMaxFetchesInFlight) return false;
  if (!queues->predictor.HasAhead(kHorizonLaunches)) return false;
  if (queues->fetches.size() <= kMaxFetchesInFlight) PrefetchNear(queues, stream);
  if (queues->prefetched_bytes >= max_prefetch_bytes_ || queues->fetches.size() > kMaxFetchesInFlight)
    PrefetchFar(queues, stream);
  EvictProactively(*queues, stream);
  candidates_.End();
  if (!plan_.ahead.empty()) FinishStep(stream, &plan_.ahead);
  return true;
}

// Behind a full window another one is due. Its room is made now, so that its fetches wait for no eviction.
void Fetches::KeepReserve(uint64_t at, StreamId stream) {
  const uint64_t room = Room(stream);
  if (!budget_rising_ && room < max_prefetch_bytes_)
    MakeRoomAgain(stream, max_prefetch_bytes_ - room, at, &plan_.ahead);
}

void Fetches::PrefetchNear(StreamQueues* queues, StreamId stream) {
  uint64_t at = 0, id = 0;
  while (queues->prefetched_bytes < max_prefetch_bytes_) {
    const auto chunks = queues->predictor.NextAhead(kHorizonLaunches, steady_sets_.QuietSince(now_), &at, &id);
    if (chunks.empty()) return;
    if (graph_strategies_.Knows(id)) continue;  // its strategy decides about its missing chunks
    for (Chunk* chunk : chunks) {
      if (chunk->resident()) {
        if (chunk->next_use == kNever || chunk->next_use < now_) {
          chunk->next_use = at;
          candidates_.Unrank(chunk);
        }
        continue;
      }
      if (!ShouldPrefetch(chunk, id, stream)) continue;
      if (Room(stream) < kChunkBytes && (budget_rising_ || MakeRoomAgain(stream, kChunkBytes, at, &plan_.ahead) == 0))
        return;
      PrefetchChunk(chunk, at, stream);
    }
  }
  if (at) KeepReserve(at, stream);
}

void Fetches::PrefetchFar(StreamQueues* queues, StreamId stream) {
  if (now_ < far_paused_until_ || budget_rising_ || !queues->evictions.empty()) return;
  const auto full = [this] { return resident_bytes_ - idle_bytes_ + far_reserve_bytes_ + kChunkBytes > capacity_; };
  if (now_ < far_full_until_ && full()) return;
  uint64_t at = 0, id = 0;
  while (true) {
    const auto chunks = queues->predictor.NextAhead(kHorizonLaunches, steady_sets_.QuietSince(now_), &at, &id);
    if (chunks.empty()) return;
    if (graph_strategies_.Knows(id)) continue;
    far_reserve_bytes_ = queues->predictor.GrowthAhead() * kChunkBytes + kFarFreeBytes;
    for (Chunk* chunk : chunks) {
      if (chunk->resident() || !ShouldPrefetch(chunk, id, stream)) continue;
      if (full()) {
        far_full_until_ = now_ + kFarFullLaunches;
        return queues->predictor.RevisitLast();
      }
      Settle();
      if (Room(stream) < kChunkBytes && DiscardFreed(kChunkBytes, stream, &plan_.ahead, at) == 0) {
        far_paused_until_ = now_ + kFarPauseLaunches;
        return queues->predictor.RevisitLast();
      }
      PrefetchChunk(chunk, at, stream);
    }
  }
}

// While no eviction is in flight, the chunks that are needed last are evicted, as far as the live bytes will soon
// exceed the room: a launch that takes new memory would wait for it.
void Fetches::EvictProactively(const StreamQueues& queues, StreamId stream) {
  if (link_.slow_write_back() || budget_rising_ || !queues.evictions.empty() || now_ < proactive_paused_until_) return;
  const uint64_t room = capacity_ - std::min(capacity_, resident_bytes_ - idle_bytes_);
  const uint64_t need = queues.predictor.GrowthWithin(kProactiveLaunches) * kChunkBytes;
  const uint64_t bytes = std::min(kProactiveBytes, need - std::min(need, room));
  if (!bytes || Evict(stream, bytes, now_ + kProactiveLaunches, &plan_.ahead) < bytes)
    proactive_paused_until_ = now_ + kProactivePauseLaunches;
}

}  // namespace sluice::policy
