#include "hooklib/policy/residency.h"

#include <algorithm>

#include "hooklib/policy/fetch/link_bytes.h"

namespace sluice::policy {

uint64_t Residency::wrong_predictions() const {
  uint64_t sum = 0;
  for (const auto& [stream, queues] : queues_) sum += queues.predictor.wrong();
  return sum;
}

void Residency::AddArena(Extent arena, bool populated) {
  chunks_.AddArena(arena);
  if (!populated) return;
  chunks_.ForEach(arena, [this](Chunk& chunk) {
    SetResident(&chunk, true);
    chunk.fetched_whole = true;
    candidates_.Unrank(&chunk);
    // What nobody is given of it holds a place for nothing: it goes as what died does.
    chunk.in_freed_list = true;
    freed_resident_.push_back(&chunk);
  });
}

void Residency::RemoveArena(Extent arena) {
  Settle();
  NoteChange();
  chunks_.ForEach(arena, [this](Chunk& chunk) {
    SetResident(&chunk, false);
    if (chunk.live_bytes != 0) --live_chunks_;
    if (chunk.ever_evicted) stats_.host_bytes -= kChunkBytes;
  });
  copied_ranges_.Remove(arena, [](Extent) {});
  std::erase_if(withdrawn_, [&arena](const Extent& run) { return run.base >= arena.base && run.base < arena.end(); });
  const auto inside = [&arena](const Chunk* chunk) { return chunk->base >= arena.base && chunk->base < arena.end(); };
  std::erase_if(freed_resident_, inside);
  std::erase_if(freed_on_host_, inside);
  std::erase_if(reused_after_discard_, inside);
  candidates_.RemoveArena(arena);
  chunks_.RemoveArena(arena.base);
  for (auto& [stream, queues] : queues_) queues.predictor.Reset();
  repeating_predictor_ = nullptr;
}

void Residency::AddLive(Extent range) {
  ForgetCopies(range);  // its bytes are nobody's yet
  chunks_.ForEach(range, [&](Chunk& chunk) {
    Withdraw(&chunk);  // what comes to life beside it will be written
    if (chunk.live_bytes == 0) {
      ++live_chunks_;
      chunk.live_since = now_;
      chunk.cold = false;
      if (chunk.discarded && !chunk.has_contents && !chunk.reused_after_discard) {
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
      chunk.freed_epoch = fences_->Use();
      chunk.freed_at = now_;
      if (!repeating_predictor_ && last_queues_.second)
        last_queues_.second->predictor.NoteFreed(chunk, now_ + 1 - chunk.last_use);
      if (!chunk.in_freed_list) {
        chunk.in_freed_list = true;
        (chunk.resident ? freed_resident_ : freed_on_host_).push_back(&chunk);
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

void Residency::ClearWholePlan() {
  plan_.Clear();
  evicted_behind_.clear();
}

const Plan& Residency::Prepare(StreamId stream, Seq seq, std::span<const Extent> extents, uint64_t id, bool may_move,
                               size_t overwritten, std::optional<size_t> hotter) {
  ++now_;
  ClearPlan();
  missing_.clear();
  if (last_queues_.first != stream || !last_queues_.second) {
    last_queues_ = {stream, &queues_[stream]};
    NoteChange();  // of a chunk's use only that by two streams is remembered
  }
  StreamQueues& queues = *last_queues_.second;
  PlannedLaunch launch{stream, id, may_move};
  launch.capacity = launch.own_capacity = RoundDown(capacity_, kChunkBytes);
  SteadySets::Set* const standing =
      hotter || seeks_probe_victim_ || names_launches_ ? nullptr : steady_sets_.Find(now_, stream, id, extents);
  const bool stands = standing && IsSteady(*standing, launch) && reused_after_discard_.empty();
  size_t hotter_chunks = 0;
  if (stands) {
    set_ = standing->chunks;
    launch.set_hash = standing->set_hash;
  } else {
    Settle();
    CatchUp();
    steady_launches_ = 0;
    hotter_chunks = CollectSet(extents, overwritten, hotter, queues, &launch);
  }
  launch.lacks_chunks |= !reused_after_discard_.empty();
  launch.oversize = set_.size() * kChunkBytes > launch.capacity;
  launch.leaves_residue = launch.oversize && !hotter && id;
  if (id) launch.traits = classifier_.TraitsOf(id, launch.oversize, now_);
  // Most launches find all that they name, and nothing else has to be done.
  const bool there =
      !launch.lacks_chunks && !launch.oversize && resident_bytes_ <= launch.capacity && fault_residue_.empty();
  if (stands) {
    steady_sets_.NoteRepeat(standing, now_, seq, {launch.traits.sparse, RequiresResidency(launch)},
                            iterations_.number());
  } else if (there) {
    NoteSet<true, true>(launch, seq);
    if (standing) steady_sets_.Confirm(standing, now_, stream, launch.set_hash, set_);
  } else {
    NoteSet<true, false>(launch, seq);
  }
  if (id && prefetch_ == Prefetch::kPredict) {
    if (stands && queues.predictor.CountRepeat(id, launch.set_hash, now_, steady_launches_++)) {
      repeating_predictor_ = &queues.predictor;
    } else {
      CatchUp();
      queues.predictor.NoteLaunch(id, launch.set_hash, set_, now_, live_chunks_);
    }
  }
  const bool discards = !freed_on_host_.empty() && may_move && DiscardFreedOnHost(stream);
  if (launch.lacks_chunks) FindMissing(queues, launch);
  stats_.hits += set_.size() - missing_.size();
  if (names_launches_) {
    for (Chunk* chunk : set_) NoteNamer(chunk, id, launch.traits.sparse);
  }
  AdvanceIteration(queues);
  if (!there) {
    PlanMoves(&launch, &queues, hotter, hotter_chunks);
    if (plan_.wait_in) queues.awaited_in_op = std::max(queues.awaited_in_op, plan_.wait_in);
    NoteSet<false, true>(launch, seq);
    if (launch.reused_chunks) NoteReused(launch.reused_chunks, {stream, seq});
  } else if (id && may_map_remote_ && prefetch_ != Prefetch::kOff) {
    if (launch.traits.slow_remote) {
      for (Chunk* chunk : set_) NoteRequired(chunk, id, 1);
    } else if (seeks_probe_victim_ && !stands &&
               classifier_.ClassOf(id, false, now_) == LaunchClassifier::AccessClass::kUnknown) {
      MarkProbeVictims(id);
    }
  }
  if (launch.strategy) {
    NoteChange();  // what is used from here on counts as used between two graphs
    last_graph_at_ = now_;
    bytes_since_graph_ = 0;
  }
  const uint64_t held = resident_bytes_;
  if (held > capacity_) stats_.over_budget_max = std::max(stats_.over_budget_max, held - capacity_);
  const uint64_t busy = held - std::min(held, idle_bytes_);
  min_slack_bytes_ = std::min(min_slack_bytes_, capacity_ > busy ? capacity_ - busy : 0);
  const bool ahead =
      prefetch_ == Prefetch::kPredict && id && may_move && MayPrefetch(queues) && PrefetchUpcoming(&queues, stream);
  if (!evicted_behind_.empty()) NumberEvictAfter(&queues, launch.strategy.has_value());
  plan_.is_empty = there && !ahead && !discards;
  steady_set_ = stands && plan_.is_empty && repeating_predictor_ == &queues.predictor && !launch.traits.slow_remote
                    ? standing
                    : nullptr;
  if (!plan_.is_empty) {
    Merge(&plan_.map_remote);
    Merge(&plan_.unmap_remote);
    Merge(&plan_.discard);
    Merge(&plan_.stream_discard);
    Merge(&plan_.populate_now);
  }
  return plan_;
}

bool Residency::PrepareSteady(StreamId stream, Seq seq, uint64_t id, SteadySets::Set* set) {
  const uint64_t now = now_ + 1;
  const bool as_before = repeating_predictor_ && last_queues_.first == stream &&
                         repeating_predictor_ == &last_queues_.second->predictor && steady_sets_.IsSteady(*set) &&
                         resident_bytes_ <= capacity_ && !seeks_probe_victim_;
  if (!as_before || !iterations_.CannotEnd(now) ||
      !repeating_predictor_->CountRepeat(id, set->set_hash, now, steady_launches_))
    return false;
  now_ = now;
  ++steady_launches_;
  set_ = set->chunks;
  steady_sets_.NoteRepeat(set, now, seq, iterations_.number());
  stats_.hits += set_.size();
  return true;
}

// What of the set is not on the card, and what is on its way there.
void Residency::FindMissing(const StreamQueues& queues, const PlannedLaunch& launch) {
  const StreamId stream = launch.stream;
  for (Chunk* chunk : set_) {
    if (!chunk->resident) {
      missing_.push_back(chunk);
      continue;
    }
    if (IsDiscarded(chunk, stream) && launch.can_queue) {  // fetched once more, for this stream
      Fetch(chunk, stream, &plan_.now);
    }
    // Brought on this stream's behalf: wait for it. On another's: that fetch may hang on work the application did not
    // order before us.
    if (chunk->fetch_op <= queues.awaited_in_op || chunk->fetch_stream != stream) continue;
    if (timeline_->InDone(stream, chunk->fetch_op)) {
      chunk->fetch_op = 0;
    } else {
      plan_.wait_in = std::max(plan_.wait_in, chunk->fetch_op);
    }
  }
}

// What it lacks comes, or is used where it lies; what is held beyond the capacity leaves.
void Residency::PlanMoves(PlannedLaunch* launch, StreamQueues* queues, std::optional<size_t> hotter,
                          size_t hotter_chunks) {
  const StreamId stream = launch->stream;
  ChooseStrategy(launch, hotter, hotter_chunks);
  if (launch->can_queue && !reused_after_discard_.empty()) launch->reused_chunks = FetchReused(stream);
  if (!launch->can_queue) {
    FaultInMissing(*launch);
  } else if (!missing_.empty() || plan_.now.in_op) {
    FetchMissing(*launch, queues);
  }
  if (launch->can_queue && !fault_residue_.empty()) SweepFaultResidue(stream);
  for (Chunk* chunk : evicted_behind_) {
    chunk->evict_op = kNever;  // until it has its number
    chunk->evict_stream = stream;
  }
  if (launch->can_queue && missing_.empty() && !plan_.now.in_op && resident_bytes_ > launch->capacity &&
      now_ >= shrink_paused_until_) {
    // More is held than the capacity allows now, and this launch needs no room: what may leave, leaves.
    const uint64_t over = resident_bytes_ - launch->capacity;
    if (MakeRoom(stream, over, 0, &plan_.now) < over) shrink_paused_until_ = now_ + 16;
    FinishStep(stream, &plan_.now);
  }
}

// Which way a graph goes that cannot be held, and what of the missing is used in host memory or left to faults.
void Residency::ChooseStrategy(PlannedLaunch* launch, std::optional<size_t> hotter, size_t hotter_chunks) {
  const uint64_t id = launch->id;
  const bool may_move = launch->can_queue, oversize = launch->oversize;
  const bool may_map_remote = may_map_remote_ && id && prefetch_ != Prefetch::kOff;
  std::optional<GraphStrategy>& way = launch->strategy;
  if (hotter && oversize && id && may_move && prefetch_ != Prefetch::kOff)
    way = graph_strategies_.Next({id, set_.size() * kChunkBytes, capacity_, may_map_remote_});
  if (way) {
    for (Chunk* chunk : set_) chunk->last_required_at = now_;
  } else if (may_map_remote && launch->traits.slow_remote) {
    for (Chunk* chunk : set_) NoteRequired(chunk, id, 1);
  }
  hot_missing_.clear();
  // What other launches use between two such graphs keeps its place: the graph lacks bytes anyhow, and they would wait
  // for theirs behind all that leaves after it.
  if (way) launch->own_capacity -= BytesUsedSinceGraph(launch->capacity / 8);
  if (way && (way == GraphStrategy::kFetch || (hotter_chunks && way != GraphStrategy::kDemandPaging))) {
    const uint64_t there = (set_.size() - missing_.size()) * kChunkBytes;
    SplitHotCold(launch->stream, launch->own_capacity, launch->own_capacity - std::min(launch->own_capacity, there),
                 hotter_chunks, way == GraphStrategy::kFetch);
  } else if (launch->leaves_residue && may_move) {
    if (const size_t small = SmallOperandsFirst(launch->capacity))
      SplitHotCold(launch->stream, small * kChunkBytes, kNever, small, false);
  }
  const size_t wanted = missing_.size();
  if (way) {
    ApplyStrategy(*way, launch->stream, id);
  } else if (may_map_remote && wanted && may_move) {
    SelectRemote(launch->stream, id, oversize);
  }
  launch->remote_bytes = (wanted - missing_.size()) * kChunkBytes;
  missing_.insert(missing_.begin(), hot_missing_.begin(), hot_missing_.end());
  stats_.misses += missing_.size();
  stats_.remote_bytes += launch->remote_bytes;
}

// Nothing can be queued now: faults bring what is missing.
void Residency::FaultInMissing(const PlannedLaunch& launch) {
  uint64_t scattered = 0;
  for (Chunk* chunk : missing_) {
    if (launch.leaves_residue && resident_bytes_ + kChunkBytes > launch.capacity) {
      // All of it is never there; it leaves with the next sweep.
      scattered += kChunkBytes;
      fault_residue_.Add(chunk);
      continue;
    }
    if (IsDiscarded(chunk, launch.stream)) plan_.populate_now.push_back({chunk->base, kChunkBytes});
    SetResident(chunk, true);
    chunk->discarded = false;
    if (chunk->has_contents) stats_.fault_bytes += kChunkBytes;
    chunk->fetch_op = 0;
  }
  if (scattered) NoteFaultResidueBytes(std::min(scattered, classifier_.MaxFaultBytes(launch.id)));
  if ((resident_bytes_ > launch.capacity || scattered) && !missing_.empty()) ++stats_.over_budget_launches;
}

// Brings what is missing, in others' place; what does not fit comes for this launch alone, or by faults.
void Residency::FetchMissing(const PlannedLaunch& launch, StreamQueues* queues) {
  const StreamId stream = launch.stream;
  const uint64_t id = launch.id;
  const uint64_t need = missing_.size() * kChunkBytes;
  const uint64_t in_set = set_.size() * kChunkBytes - launch.remote_bytes;
  uint64_t beyond = 0;  // bytes of the set that can never fit beside the rest of it
  if (in_set > launch.own_capacity) beyond = std::min(need, in_set - launch.own_capacity);
  // Faults bring what is touched, nobody knows of which chunks: no others make place for that, nor for the rest of a
  // graph.
  const bool by_faults = launch.leaves_residue && (prefetch_ == Prefetch::kOff || last_demand_paged_ == now_);
  const uint64_t fits = std::min(by_faults || launch.strategy ? need - beyond : need, launch.capacity);
  if (resident_bytes_ <= launch.capacity) excess_duplicates_.clear();
  uint64_t room = Room(stream), stays = need - beyond;  // of what is missing so much stays behind the launch
  // A capacity that has just shrunk (budget, factor) leaves more held than it allows: that goes too.
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
  uint64_t fetched = 0, passing = 0, scattered = 0;
  for (Chunk* chunk : missing_) {
    const bool elsewhere =
        chunk->evict_op && chunk->evict_stream != stream && !timeline_->OutDone(chunk->evict_stream, chunk->evict_op);
    const bool too_much = fetched + kChunkBytes > stays;
    // A duplicate costs nothing to get rid of behind the launch.
    const bool brought = launch.strategy ? launch.strategy == GraphStrategy::kFetch : MayDuplicate(*chunk);
    const bool beyond_card = too_much && resident_bytes_ + passing + kChunkBytes > max_resident_bytes_;
    const bool discarded = IsDiscarded(chunk, stream);
    // The newest departure is done perhaps, not the one before it on another queue: of that nothing is kept.
    if (elsewhere || too_much)
      chunk->evicting_elsewhere = elsewhere || (chunk->evicting_elsewhere && HasEvictionsInFlight());
    if (beyond_card || (!discarded && (elsewhere || (too_much && !brought)))) {
      // Faults bring it; it is on its way out again as soon as the launch is over.
      // Mapped where it lies it would not fault, and a launch that was found to re-read it would do so over the link.
      UnmapRemote(chunk);
      if (by_faults && !elsewhere) {
        scattered += kChunkBytes;
        fault_residue_.Add(chunk);
        continue;
      }
      if (chunk->has_contents) stats_.fault_bytes += kChunkBytes;
      EvictBehind(chunk);
      continue;
    }
    if (elsewhere || (too_much && !MayDuplicate(*chunk))) {
      // It comes, but only for this launch.
      FetchTransient(chunk, stream);
      passing += kChunkBytes;
      continue;
    }
    if (too_much) {
      excess_duplicates_.push_back(chunk->base);
    } else {
      fetched += kChunkBytes;
    }
    if ((prefetch_ == Prefetch::kOff || chunk->demand_paged_at == now_) && !discarded) {
      SetResident(chunk, true);
      if (chunk->has_contents) stats_.fault_bytes += kChunkBytes;
      chunk->fetch_op = 0;
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
  if (scattered) NoteFaultResidueBytes(std::min(scattered, classifier_.MaxFaultBytes(id)));
  if (scattered && prefetch_ == Prefetch::kOff && classifier_.IsDue(id, launch.oversize))
    plan_.probe = {id, scattered, set_.size() * kChunkBytes - need, launch.oversize, true};
}

void Residency::DrainOps(StreamQueues* queues, StreamId stream) {
  while (!queues->evictions.empty() && timeline_->OutDone(stream, queues->evictions.front().first))
    queues->evictions.pop_front();
  while (!queues->fetches.empty() && timeline_->InDone(stream, queues->fetches.front().first)) {
    queues->fetches.pop_front();
  }
}

void Residency::Fetch(const Chunk* chunk, StreamId stream, PlanStep* step) {
  if (!step->in_op) step->in_op = ++queues_[stream].in_op;
  step->fetch.push_back({chunk->base, kChunkBytes});
}

// To be there for this stream's next launches.
void Residency::FetchChunk(Chunk* chunk, StreamId stream, PlanStep* step) {
  Fetch(chunk, stream, step);
  chunk->fetch_op = step->in_op;
  chunk->fetch_stream = stream;
  (chunk->has_contents ? stats_.bytes_in : stats_.bytes_saved) += kChunkBytes;
  if (chunk->has_contents) step->fetch_content_bytes += kChunkBytes;
}

void Residency::FetchResident(Chunk* chunk, StreamId stream, PlanStep* step) {
  if (!chunk->duplicate && MayDuplicate(*chunk)) {
    chunk->duplicate = true;
    chunk->written_back = false;
    step->duplicate.push_back({chunk->base, kChunkBytes});
    if (chunk->mapped_remote) step->unmap.push_back({chunk->base, kChunkBytes});
    chunk->mapped_remote = false;
  }
  if (chunk->has_contents && CheaperSwapped(*chunk)) NoteSwappedIn(chunk);
  SetResident(chunk, true);
  chunk->fetched_whole = true;
  chunk->probed = chunk->cold = chunk->probe_victim = false;
  FetchChunk(chunk, stream, step);
}

// Brought for one launch, behind which it is sent away again.
void Residency::FetchTransient(Chunk* chunk, StreamId stream) {
  UnmapRemote(chunk);
  FetchChunk(chunk, stream, &plan_.now);
  EvictBehind(chunk);
}

// It leaves as soon as the launch is over.
void Residency::EvictBehind(Chunk* chunk) {
  plan_.evict_after.push_back({chunk->base, kChunkBytes});
  evicted_behind_.push_back(chunk);
  FaultResidue::Remove(chunk);
  chunk->has_contents = chunk->written_back = true;
}

// What leaves behind the launch is queued after all else of its plan, so it has the last number: who waits for an
// earlier one does not wait for this, and nobody can before it is queued.
void Residency::NumberEvictAfter(StreamQueues* queues, bool graph) {
  Merge(&plan_.evict_after);
  plan_.evict_after_op = ++queues->out_op;
  for (Chunk* chunk : evicted_behind_) chunk->evict_op = plan_.evict_after_op;
  stats_.bytes_out += evicted_behind_.size() * kChunkBytes;
  queues->graph_out_op = graph ? plan_.evict_after_op : 0;
  queues->bytes_beside_graph = 0;
}

void Residency::FinishStep(StreamId stream, PlanStep* step) {
  StreamQueues& queues = queues_[stream];
  if (step->out_op) queues.evictions.emplace_back(step->out_op, step->evict.size() * kChunkBytes);
  if (step->in_op) {
    queues.fetches.emplace_back(step->in_op, step->fetch.size() * kChunkBytes);
    if (queues.out_op > queues.in_awaited_out_op && !MayOverlapEviction(&queues, stream, *step))
      step->in_after_out = queues.in_awaited_out_op = queues.out_op;
  }
  for (std::vector<Extent>* runs : {&step->drop, &step->unmap, &step->duplicate, &step->evict, &step->fetch})
    Merge(runs);
}

// Sorts and joins what lies side by side: long runs move at the link's rate, single chunks at half of it. Never across
// the border of two arenas, which may be neighbours: the driver refuses a range of two allocations.
void Residency::MergeRuns(std::vector<Extent>* runs) {
  std::sort(runs->begin(), runs->end(), [](const Extent& a, const Extent& b) { return a.base < b.base; });
  size_t out = 0;
  for (size_t i = 1; i < runs->size(); ++i) {
    const Chunk* chunk = chunks_.Find((*runs)[i].base);
    if ((*runs)[out].end() == (*runs)[i].base && !(chunk && chunk->first_of_arena)) {
      (*runs)[out].bytes += (*runs)[i].bytes;
    } else {
      (*runs)[++out] = (*runs)[i];
    }
  }
  runs->resize(out + 1);
}

void Residency::ForgetStream(StreamId stream) {
  Settle();
  CatchUp();
  queues_.erase(stream);
  last_queues_ = {};
  chunks_.ForAll([stream](Chunk& chunk) {
    for (Mark& use : chunk.use) {
      if (use.stream == stream) use = {};
    }
    if (chunk.fetch_stream == stream) chunk.fetch_op = 0;
    if (chunk.evict_stream == stream) chunk.evict_op = 0;
  });
}

}  // namespace sluice::policy
