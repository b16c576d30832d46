// Residency, missing chunks: fetched for the launch, or left to demand faults.
#include <algorithm>

#include "hooklib/policy/fetch/fetches.h"

namespace sluice::policy {

// Finds the missing chunks of the set, and the fetches in flight that the launch has to wait for.
void Fetches::FindMissing(const StreamQueues& queues, const PlannedLaunch& launch) {
  const StreamId stream = launch.stream;
  for (Chunk* chunk : set_) {
    if (!chunk->resident()) {
      missing_.push_back(chunk);
      continue;
    }
    if (IsDiscarded(chunk, stream)) {  // fetched once more, for this stream
      if (launch.can_queue)
        QueueFetch(chunk, stream, &plan_.now);
      else
        plan_.populate_now.push_back({chunk->base, kChunkBytes});
    }
    // Wait for a fetch of this stream. Another stream's fetch may depend on work that the application did not order
    // before this launch.
    if (chunk->fetch_op() <= queues.awaited_in_op || chunk->fetch_stream() != stream) continue;
    if (timeline_->InDone(stream, chunk->fetch_op())) {
      chunk->EndFetch();
    } else {
      plan_.wait_in = std::max(plan_.wait_in, chunk->fetch_op());
    }
  }
}

// Nothing can be queued now: faults bring the missing chunks.
void Fetches::FaultInMissing(const PlannedLaunch& launch) {
  uint64_t residue_bytes = 0;
  for (Chunk* chunk : missing_) {
    if (launch.leaves_residue && resident_bytes_ + kChunkBytes > launch.capacity) {
      // It does not fit, and is evicted by the next sweep.
      if (IsDiscarded(chunk, launch.stream)) PopulateOnHost(chunk);
      residue_bytes += kChunkBytes;
      fault_residue_.Add(chunk);
      continue;
    }
    if (IsDiscarded(chunk, launch.stream)) plan_.populate_now.push_back({chunk->base, kChunkBytes});
    SetResident(chunk, true);
    chunk->EndDiscard();
    if (chunk->has_contents()) stats_.fault_bytes += kChunkBytes;
    chunk->EndFetch();
  }
  if (residue_bytes) NoteFaultResidueBytes(std::min(residue_bytes, classifier_.MaxFaultBytes(launch.id)));
  if ((resident_bytes_ > launch.capacity || residue_bytes) && !missing_.empty()) ++stats_.over_budget_launches;
}

// Fetches missing chunks in place of others. Chunks that do not fit are fetched for this launch alone, or left to
// faults.
void Fetches::FetchMissing(const PlannedLaunch& launch, StreamQueues* queues) {
  const StreamId stream = launch.stream;
  const uint64_t id = launch.id;
  const uint64_t need = missing_.size() * kChunkBytes;
  const uint64_t in_set = set_.size() * kChunkBytes - launch.remote_bytes;
  uint64_t beyond = 0;  // bytes of the set that can never fit beside the rest of it
  if (in_set > launch.own_capacity) beyond = std::min(need, in_set - launch.own_capacity);
  // Which chunks the faults touch is unknown: no others make room for them, nor for the rest of a graph.
  const bool by_faults = launch.leaves_residue && (prefetch_ == Prefetch::kOff || last_demand_paged_ == now_);
  const uint64_t fits = std::min(by_faults || launch.strategy ? need - beyond : need, launch.capacity);
  if (resident_bytes_ <= launch.capacity) excess_duplicates_.clear();
  uint64_t room = Room(stream), stays = need - beyond;  // missing bytes that stay resident behind the launch
  // After the capacity has shrunk (budget, factor) more is resident than it allows: this is evicted, too.
  const uint64_t over = resident_bytes_ > launch.capacity ? resident_bytes_ - launch.capacity : 0;
  const bool yields = by_faults && prefetch_ != Prefetch::kOff;
  const uint64_t lacks = fits - std::min(fits, room);
  if (!yields && (lacks || (over && missing_.empty()))) {
    room += MakeRoom(stream, lacks + over, 0, &plan_.now);
  } else if (room < fits) {
    if (over && MakeRoom(stream, over, 0, &plan_.now)) room = Room(stream);
    room += MakeRoomForFaults(stream, fits - std::min(fits, room));
  }
  if (yields) stays = std::min(stays, std::max(room, hot_missing_.size() * kChunkBytes));
  if (room < fits || beyond) ++stats_.over_budget_launches;
  uint64_t fetched = 0, transient_bytes = 0, residue_bytes = 0;
  for (Chunk* chunk : missing_) {
    const bool elsewhere = IsEvictingBeside(chunk, stream);
    const bool too_much = fetched + kChunkBytes > stays;
    // A duplicate costs nothing to get rid of behind the launch.
    const bool fetches_excess = launch.strategy ? launch.strategy == GraphStrategy::kFetch : MayDuplicate(*chunk);
    const bool beyond_gpu = too_much && resident_bytes_ + transient_bytes + kChunkBytes > max_resident_bytes_;
    const bool discarded = IsDiscarded(chunk, stream);
    if (beyond_gpu || (!discarded && (elsewhere || (too_much && !fetches_excess)))) {
      // Faults bring it, and it is evicted as soon as the launch is over. While mapped remotely it would not fault, and
      // a launch that was found to re-read it would do so over the link.
      UnmapRemote(chunk);
      if (discarded) PopulateOnHost(chunk);
      if (by_faults && !elsewhere) {
        residue_bytes += kChunkBytes;
        fault_residue_.Add(chunk);
        continue;
      }
      if (chunk->has_contents()) stats_.fault_bytes += kChunkBytes;
      EvictBehind(chunk, stream);
      continue;
    }
    if (elsewhere || (too_much && !MayDuplicate(*chunk))) {
      // Fetched for this launch alone.
      FetchTransient(chunk, stream);
      transient_bytes += kChunkBytes;
      continue;
    }
    if (too_much) {
      excess_duplicates_.push_back(chunk->base);
    } else {
      fetched += kChunkBytes;
    }
    if ((prefetch_ == Prefetch::kOff || chunk->demand_paged_at == now_) && !discarded) {
      SetResident(chunk, true);
      if (chunk->has_contents()) stats_.fault_bytes += kChunkBytes;
      chunk->EndFetch();
    } else if (MayRepopulate(*chunk)) {
      UnmapForFetch(chunk);
      Repopulate(chunk, id);
    } else {
      chunk->repopulated_by = 0;
      UnmapForFetch(chunk);
      FetchResident(chunk, stream, &plan_.now);
    }
  }
  FinishStep(stream, &plan_.now);
  if (plan_.now.in_op) plan_.wait_in = plan_.now.in_op;
  Merge(&plan_.repopulate);
  if (!plan_.repopulate.empty()) plan_.repopulate_after = queues->out_op;
  if (residue_bytes) NoteFaultResidueBytes(std::min(residue_bytes, classifier_.MaxFaultBytes(id)));
  if (residue_bytes && prefetch_ == Prefetch::kOff && classifier_.IsDue(id, launch.oversize))
    plan_.probe = {id, residue_bytes, set_.size() * kChunkBytes - need, launch.oversize, true};
}

void Fetches::QueueFetch(const Chunk* chunk, StreamId stream, PlanStep* step) {
  if (!step->in_op) step->in_op = ++queues_[stream].in_op;
  step->fetch.push_back({chunk->base, kChunkBytes});
}

// The chunk is resident for this stream's next launches.
void Fetches::FetchChunk(Chunk* chunk, StreamId stream, PlanStep* step) {
  QueueFetch(chunk, stream, step);
  chunk->BeginFetch(stream, step->in_op, chunk->has_contents());
  (chunk->has_contents() ? stats_.bytes_in : stats_.bytes_saved) += kChunkBytes;
}

void Fetches::FetchResident(Chunk* chunk, StreamId stream, PlanStep* step) {
  if (!chunk->duplicate() && MayDuplicate(*chunk)) {
    chunk->Duplicate();
    chunk->written_back = false;
    step->duplicate.push_back({chunk->base, kChunkBytes});
    if (chunk->mapped_remote()) step->unmap.push_back({chunk->base, kChunkBytes});
    chunk->Unmap();
  }
  if (chunk->has_contents() && CheaperSwapped(*chunk)) NoteSwappedIn(chunk);
  SetResident(chunk, true);
  chunk->FetchWhole();
  chunk->EndProbe();
  chunk->cold = chunk->probe_victim = false;
  if (TouchSampler::IsLeftOut(*chunk)) touched_.Return(chunk, now_);  // launches do not fetch it
  FetchChunk(chunk, stream, step);
}

// A transient fetch: for one launch, behind which the chunk is evicted.
void Fetches::FetchTransient(Chunk* chunk, StreamId stream) {
  UnmapRemote(chunk);
  FetchChunk(chunk, stream, &plan_.now);
  chunk->ForgetMapping();
  EvictBehind(chunk, stream);
}

void Fetches::NoteNotFetched(const PlanPiece& piece) {
  stats_.bytes_in -= piece.fetch_content_bytes;
  stats_.fault_bytes += piece.fetch_content_bytes;
}

}  // namespace sluice::policy
