// Residency, eviction: free chunks are discarded first, but for those that come back soon, then the evictable chunks
// with the highest rank are evicted.
#include <algorithm>
#include <utility>

#include "hooklib/policy/evict/eviction.h"

namespace sluice::policy {

namespace {

// The stream waits for a discard in its order: then at least so much is discarded, if there is as much.
constexpr uint64_t kMinStreamDiscardBytes = uint64_t{32} << 20;
// Free chunks that are needed soon are passed over, up to so many for one launch.
constexpr size_t kMaxKept = 2048;
// Chunks of the newest launches are protected, up to so many.
constexpr uint64_t kProtectedLaunches = 24;
constexpr size_t kMaxProtected = 256;

}  // namespace

// The predicted launch that frees the chunk's contents before they are used again; kNever: none is known.
uint64_t Eviction::FreedAt(const Chunk& chunk) const {
  const uint64_t at = chunk.freed_in ? chunk.last_use + chunk.freed_in : 0;
  return at > now_ ? at : kNever;
}

uint64_t Eviction::Rank(const Chunk& chunk) const {
  if (chunk.cold) return 3 * kRankClass;
  if (chunk.last_required_at + iterations_.length() < now_ && now_ > 2 * iterations_.length() &&
      IsLongLived(chunk, 0) && !CheaperSwapped(chunk)) {
    return 2 * kRankClass + std::min(chunk.next_use, kRankClass - 1);
  }
  // Demand-paged chunks are only partly resident: their eviction moves little, whenever they are used next, and had
  // better run before the next faults.
  const bool is_partial = chunk.demand_paged_at && !chunk.is_whole();
  // A chunk that is freed before its next use is not fetched again, and makes room by itself then. It ranks below
  // chunks that would be evicted in any case: their next use is farther than the mean reuse distance of evicted chunks.
  if (const uint64_t freed_at = FreedAt(chunk); freed_at != kNever && !is_partial)
    return std::min(freed_at + reuse_distance_x64_ / 64, kRankClass - 1);
  if (chunk.next_use != kNever && chunk.next_use >= now_ && !is_partial) {
    uint64_t distance = chunk.next_use - now_;
    // Eviction and fetch of a duplicate cost less, and it is worth that much less room.
    if (chunk.duplicate()) {
      distance = distance * link_.Cost(Residence::kSwapped, kChunkBytes, 0) /
                 link_.Cost(Residence::kDuplicated, kChunkBytes, 0);
    }
    return std::min(now_ + distance, kRankClass - 1);
  }
  return RankWithoutPrediction(chunk.last_use);
}

// Room that `stream` may count on: chunks that other streams are still evicting count as resident.
uint64_t Eviction::Room(StreamId stream) {
  uint64_t resident = resident_bytes_;
  for (auto& [other, queues] : queues_) {
    DrainOps(&queues, other);
    if (other == stream) continue;
    for (const auto& [op, bytes] : queues.evictions) resident += bytes;
  }
  return resident >= capacity_ ? 0 : RoundDown(capacity_ - resident, kChunkBytes);
}

// A discard must be over before the application can write the range again through any pointer. So the caller executes
// it at once and waits for it (microseconds, for the engine alone), with the device's lock held, before any allocation
// can reuse the range.
uint64_t Eviction::DiscardFreed(uint64_t bytes, StreamId stream, PlanStep* step, uint64_t keep_until) {
  uint64_t freed = 0, wanted = bytes;
  size_t kept = 0;
  bool waiting = false;
  for (size_t n = freed_resident_.size(); n > 0 && freed < wanted; --n) {
    Chunk* chunk = freed_resident_.front();
    freed_resident_.pop_front();
    if (chunk->live_bytes != 0) {
      chunk->in_freed_list = false;  // reused
      continue;
    }
    if (!chunk->resident()) {
      freed_on_host_.push_back(chunk);
      continue;
    }
    if (chunk->next_use > now_ && chunk->next_use < keep_until) {
      freed_resident_.push_back(chunk);
      if (++kept == kMaxKept) break;
      continue;
    }
    // A fetch is ordered behind all evictions of the chunk (IsEvictingBeside), and faults behind none.
    const bool evicting = IsEvictingElsewhere(chunk) || (!chunk->is_whole() && IsEvicting(*chunk));
    const bool over = !evicting && chunk->named_at != now_ && IsReclaimable(*chunk) && MayEvict(*chunk, 0);
    if (!over && (evicting || !MayDiscardInStream(*chunk, stream))) {
      waiting |= chunk->pins == 0;
      freed_resident_.push_back(chunk);
      continue;
    }
    chunk->in_freed_list = false;
    freed += kChunkBytes;
    if (prefetch_ == Prefetch::kOff || !can_discard_) {  // demand faults bring it
      EvictChunk(chunk, stream, step);
      continue;
    }
    Discard(chunk, over);
    SetResident(chunk, false);
    candidates_.Remove(chunk);
    stats_.bytes_saved += kChunkBytes;
    if (!over) wanted = std::max(wanted, kMinStreamDiscardBytes);
  }
  if (waiting) fences_->Close();
  freed_unfenced_ = waiting;
  return freed;
}

// `over`: no queued work may have touched it.
void Eviction::Discard(Chunk* chunk, bool over) {
  EndPrefetch(chunk);
  chunk->Discard();
  (over ? plan_.discard : plan_.stream_discard).push_back({chunk->base, kChunkBytes});
}

// A free chunk in host memory makes no room, but its next owner does not need the contents fetched: so it is discarded
// before it is given out. If it is used remotely, its next owner uses it remotely, too: a discard saves nothing then.
// Returns whether any was discarded.
bool Eviction::DiscardFreedOnHost(StreamId stream) {
  constexpr size_t kMaxWaiting = 8;  // that have to wait
  bool any = false, unfenced = false;
  size_t waiting = 0;
  for (size_t n = freed_on_host_.size(); n > 0 && waiting < kMaxWaiting; --n) {
    Chunk* const chunk = freed_on_host_.front();
    freed_on_host_.pop_front();
    const bool keeps_contents = prefetch_ == Prefetch::kOff || !can_discard_ || !discards_on_host_;
    if (chunk->live_bytes != 0 || keeps_contents || chunk->mapped_remote() || !chunk->has_contents()) {
      chunk->in_freed_list = false;  // reused, or without contents
      continue;
    }
    if (chunk->resident()) {
      freed_resident_.push_back(chunk);
      continue;
    }
    const bool evicting = IsEvictingElsewhere(chunk) || IsEvicting(*chunk);
    const bool over = !evicting && chunk->named_at != now_ && IsReclaimable(*chunk) && MayEvict(*chunk, 0);
    if (!over && (evicting || !MayDiscardInStream(*chunk, stream))) {
      unfenced |= chunk->freed_epoch == fences_->open();
      freed_on_host_.push_back(chunk);
      ++waiting;
      continue;
    }
    chunk->in_freed_list = false;
    Discard(chunk, over);
    any = true;
  }
  if (unfenced) fences_->Close();
  return any;
}

// Bytes, of `bytes`, that DiscardFreed may free for `stream` now. A chunk that was found in use frees nothing, since
// the GPU is far behind the host that freed it: live bytes would be evicted instead. Before its fence is closed this is
// not known.
uint64_t Eviction::DiscardableBytes(uint64_t bytes, StreamId stream) {
  uint64_t room = 0;
  for (size_t i = 0; can_discard_ && i < freed_resident_.size() && room < bytes; ++i) {
    const Chunk& chunk = *freed_resident_[i];
    if (!chunk.resident() || chunk.live_bytes != 0 || chunk.pins != 0) continue;
    const bool is_fenced = chunk.freed_epoch != fences_->open();
    if (!is_fenced || (IsReclaimable(chunk) && MayEvict(chunk, 0)) || MayDiscardInStream(chunk, stream))
      room += kChunkBytes;
  }
  return room;
}

bool Eviction::IsReclaimable(const Chunk& chunk) {
  return chunk.live_bytes == 0 && chunk.pins == 0 && chunk.freed_at < now_ && fences_->Done(chunk.freed_epoch);
}

// All users are before this place of the stream, or over. The next writer is queued behind this place: the chunk
// belongs to the application's own allocator, the stream waits for the discard, and no other stream works
// (stream_discard.h).
bool Eviction::MayDiscardInStream(const Chunk& chunk, StreamId stream) {
  return in_order_ && can_discard_ && prefetch_ != Prefetch::kOff && chunk.owned && chunk.named_at != now_ &&
         chunk.live_bytes == 0 && chunk.pins == 0 && chunk.freed_at < now_ && MayEvict(chunk, stream);
}

bool Eviction::MayEvict(const Chunk& chunk, StreamId stream) {
  if (chunk.duplicate()) stream = 0;  // dropped at once, in no stream's order
  for (const Mark& use : chunk.use) {
    if (use.stream && use.stream != stream && !timeline_->Done(use)) return false;
  }
  if (chunk.use_epoch && !fences_->Done(chunk.use_epoch)) return false;
  // Used in this stream since its fetch: that launch waited for the fetch, and the eviction is ordered behind the
  // launch. Without this rule a thread that runs ahead of the GPU finds every fetch in flight and nothing evictable.
  if (stream && chunk.fetch_stream() == stream && !chunk.prefetched()) return true;
  return chunk.fetch_op() == 0 || timeline_->InDone(chunk.fetch_stream(), chunk.fetch_op());
}

uint64_t Eviction::Evict(StreamId stream, uint64_t bytes, uint64_t keep_until, PlanStep* step) {
  Settle();
  CatchUp();
  uint64_t freed = 0;
  NoteChange();  // chunks that are used from here on are to be ranked anew, too
  const auto rank = [this](const Chunk& chunk) { return Rank(chunk); };
  if (candidates_.IsStale(resident_bytes_ / kChunkBytes, now_)) candidates_.Rebuild(&chunks_, now_, rank);
  candidates_.Begin(rank);
  const std::vector<Candidate>&protected_list = candidates_.protected_list(), &deferred = candidates_.deferred_list();
  bool waiting = false;
  Candidate top;
  while (freed < bytes && candidates_.Next(&top, now_)) {
    Chunk* chunk = top.chunk;
    // A chunk of the newest launches is evicted behind them, and holds up the evictions after it. So one that can go
    // now is preferred, unless it is needed far sooner.
    const bool may_protect = candidates_.protects() && chunk->next_use != kNever && chunk->next_use > now_;
    if (may_protect && protected_list.size() < kMaxProtected && chunk->named_at != now_ &&
        chunk->last_use + kProtectedLaunches > now_) {
      candidates_.Protect(top);
      continue;
    }
    if (may_protect && !protected_list.empty() &&
        2 * (chunk->next_use - now_) < protected_list.front().chunk->next_use - now_) {
      candidates_.StopProtecting(top);
      continue;
    }
    if (chunk->named_at == now_ || !MayEvict(*chunk, stream)) {
      waiting |= chunk->use_epoch != 0;
      candidates_.Defer(top);
      // With so many chunks in use a longer search costs more than going over the budget.
      if (deferred.size() > 512) break;
      continue;
    }
    // For a later launch only chunks that are known to be needed after it: unknown chunks are left to demand. For
    // demand faults only chunks that no launch of the last iteration used.
    const bool at_once = chunk->next_use == kNever || chunk->next_use < now_ || chunk->next_use <= keep_until;
    if (keep_until && (keep_until == kNever ? chunk->last_use + iterations_.length() > now_ : at_once)) {
      candidates_.Defer(top);
      break;
    }
    if (chunk->next_use != kNever && chunk->next_use > now_ && FreedAt(*chunk) == kNever)
      reuse_distance_x64_ += chunk->next_use - now_ - reuse_distance_x64_ / 64;
    EvictChunk(chunk, stream, step);
    if (freed_unfenced_) freed_awaited_at_ = now_;
    freed += kChunkBytes;
  }
  if (waiting && freed < bytes) fences_->Close();  // these may be evicted once it is done
  if (freed < bytes && !keep_until) {
    // The first candidates, but half of them at most: waiting for the last would leave the GPU without work.
    size_t left = deferred.size() / 2 + 1;
    for (const Candidate& candidate : deferred) {
      if (!candidate.chunk->duplicate() || candidate.chunk->named_at == now_) continue;
      if (left-- == 0) break;
      excess_duplicates_.push_back(candidate.chunk->base);
    }
  }
  return freed;
}

const Plan& Eviction::DropExcessDuplicates() {
  ClearPlan();
  if (excess_duplicates_.empty()) return plan_;  // nearly always: a program waits for each token, and asks for it here
  Settle();
  std::erase_if(excess_duplicates_, [this](Va base) {
    Chunk* const chunk = chunks_.Find(base);
    if (!chunk || !chunk->duplicate() || !chunk->resident()) return true;
    if (resident_bytes_ <= capacity_ || !MayEvict(*chunk, 0)) return false;
    Drop(chunk, &plan_.now);
    return true;
  });
  if (resident_bytes_ <= capacity_) excess_duplicates_.clear();
  Merge(&plan_.now.drop);
  return plan_;
}

// Frees at least `bytes` for `stream` where it can, and returns the bytes freed. No chunk is evicted that is predicted
// to be needed before `keep_until` (kNever: that the last iteration used).
uint64_t Eviction::MakeRoom(StreamId stream, uint64_t bytes, uint64_t keep_until, PlanStep* step) {
  const uint64_t freed = MakeRoomAgain(stream, bytes, keep_until, step);
  candidates_.End();
  return freed;
}

// For several calls in one launch; Candidates::End follows the last.
uint64_t Eviction::MakeRoomAgain(StreamId stream, uint64_t bytes, uint64_t keep_until, PlanStep* step) {
  Settle();
  CatchUp();
  uint64_t freed = 0;
  if (const uint64_t far = FarUse(); far) {
    freed = DiscardFreed(bytes, stream, step, now_ + (far - now_) / SwapsByDiscard());
    if (freed < bytes) freed += Evict(stream, bytes - freed, std::max(keep_until, far), step);
  }
  if (freed < bytes) freed += DiscardFreed(bytes - freed, stream, step);
  return freed < bytes ? freed + Evict(stream, bytes - freed, keep_until, step) : freed;
}

// A free chunk that is used again soon is populated and discarded over and over, which in the end costs more than one
// eviction and one fetch of a chunk that is needed far later. So such a chunk goes first if its next use is so many
// times farther.
uint64_t Eviction::SwapsByDiscard() const {
  return margins::kHysteresis.Of(link_.Cost(Residence::kSwapped, kChunkBytes, 0)) /
             std::max<uint64_t>(1, link_.Cost(Residence::kDiscarded, kChunkBytes, 0)) +
         1;
}

// Chunks that are needed after this launch are needed far later; 0: no free chunk is resident, or none is far.
uint64_t Eviction::FarUse() {
  if (freed_resident_.empty() || !can_discard_ || prefetch_ != Prefetch::kPredict) return 0;
  NoteChange();
  candidates_.Begin([this](const Chunk& chunk) { return Rank(chunk); });
  const uint64_t last = candidates_.LastPredicted();
  return last > now_ + 1 ? now_ + (last - now_) / 2 : 0;
}

// For a launch that is left to demand faults. It touches little of its set, so its chunks gain next to nothing from
// room. Chunks that other launches use in each iteration (the result that rows are added to) would be evicted before
// each such launch and fetched behind it: 0.4 ms on an H200, where the launch itself takes 0.05 to 0.2. Tried now and
// then, since the search first passes over all that the launch names.
uint64_t Eviction::MakeRoomForFaults(StreamId stream, uint64_t bytes) {
  if (bytes == 0 || now_ < yield_paused_until_) return 0;
  const uint64_t freed = MakeRoom(stream, bytes, kNever, &plan_.now);
  if (freed < bytes) yield_paused_until_ = now_ + 64;
  return freed;
}

void Eviction::EvictChunk(Chunk* chunk, StreamId stream, PlanStep* step) {
  if (chunk->duplicate()) return Drop(chunk, step);
  StreamQueues& queues = queues_[stream];
  if (!step->out_op) step->out_op = ++queues.out_op;
  for (const Mark& use : chunk->use) {
    if (use.stream == stream && stream) step->out_after = std::max(step->out_after, use.seq);
  }
  EndPrefetch(chunk);
  NoteEvicted(chunk);
  SetResident(chunk, false);
  candidates_.Remove(chunk);
  BeginEviction(chunk, stream, step->out_op);
  // Another stream's launch may run before the fetch that undoes the discard: for it the chunk is still discarded.
  if (chunk->fetch_op() == 0) chunk->EndDiscard();
  if (!chunk->cold) EndPromotion(chunk);
  if (watches_unnamed()) NoteUnnamedEviction(chunk);
  chunk->ForgetMapping();
  chunk->written_back = true;
  step->evict.push_back({chunk->base, kChunkBytes});
  stats_.bytes_out += kChunkBytes;
  if (!chunk->ever_evicted) {
    chunk->ever_evicted = true;
    stats_.host_bytes += kChunkBytes;
  }
}

}  // namespace sluice::policy
