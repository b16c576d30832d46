#include "hooklib/policy/residency.h"

#include <algorithm>

#include "hooklib/policy/fetch/link_bytes.h"

namespace sluice::policy {

namespace {
// Of the capacity: all small operands of a launch that is no graph have at most that.
constexpr uint64_t kSmallShare = 4;
}  // namespace

void Residency::AddArena(Extent arena, bool populated) {
  chunks_.AddArena(arena);
  if (populated) NotePopulated(arena);
}

void Residency::NotePopulated(Extent range) {
  chunks_.ForEach(range, [this](Chunk& chunk) {
    SetResident(&chunk, true);
    chunk.FetchWhole();
    candidates_.Unrank(&chunk);
    // An unallocated chunk uses room without need: it is discarded like a free one.
    if (std::exchange(chunk.in_freed_list, true)) return;
    freed_resident_.push_back(&chunk);
  });
}

void Residency::NoteWrittenElsewhere(Extent range) {
  chunks_.ForEach(range, [this](Chunk& chunk) {
    if (chunk.resident() || chunk.has_contents() || chunk.discarded()) return;
    SetResident(&chunk, true);
    chunk.NoteContents();
    chunk.EndFetch();
    chunk.last_use = now_;
    candidates_.Unrank(&chunk);
  });
}

void Residency::RemoveArena(Extent arena) {
  Settle();
  NoteChange();
  CatchUp();
  chunks_.ForEach(arena, [this](Chunk& chunk) {
    SetResident(&chunk, false);
    if (chunk.live_bytes != 0) --live_chunks_;
    if (chunk.ever_evicted) stats_.host_bytes -= kChunkBytes;
    chunk.live_bytes = 0;  // its context may have ended before its blocks: logs still point at the chunk
    chunk.pins = 0;
  });
  chunks_.ForEach(arena, [this](Chunk& chunk) { touched_.Forget(&chunk); });
  touched_.RemoveArena(arena);
  copied_ranges_.Remove(arena, [](Extent) {});
  std::erase_if(withdrawn_, [&arena](const Extent& run) { return run.base >= arena.base && run.base < arena.end(); });
  const auto inside = [&arena](const Chunk* chunk) { return chunk->base >= arena.base && chunk->base < arena.end(); };
  std::erase_if(freed_resident_, inside);
  std::erase_if(freed_on_host_, inside);
  std::erase_if(reused_after_discard_, inside);
  candidates_.RemoveArena(arena);
  if (chunks_.RemoveArena(arena.base)) return;
  for (auto& [stream, queues] : queues_) queues.predictor.Reset();
}

// Sets that leave the chunk out are not complete any more.
void Residency::ForgetTouch(Chunk* chunk) {
  if (TouchSampler::IsLeftOut(*chunk)) NoteChange();
  touched_.Forget(chunk);
}

void Residency::AddLive(Extent range) {
  ForgetCopies(range);  // new bytes: no copy has written them
  chunks_.ForEach(range, [&](Chunk& chunk) {
    Withdraw(&chunk);  // the new bytes will be written
    if (chunk.live_bytes == 0) {
      ++live_chunks_;
      chunk.live_since = now_;
      chunk.cold = chunk.unnamed_by_faults = false;
      chunk.unnamed_out = 0;
      ForgetTouch(&chunk);
      if (chunk.has_fault_residue()) fault_residue_.List(&chunk);
      if (chunk.discarded() && !chunk.has_contents() && !chunk.reused_after_discard) {
        chunk.reused_after_discard = true;
        reused_after_discard_.push_back(&chunk);
      }
    }
    ChangeIdle(&chunk, [&] { chunk.live_bytes += Overlap(range, chunk); });
  });
}

void Residency::RemoveLive(Extent range, Extent owner) {
  ForgetCopies(range);
  chunks_.ForEach(range, [&](Chunk& chunk) {
    chunk.owned = owner.base <= chunk.base && chunk.base + kChunkBytes <= owner.end();
    ChangeIdle(&chunk, [&] { chunk.live_bytes -= Overlap(range, chunk); });
    if (chunk.live_bytes == 0) {
      --live_chunks_;
      ForgetTouch(&chunk);
      chunk.freed_epoch = fences_->Use();
      chunk.freed_at = now_;
      if (!repeating_predictor_ && last_queues_.second)
        last_queues_.second->predictor.NoteFreed(chunk, now_ + 1 - chunk.last_use);
      if (!chunk.in_freed_list) {
        chunk.in_freed_list = true;
        (chunk.resident() ? freed_resident_ : freed_on_host_).push_back(&chunk);
      }
    }
  });
}

void Residency::NoteFreed(Extent range) {
  chunks_.ForEach(range, [](Chunk& chunk) { chunk.owned = false; });
}

void Residency::Pin(Extent range, bool pin) {
  chunks_.ForEach(range, [&](Chunk& chunk) {
    ChangeIdle(&chunk, [&] { chunk.pins = static_cast<uint16_t>(chunk.pins + (pin ? 1 : -1)); });
  });
}

// The newest launch is this stream's.
void Residency::TakeTurn(StreamQueues* queues, StreamId stream) {
  if (last_queues_.second == queues) return;
  last_queues_ = {stream, queues};
  steady_launches_ = 0;  // the other stream's launches may have noted references to the same chunks
}

// The launch is noted in its chunks, so those before it are noted first.
void Residency::EndSteadyState(StreamQueues* queues, StreamId stream) {
  TakeTurn(queues, stream);
  Settle();
  CatchUp();
  steady_launches_ = 0;
}

// Whether a copy or memset whose set was collected may be noted in its chunks before the launches with steady sets are:
// nothing has to be decided for it. A server copies the inputs of each token.
bool Residency::LeavesSteadyState(const PlannedLaunch& launch) const {
  const auto is_usual = [stream = launch.stream](const Chunk* chunk) {
    return chunk->resident() && chunk->unranked && !chunk->prefetched() &&
           (chunk->use[0].stream == stream || chunk->use[1].stream == stream);
  };
  return !launch.lacks_chunks && resident_bytes_ <= launch.capacity && fault_residue_.empty() &&
         reused_after_discard_.empty() && touched_late_.empty() && !names_launches_ &&
         std::all_of(set_.begin(), set_.end(), is_usual);
}

// Whether the set is steady, and nothing else has to be done for the launch either.
bool Residency::IsSteady(const SteadySets::Set& set, const PlannedLaunch& launch) const {
  return steady_sets_.IsSteady(set) && set.chunks.size() * kChunkBytes <= launch.capacity &&
         resident_bytes_ <= launch.capacity && fault_residue_.empty();
}

const Plan& Residency::Prepare(StreamId stream, Seq seq, std::span<const Extent> extents, uint64_t id, bool can_queue,
                               size_t overwritten_extents, std::optional<size_t> hot_extents) {
  ++now_;
  ClearPlan();
  unnamed_.may_map = may_map_remote_ && can_queue;
  missing_.clear();
  StreamQueues& queues = last_queues_.first == stream && last_queues_.second ? *last_queues_.second : queues_[stream];
  PlannedLaunch launch{stream, id, can_queue};
  launch.capacity = launch.own_capacity = RoundDown(capacity_, kChunkBytes);
  if (hot_extents) touched_.companions().EndGroup();
  SteadySets::Set* const steady = !id || seeks_probe_victim_ || names_launches_ || touched_.explores()
                                      ? nullptr
                                      : steady_sets_.Find(now_, stream, id, extents);
  const bool is_steady = steady && IsSteady(*steady, launch) && reused_after_discard_.empty();
  bool leaves_steady_state = false;  // a copy is noted beside steady sets
  size_t hot_chunks = 0;
  if (is_steady) {
    TakeTurn(&queues, stream);
    set_ = steady->chunks;
    launch.set_hash = steady->set_hash;
  } else {
    if (id) EndSteadyState(&queues, stream);
    hot_chunks = CollectSet(extents, overwritten_extents, hot_extents, queues, &launch);
    leaves_steady_state = !id && LeavesSteadyState(launch);
    if (!id && !leaves_steady_state) EndSteadyState(&queues, stream);
    // Copies and memsets touch all that they name.
    const uint64_t named_bytes = set_.size() * kChunkBytes;
    const bool may_sample =
        touched_.enabled() && (hot_extents ? launch.lacks_chunks || named_bytes > share_bytes_
                                           : named_bytes > launch.capacity && classifier_.LeftToFaults(id));
    if (id && (touched_.leaves_out_any() || launch_samples_.room || may_sample))
      hot_chunks = LeaveOutUntouched(extents, hot_extents, queues, &launch, seq);
  }
  launch.lacks_chunks |= !reused_after_discard_.empty() || (can_queue && !touched_late_.empty());
  launch.oversize = set_.size() * kChunkBytes > launch.capacity;
  launch.leaves_residue = launch.oversize && !hot_extents && id;
  if (id) launch.traits = classifier_.TraitsOf(id, launch.oversize, now_);
  // Most launches find their whole set resident, and need nothing else.
  const bool all_resident =
      !launch.lacks_chunks && !launch.oversize && resident_bytes_ <= launch.capacity && fault_residue_.empty();
  if (is_steady) {
    steady_sets_.NoteRepeat(steady, now_, seq, {launch.traits.touched, RequiresResidency(launch)}, iterations_.number(),
                            iterations_.Counts(now_));
  } else if (all_resident) {
    NoteSet<true, true>(launch, seq);
    if (steady && !launch.exceeds_share && (can_queue || !hot_extents))
      steady_sets_.Confirm(steady, now_, stream, launch.set_hash, set_);
  } else {
    NoteSet<true, false>(launch, seq);
  }
  if (id && prefetch_ == Prefetch::kPredict) {
    if (is_steady && queues.predictor.CountRepeat(id, launch.set_hash, now_, steady_launches_++)) {
      repeating_predictor_ = &queues.predictor;
    } else {
      CatchUp();
      const bool is_wide = is_steady && SteadySets::IsWide(*steady);
      queues.predictor.NoteLaunch(id, launch.set_hash, is_wide ? std::span<Chunk* const>() : set_, now_, live_chunks_,
                                  all_resident);
    }
  }
  const bool discards = !freed_on_host_.empty() && can_queue && !leaves_steady_state && DiscardFreedOnHost(stream);
  if (launch.lacks_chunks) {
    if (can_queue && !touched_late_.empty()) FetchTouched(stream);
    FindMissing(queues, launch);
  }
  stats_.hits += set_.size() - missing_.size();
  if (names_launches_) {
    for (Chunk* chunk : set_) NoteNamer(chunk, id, launch.traits.touched);
  }
  if (iterations_.NoteLaunch(now_, queues.predictor.period()) && iterations_.IsOver(now_, queues.predictor.confident()))
    EndIteration(queues);
  if (!all_resident) {
    PlanMoves(&launch, &queues, hot_extents, hot_chunks);
    if (plan_.wait_in) queues.awaited_in_op = std::max(queues.awaited_in_op, plan_.wait_in);
    NoteSet<false, true>(launch, seq);
    if (launch.reused_chunks) NoteReused(launch.reused_chunks, {stream, seq});
  } else if (id && may_map_remote_ && prefetch_ != Prefetch::kOff) {
    if (launch.traits.slow_remote) {
      for (Chunk* chunk : set_) NoteRequired(chunk, id, 1);
    } else if (seeks_probe_victim_ && !is_steady &&
               classifier_.ClassOf(id, false, now_) == LaunchClassifier::AccessClass::kUnknown) {
      MarkProbeVictims(id);
    }
  }
  if (launch.strategy) {
    NoteChange();  // uses from here on count as between two graphs
    last_graph_at_ = now_;
    bytes_since_graph_ = 0;
  }
  const uint64_t resident = resident_bytes_;
  if (resident > capacity_) stats_.over_budget_max = std::max(stats_.over_budget_max, resident - capacity_);
  const uint64_t busy = resident - std::min(resident, idle_bytes_);
  min_slack_bytes_ = std::min(min_slack_bytes_, capacity_ > busy ? capacity_ - busy : 0);
  const bool ahead =
      prefetch_ == Prefetch::kPredict && id && can_queue && MayPrefetch(queues) && PrefetchUpcoming(&queues, stream);
  if (!evicted_behind_.empty()) NumberEvictAfter(&queues, launch.strategy.has_value());
  plan_.is_empty = all_resident && !ahead && !discards;
  steady_set_ = is_steady && plan_.is_empty && repeating_predictor_ == &queues.predictor && !launch.traits.slow_remote
                    ? steady
                    : nullptr;
  if (!plan_.is_empty) {
    Merge(&plan_.map_remote);
    Merge(&plan_.unmap_remote);
    Merge(&plan_.discard);
    Merge(&plan_.stream_discard);
    Merge(&plan_.populate_now);
    Merge(&plan_.populate_on_host);
  }
  unnamed_.may_map = false;
  fences_->Release();  // the launch is queued next
  return plan_;
}

bool Residency::PrepareSteady(StreamId stream, Seq seq, uint64_t id, SteadySets::Set* set) {
  const uint64_t now = now_ + 1;
  const bool as_before = repeating_predictor_ && last_queues_.first == stream && set->stream == stream &&
                         repeating_predictor_ == &last_queues_.second->predictor && steady_sets_.IsSteady(*set) &&
                         resident_bytes_ <= capacity_ && !seeks_probe_victim_ && reused_after_discard_.empty();
  if (!as_before || !iterations_.CannotEnd(now) ||
      !repeating_predictor_->CountRepeat(id, set->set_hash, now, steady_launches_))
    return false;
  now_ = now;
  ++steady_launches_;
  set_ = set->chunks;
  iterations_.NoteLaunch(now, repeating_predictor_->period());
  steady_sets_.NoteRepeat(set, now, seq, iterations_.number(), iterations_.Counts(now));
  stats_.hits += set_.size();
  return true;
}

// Plans fetches, remote accesses and faults for the missing chunks, and evictions beyond the capacity.
void Residency::PlanMoves(PlannedLaunch* launch, StreamQueues* queues, std::optional<size_t> hot_extents,
                          size_t hot_chunks) {
  const StreamId stream = launch->stream;
  ChooseStrategy(launch, hot_extents, hot_chunks);
  if (launch->can_queue && !reused_after_discard_.empty()) launch->reused_chunks = FetchReused(stream);
  if (launch->strategy) touched_.NoteLacking(missing_.size() * kChunkBytes + launch->remote_bytes);
  if (!launch->can_queue) {
    if (!reused_after_discard_.empty()) PopulateReused();
    FaultInMissing(*launch);
  } else if (!missing_.empty() || plan_.now.in_op) {
    FetchMissing(*launch, queues);
  }
  if (launch->can_queue && !fault_residue_.empty()) SweepFaultResidue(stream);
  if (!launch->can_queue || !missing_.empty() || plan_.now.in_op) return;
  if (resident_bytes_ > launch->capacity && now_ >= shrink_paused_until_) {
    // More is resident than the capacity allows now, and this launch needs no room.
    const uint64_t over = resident_bytes_ - launch->capacity;
    if (MakeRoom(stream, over, 0, &plan_.now) < over) shrink_paused_until_ = now_ + 16;
  }
  if (!plan_.now.empty()) FinishStep(stream, &plan_.now);
}

// Chooses the strategy of a graph larger than the capacity, and which missing chunks are used remotely or left to
// faults.
void Residency::ChooseStrategy(PlannedLaunch* launch, std::optional<size_t> hot_extents, size_t hot_chunks) {
  const uint64_t id = launch->id;
  const bool can_queue = launch->can_queue, oversize = launch->oversize;
  const bool may_map_remote = may_map_remote_ && id && prefetch_ != Prefetch::kOff;
  std::optional<GraphStrategy>& strategy = launch->strategy;
  if (hot_extents && oversize && id && can_queue && prefetch_ != Prefetch::kOff)
    strategy = launch->explores ? GraphStrategy::kFetch
                                : graph_strategies_.Next({id, set_.size() * kChunkBytes, capacity_, may_map_remote_,
                                                          SizesDiffer(launch->capacity)});
  if (strategy) {
    for (Chunk* chunk : set_) chunk->last_required_at = now_;
  } else if (may_map_remote && launch->traits.slow_remote) {
    for (Chunk* chunk : set_) NoteRequired(chunk, id, 1);
  }
  hot_missing_.clear();
  // Chunks that other launches use between two such graphs stay resident: the graph lacks bytes anyhow, and those
  // launches would wait behind all evictions that follow it.
  if (strategy) launch->own_capacity -= BytesUsedSinceGraph(launch->capacity / 8);
  if (strategy == GraphStrategy::kRemoteLargest) hot_chunks = SmallOperandsFirst(launch->own_capacity);
  if (strategy && (strategy == GraphStrategy::kFetch || (hot_chunks && strategy != GraphStrategy::kDemandPaging))) {
    const uint64_t all_resident = (set_.size() - missing_.size()) * kChunkBytes;
    SplitHotCold(launch->stream, launch->own_capacity,
                 launch->own_capacity - std::min(launch->own_capacity, all_resident), hot_chunks,
                 strategy == GraphStrategy::kFetch);
  } else if (launch->leaves_residue && can_queue) {
    if (const size_t small = SmallOperandsFirst(launch->capacity / kSmallShare))
      SplitHotCold(launch->stream, small * kChunkBytes, kNever, small, false);
  }
  const size_t wanted = missing_.size();
  if (strategy) {
    ApplyStrategy(*strategy, launch->stream, launch->explores ? 0 : id);
  } else if (may_map_remote && wanted && can_queue) {
    SelectRemote(launch->stream, id, oversize);
  }
  launch->remote_bytes = (wanted - missing_.size()) * kChunkBytes;
  missing_.insert(missing_.begin(), hot_missing_.begin(), hot_missing_.end());
  stats_.misses += missing_.size();
  stats_.remote_bytes += launch->remote_bytes;
}

void Residency::ForgetStream(StreamId stream) {
  Settle();
  NoteChange();  // its sets' uses are noted in no chunk from here on, and its number comes again
  CatchUp();
  const auto queues = queues_.find(stream);
  if (queues != queues_.end()) {  // the number comes again: so does the predictor's memory
    queues->second.predictor.Reset();
    queues->second = StreamQueues{.predictor = std::move(queues->second.predictor)};
  }
  last_queues_ = {};
  chunks_.ForAll([stream](Chunk& chunk) {
    for (Mark& use : chunk.use) {
      if (use.stream == stream) use = {};
    }
    chunk.ForgetStream(stream);
  });
}

}  // namespace sluice::policy
