// Residency: who leaves when room is needed. What is dead first, then those that rank lowest of what may leave.
#include <algorithm>
#include <utility>

#include "hooklib/policy/residency.h"

namespace sluice::policy {

namespace {

// The stream stands still for a discard in its order: then at least so much, if it is there.
constexpr uint64_t kReapBytes = uint64_t{32} << 20;
// Launches ago, and as many chunks as are looked past for those that were used so lately.
constexpr uint64_t kFresh = 24;
constexpr size_t kMostFresh = 256;

}  // namespace

uint64_t Residency::Rank(const Chunk& chunk) const {
  constexpr uint64_t kClass = uint64_t{1} << 62;
  if (chunk.cold) return 3 * kClass;
  if (chunk.last_required_at + iterations_.length() < now_ && now_ > 2 * iterations_.length() &&
      IsLongLived(chunk, 0) && !CheaperSwapped(chunk)) {
    return 2 * kClass + std::min(chunk.next_use, kClass - 1);
  }
  // Of what launches leave to faults only a part is there: what is sent away of it is little, whenever it is used next,
  // and had better go early than while the next faults come in.
  const bool scattered = chunk.demand_paged_at && !chunk.fetched_whole;
  // What is freed before it is used again does not come back, and makes place by itself then: it stays while others may
  // leave that would in any case, since they are needed later than what left was in the mean.
  if (const uint64_t dies = FreedAt(chunk); dies != kNever && !scattered)
    return std::min(dies + reuse_distance_x64_ / 64, kClass - 1);
  if (chunk.next_use != kNever && chunk.next_use >= now_ && !scattered) {
    // To drop a duplicate and bring it back takes a third of what it takes to send another away and bring that.
    const uint64_t away = (chunk.next_use - now_) * (chunk.duplicate ? 3 : 1);
    return std::min(now_ + away, kClass - 1);
  }
  return kClass + (kClass - 1 - std::min(chunk.last_use, kClass - 1));
}

// Room that `stream` may count on: what other streams are still sending away is not gone yet.
uint64_t Residency::Room(StreamId stream) {
  uint64_t held = resident_bytes_;
  for (auto& [other, queues] : queues_) {
    DrainOps(&queues, other);
    if (other == stream) continue;
    for (const auto& [op, bytes] : queues.evictions) held += bytes;
  }
  return held >= capacity_ ? 0 : RoundDown(capacity_ - held, kChunkBytes);
}

// A discard must be over before the application can write the range again through any pointer, seen or unseen. The
// caller executes it at once and waits for it (microseconds of the engine's own), with the device's lock held, before
// which no allocation can populate_now the range.
uint64_t Residency::DiscardFreed(uint64_t bytes, StreamId stream, PlanStep* step, uint64_t kept_until) {
  uint64_t freed = 0, most = bytes;
  bool waiting = false;
  for (size_t n = freed_resident_.size(); n > 0 && freed < most; --n) {
    Chunk* chunk = freed_resident_.front();
    freed_resident_.pop_front();
    if (chunk->live_bytes != 0) {
      chunk->in_freed_list = false;  // revived
      continue;
    }
    if (!chunk->resident) {
      freed_on_host_.push_back(chunk);
      continue;
    }
    if (chunk->next_use > now_ && chunk->next_use < kept_until) {
      freed_resident_.push_back(chunk);
      continue;
    }
    // What only faults can have brought since may still be on its way out; what was fetched is so no longer.
    const bool leaving = !chunk->fetched_whole && IsEvicting(*chunk);
    const bool over = !leaving && chunk->named_at != now_ && IsReclaimable(*chunk) && MayEvict(*chunk, 0);
    if (!over && (leaving || !MayDiscardInStream(*chunk, stream))) {
      waiting |= chunk->pins == 0;
      freed_resident_.push_back(chunk);
      continue;
    }
    chunk->in_freed_list = false;
    freed += kChunkBytes;
    if (prefetch_ == Prefetch::kOff || !can_discard_) {  // then faults bring what is used
      EvictChunk(chunk, stream, step);
      continue;
    }
    Discard(chunk, over);
    SetResident(chunk, false);
    candidates_.Remove(chunk);
    stats_.bytes_saved += kChunkBytes;
    if (!over) most = std::max(most, kReapBytes);
  }
  if (waiting) fences_->Close();
  freed_unfenced_ = waiting;
  return freed;
}

// `over`: nothing that may have touched it is still queued.
void Residency::Discard(Chunk* chunk, bool over) {
  EndPrefetch(chunk);
  chunk->discarded = true;
  chunk->has_contents = chunk->probed = false;
  chunk->evict_op = chunk->fetch_op = 0;
  (over ? plan_.discard : plan_.stream_discard).push_back({chunk->base, kChunkBytes});
}

// What died in host memory makes no room, but who takes its place need not have the contents brought: so before anybody
// is given that. Where it is used in host memory, so is what comes in its place: that does as well over the link, and
// needs no room. Whether there was any.
bool Residency::DiscardFreedOnHost(StreamId stream) {
  constexpr size_t kMost = 8;  // that have to wait
  bool any = false, unfenced = false;
  size_t waiting = 0;
  for (size_t n = freed_on_host_.size(); n > 0 && waiting < kMost; --n) {
    Chunk* const chunk = freed_on_host_.front();
    freed_on_host_.pop_front();
    const bool keeps = prefetch_ == Prefetch::kOff || !can_discard_;
    if (chunk->live_bytes != 0 || keeps || chunk->mapped_remote || !chunk->has_contents) {
      chunk->in_freed_list = false;  // revived, or nothing is left of it
      continue;
    }
    if (chunk->resident) {
      freed_resident_.push_back(chunk);
      continue;
    }
    const bool leaving = chunk->evicting_elsewhere || IsEvicting(*chunk);
    const bool over = !leaving && chunk->named_at != now_ && IsReclaimable(*chunk) && MayEvict(*chunk, 0);
    if (!over && (leaving || !MayDiscardInStream(*chunk, stream))) {
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

// What of `bytes` DiscardFreed may free for `stream` now. What was found in use by a card that is far behind what died
// on the host's clock frees nothing: living bytes would leave instead. Until that is asked nobody knows.
uint64_t Residency::DiscardableBytes(uint64_t bytes, StreamId stream) {
  uint64_t room = 0;
  for (size_t i = 0; can_discard_ && i < freed_resident_.size() && room < bytes; ++i) {
    const Chunk& chunk = *freed_resident_[i];
    if (!chunk.resident || chunk.live_bytes != 0 || chunk.pins != 0) continue;
    const bool asked = chunk.freed_epoch != fences_->open();
    if (!asked || (IsReclaimable(chunk) && MayEvict(chunk, 0)) || MayDiscardInStream(chunk, stream))
      room += kChunkBytes;
  }
  return room;
}

bool Residency::IsReclaimable(const Chunk& chunk) {
  return chunk.live_bytes == 0 && chunk.pins == 0 && chunk.freed_at < now_ && fences_->Done(chunk.freed_epoch);
}

// Its users are all before this place of the stream, or over; whatever writes it again comes behind this place: it
// still belongs to the application's own allocator, the stream waits for the discard, others do not work
// (stream_discard.h).
bool Residency::MayDiscardInStream(const Chunk& chunk, StreamId stream) {
  return in_order_ && can_discard_ && prefetch_ != Prefetch::kOff && chunk.owned && chunk.named_at != now_ &&
         chunk.live_bytes == 0 && chunk.pins == 0 && chunk.freed_at < now_ && MayEvict(chunk, stream);
}

bool Residency::MayEvict(const Chunk& chunk, StreamId stream) {
  if (chunk.duplicate) stream = 0;  // is dropped at once, in no stream's order
  for (const Mark& use : chunk.use) {
    if (use.stream && use.stream != stream && !timeline_->Done(use)) return false;
  }
  if (chunk.use_epoch && !fences_->Done(chunk.use_epoch)) return false;
  // Used in this stream since it was sent for: that launch waited for the fetch, and the eviction comes behind the
  // launch. Without this a thread that runs ahead of the card finds everything under way and nothing that may leave.
  if (stream && chunk.fetch_stream == stream && !chunk.prefetched) return true;
  return chunk.fetch_op == 0 || timeline_->InDone(chunk.fetch_stream, chunk.fetch_op);
}

uint64_t Residency::Evict(StreamId stream, uint64_t bytes, uint64_t keep_until, PlanStep* step) {
  Settle();
  CatchUp();
  uint64_t freed = 0;
  NoteChange();  // who is used from here on is to be ranked anew, too
  const auto rank = [this](const Chunk& chunk) { return Rank(chunk); };
  if (candidates_.IsStale(resident_bytes_ / kChunkBytes, now_)) candidates_.Rebuild(&chunks_, now_, rank);
  candidates_.Begin(rank);
  const std::vector<Candidate>&spared = candidates_.protected_list(), &aside = candidates_.deferred_list();
  bool waiting = false;
  Candidate top;
  while (freed < bytes && candidates_.Next(&top)) {
    Chunk* chunk = top.chunk;
    // What a launch just queued uses leaves behind that, and all the others behind it: rather something that can leave
    // now, unless it is needed again far sooner.
    const bool spares = candidates_.protects() && chunk->next_use != kNever && chunk->next_use > now_;
    if (spares && spared.size() < kMostFresh && chunk->named_at != now_ && chunk->last_use + kFresh > now_) {
      candidates_.Protect(top);
      continue;
    }
    if (spares && !spared.empty() && 2 * (chunk->next_use - now_) < spared.front().chunk->next_use - now_) {
      candidates_.StopProtecting(top);
      continue;
    }
    if (chunk->named_at == now_ || !MayEvict(*chunk, stream)) {
      waiting |= chunk->use_epoch != 0;
      candidates_.Defer(top);
      if (aside.size() > 512) break;  // so much is in use that looking further costs more than going over
      continue;
    }
    // For a launch to come only what is known to be needed later than it may go: where nothing is known, demand
    // decides. For what faults bring only what no launch has used for a round.
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
  if (waiting && freed < bytes) fences_->Close();  // they may leave once it is done
  if (freed < bytes && !keep_until) {
    // Those that go first, but half of them at most: to wait for the last would leave the card without work.
    size_t most = aside.size() / 2 + 1;
    for (const Candidate& candidate : aside) {
      if (!candidate.chunk->duplicate || candidate.chunk->named_at == now_) continue;
      if (most-- == 0) break;
      excess_duplicates_.push_back(candidate.chunk->base);
    }
  }
  return freed;
}

// For a launch that is left to faults, which touches little of what it names: held for that, a chunk saves next to
// nothing. What others use in each round (the result that rows are added to) would leave before each such launch and
// come back behind it, 0.4 ms on an H200 where the launch itself takes 0.05 to 0.2. Tried now and then, since all that
// the launch names itself is passed over first.
uint64_t Residency::MakeRoomForFaults(StreamId stream, uint64_t bytes) {
  if (bytes == 0 || now_ < yield_paused_until_) return 0;
  const uint64_t freed = MakeRoom(stream, bytes, kNever, &plan_.now);
  if (freed < bytes) yield_paused_until_ = now_ + 64;
  return freed;
}

void Residency::EvictChunk(Chunk* chunk, StreamId stream, PlanStep* step) {
  if (chunk->duplicate) return Drop(chunk, step);
  StreamQueues& queues = queues_[stream];
  if (!step->out_op) step->out_op = ++queues.out_op;
  for (const Mark& use : chunk->use) {
    if (use.stream == stream && stream) step->out_after = std::max(step->out_after, use.seq);
  }
  EndPrefetch(chunk);
  NoteEvicted(chunk);
  SetResident(chunk, false);
  candidates_.Remove(chunk);
  chunk->evict_op = step->out_op;
  chunk->evict_stream = stream;
  chunk->evicting_elsewhere = false;
  // Another stream's launch may come before the fetch that undoes the discard: to it the chunk is discarded still.
  if (chunk->discarded && chunk->fetch_op == 0) chunk->discarded = false;
  if (!chunk->cold) EndPromotion(chunk);
  chunk->written_back = true;
  step->evict.push_back({chunk->base, kChunkBytes});
  stats_.bytes_out += kChunkBytes;
  if (!chunk->ever_evicted) {
    chunk->ever_evicted = true;
    stats_.host_bytes += kChunkBytes;
  }
}

// What was used in host memory, was brought in since and leaves again: there was no lasting room for it.
void Residency::EndPromotion(Chunk* chunk) {
  if (!chunk->remote_iteration) return;
  chunk->remote_iteration = 0;
  if (promote_bytes_ || promotion_pause_ == 0)
    next_promotion_pause_ = std::min<uint32_t>(64, next_promotion_pause_ * 2);
  promote_bytes_ = 0;
  promotion_pause_ = next_promotion_pause_;
}

}  // namespace sluice::policy
