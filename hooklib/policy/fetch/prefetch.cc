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
bool Residency::Awaits(Chunk* chunk, uint64_t id, StreamId stream) {
  using Verdict = LaunchClassifier::Verdict;
  if (chunk->live_bytes == 0 || chunk->cold || RepopulatedBefore(*chunk, id) || IsBeingTried(*chunk)) return false;
  // What streams or is left to faults, or has not been tried yet, comes in no living byte's place; nor what would be
  // tried all the same.
  const Verdict verdict = may_map_remote_ ? host_access_.Of(id, false, now_) : Verdict::kFetch;
  const bool settled = verdict == Verdict::kStreams || verdict == Verdict::kFaults;
  const bool comes = verdict == Verdict::kStreams && CheaperSwapped(*chunk);
  if (chunk->content && verdict != Verdict::kFetch && !comes &&
      (verdict == Verdict::kFaults || IsLasting(*chunk, id)) &&
      (settled || (verdict == Verdict::kTry && CheaperRemote(*chunk)) || Room(stream) + idle_ < kChunkBytes)) {
    return false;
  }
  if (chunk->departure_op == kNever) return false;  // behind this very launch
  return !chunk->departure_op || chunk->departure_stream == stream ||
         timeline_->OutDone(chunk->departure_stream, chunk->departure_op);
}

void Residency::PrefetchChunk(Chunk* chunk, uint64_t at, Queues* queues, StreamId stream) {
  Unmap(chunk);
  FetchAndPlace(chunk, stream, &plan_.ahead);
  chunk->ahead = true;
  queues->ahead_bytes += kChunkBytes;
  chunk->next_use = at;
  candidates_.Unrank(chunk);
}

// Whether there was anything to look at.
bool Residency::PrefetchUpcoming(Queues* queues, StreamId stream) {
  if (!queues->departing.empty() || !queues->arriving.empty()) DrainOps(queues, stream);
  if (queues->arriving.size() > kFarUnderWay || queues->departing.size() > kUnderWay) return false;
  if (!queues->predictor.Sees(kHorizon)) return false;
  if (queues->arriving.size() <= kUnderWay) PrefetchNear(queues, stream);
  if (queues->ahead_bytes >= max_prefetch_bytes_ || queues->arriving.size() > kUnderWay) PrefetchFar(queues, stream);
  EvictProactively(*queues, stream);
  candidates_.End();
  if (!plan_.ahead.empty()) Finish(stream, &plan_.ahead);
  return true;
}

void Residency::PrefetchNear(Queues* queues, StreamId stream) {
  uint64_t at = 0, id = 0;
  while (queues->ahead_bytes < max_prefetch_bytes_) {
    const auto chunks = queues->predictor.Ahead(kHorizon, &at, &id);
    if (chunks.empty()) break;
    if (ways_.Knows(id)) continue;  // how what it misses comes was measured
    for (Chunk* chunk : chunks) {
      if (chunk->resident) {
        if (chunk->next_use == kNever || chunk->next_use < now_) {
          chunk->next_use = at;
          candidates_.Unrank(chunk);
        }
        continue;
      }
      if (!Awaits(chunk, id, stream)) continue;
      if (Room(stream) < kChunkBytes && (budget_rising_ || MakeMoreRoom(stream, kChunkBytes, at, &plan_.ahead) == 0))
        return;
      PrefetchChunk(chunk, at, queues, stream);
    }
  }
}

void Residency::PrefetchFar(Queues* queues, StreamId stream) {
  if (now_ < far_rests_until_ || budget_rising_ || !queues->departing.empty()) return;
  const auto full = [this] { return resident_ - idle_ + far_keeps_ + kChunkBytes > capacity_; };
  if (now_ < far_again_ && full()) return;
  uint64_t at = 0, id = 0;
  while (true) {
    const auto chunks = queues->predictor.Ahead(kHorizon, &at, &id);
    if (chunks.empty()) return;
    if (ways_.Knows(id)) continue;
    far_keeps_ = queues->predictor.Growth() * kChunkBytes + kFarSpares;
    for (Chunk* chunk : chunks) {
      if (chunk->resident || !Awaits(chunk, id, stream)) continue;
      if (full()) {
        far_again_ = now_ + kFarAgain;
        return queues->predictor.LookAgain();
      }
      Settle();
      if (Room(stream) < kChunkBytes && DiscardDead(kChunkBytes, stream, &plan_.ahead, at) == 0) {
        far_rests_until_ = now_ + kFarRest;
        return queues->predictor.LookAgain();
      }
      PrefetchChunk(chunk, at, queues, stream);
    }
  }
}

// While nothing leaves, what is needed last does, as far as more will live soon than there is room for: a launch that
// takes new memory would wait for that.
void Residency::EvictProactively(const Queues& queues, StreamId stream) {
  if (slow_write_back_ || budget_rising_ || !queues.departing.empty() || now_ < early_rests_until_) return;
  const uint64_t room = capacity_ - std::min(capacity_, resident_ - idle_);
  const uint64_t need = queues.predictor.GrowthIn(kEarly) * kChunkBytes;
  const uint64_t bytes = std::min(kEarlyBytes, need - std::min(need, room));
  if (!bytes || Evict(stream, bytes, now_ + kEarly, &plan_.ahead) < bytes) early_rests_until_ = now_ + kEarlyRest;
}

void Residency::EndPrefetch(Chunk* chunk) {
  if (!chunk->ahead) return;
  chunk->ahead = false;
  uint64_t& bytes = queues_[chunk->arrival_stream].ahead_bytes;
  bytes -= std::min(bytes, kChunkBytes);
}

}  // namespace sluice::policy
