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
    chunk.sure = true;
    candidates_.Unrank(&chunk);
    // What nobody is given of it holds a place for nothing: it goes as what died does.
    chunk.dying = true;
    freed_resident_.push_back(&chunk);
  });
}

void Residency::RemoveArena(Extent arena) {
  Settle();
  NoteChange();
  chunks_.ForEach(arena, [this](Chunk& chunk) {
    SetResident(&chunk, false);
    if (chunk.live_bytes != 0) --living_;
    if (chunk.ever_out) stats_.host_bytes -= kChunkBytes;
  });
  copied_.Remove(arena, [](Extent) {});
  std::erase_if(withdrawn_, [&arena](const Extent& run) { return run.base >= arena.base && run.base < arena.end(); });
  const auto inside = [&arena](const Chunk* chunk) { return chunk->base >= arena.base && chunk->base < arena.end(); };
  std::erase_if(freed_resident_, inside);
  std::erase_if(freed_on_host_, inside);
  std::erase_if(reused_after_discard_, inside);
  candidates_.RemoveArena(arena);
  chunks_.RemoveArena(arena.base);
  for (auto& [stream, queues] : queues_) queues.predictor.Forget();
  repeating_ = nullptr;
}

void Residency::AddLive(Extent range) {
  ForgetCopies(range);  // its bytes are nobody's yet
  chunks_.ForEach(range, [&](Chunk& chunk) {
    Withdraw(&chunk);  // what comes to life beside it will be written
    if (chunk.live_bytes == 0) {
      ++living_;
      chunk.born = now_;
      chunk.cold = false;
      if (chunk.discarded && !chunk.content && !chunk.reborn) {
        chunk.reborn = true;
        reused_after_discard_.push_back(&chunk);
      }
    }
    Change(&chunk, [&] { chunk.live_bytes += Overlap(range, chunk); });
  });
}

void Residency::RemoveLive(Extent range, Extent owner) {
  ForgetCopies(range);
  chunks_.ForEach(range, [&](Chunk& chunk) {
    chunk.owned = owner.base <= chunk.base && chunk.base + kChunkBytes <= owner.end();
    Change(&chunk, [&] { chunk.live_bytes -= Overlap(range, chunk); });
    if (chunk.live_bytes == 0) {
      --living_;
      chunk.dead_epoch = fences_->Use();
      chunk.dead_launch = now_;
      if (!repeating_ && last_queues_.second)
        last_queues_.second->predictor.NoteDeath(chunk, now_ + 1 - chunk.last_use);
      if (!chunk.dying) {
        chunk.dying = true;
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
    Change(&chunk, [&] { chunk.pins = static_cast<uint16_t>(chunk.pins + (pin ? 1 : -1)); });
  });
}

void Residency::ClearAll() {
  plan_.Clear();
  behind_.clear();
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
  Queues& queues = *last_queues_.second;
  Launch launch{stream, id, may_move};
  launch.fits = launch.holds = RoundDown(capacity_, kChunkBytes);
  SteadySets::Set* const standing =
      hotter || asks_ || names_launches_ ? nullptr : standing_.Find(now_, stream, id, extents);
  const bool stands = standing && Stands(*standing, launch) && reused_after_discard_.empty();
  size_t hotter_chunks = 0;
  if (stands) {
    set_ = standing->chunks;
    launch.place = standing->place;
  } else {
    Settle();
    CatchUp();
    stood_ = 0;
    hotter_chunks = Collect(extents, overwritten, hotter, queues, &launch);
  }
  launch.lacks |= !reused_after_discard_.empty();
  launch.oversize = set_.size() * kChunkBytes > launch.fits;
  launch.scatters = launch.oversize && !hotter && id;
  if (id) launch.seen = host_access_.See(id, launch.oversize, now_);
  // Most launches find all that they name, and nothing else has to be done.
  const bool there = !launch.lacks && !launch.oversize && resident_ <= launch.fits && scattered_.empty();
  if (stands) {
    standing_.NoteAgain(standing, now_, seq, {launch.seen.sparse, Fetches(launch)}, windows_.number());
  } else if (there) {
    NoteSet<true, true>(launch, seq);
    if (standing) standing_.Keep(standing, now_, stream, launch.place, set_);
  } else {
    NoteSet<true, false>(launch, seq);
  }
  if (id && prefetch_ == Prefetch::kPredict) {
    if (stands && queues.predictor.Repeats(id, launch.place, now_, stood_++)) {
      repeating_ = &queues.predictor;
    } else {
      CatchUp();
      queues.predictor.OnLaunch(id, launch.place, set_, now_, living_);
    }
  }
  const bool discards = !freed_on_host_.empty() && may_move && DiscardAway(stream);
  if (launch.lacks) LookForMissing(queues, launch);
  stats_.hits += set_.size() - missing_.size();
  if (names_launches_) {
    for (Chunk* chunk : set_) NoteNamer(chunk, id, launch.seen.sparse);
  }
  RollWindow(queues);
  if (!there) {
    Move(&launch, &queues, hotter, hotter_chunks);
    if (plan_.wait_in) queues.waited_in = std::max(queues.waited_in, plan_.wait_in);
    NoteSet<false, true>(launch, seq);
    if (launch.reborn) NoteReused(launch.reborn, {stream, seq});
  } else if (id && may_map_remote_ && prefetch_ != Prefetch::kOff) {
    if (launch.seen.refused) {
      for (Chunk* chunk : set_) NoteNeeded(chunk, id, 1);
    } else if (asks_ && !stands && host_access_.Of(id, false, now_) == LaunchClassifier::Verdict::kTry) {
      Ask(id);
    }
  }
  if (launch.way) {
    NoteChange();  // what is used from here on counts as used between two graphs
    graph_before_ = now_;
    between_ = 0;
  }
  const uint64_t held = resident_;
  if (held > capacity_) stats_.over_budget_max = std::max(stats_.over_budget_max, held - capacity_);
  const uint64_t busy = held - std::min(held, idle_);
  least_slack_ = std::min(least_slack_, capacity_ > busy ? capacity_ - busy : 0);
  const bool ahead =
      prefetch_ == Prefetch::kPredict && id && may_move && MayPrefetch(queues) && PrefetchUpcoming(&queues, stream);
  if (!behind_.empty()) NumberBehind(&queues, launch.way.has_value());
  plan_.nothing = there && !ahead && !discards;
  again_ = stands && plan_.nothing && repeating_ == &queues.predictor && !launch.seen.refused ? standing : nullptr;
  if (!plan_.nothing) {
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
  const bool as_before = repeating_ && last_queues_.first == stream && repeating_ == &last_queues_.second->predictor &&
                         standing_.Stands(*set) && resident_ <= capacity_ && !asks_;
  if (!as_before || !windows_.GoesOn(now) || !repeating_->Repeats(id, set->place, now, stood_)) return false;
  now_ = now;
  ++stood_;
  set_ = set->chunks;
  standing_.NoteAgain(set, now, seq, windows_.number());
  stats_.hits += set_.size();
  return true;
}

// What of the set is not on the card, and what is on its way there.
void Residency::LookForMissing(const Queues& queues, const Launch& launch) {
  const StreamId stream = launch.stream;
  for (Chunk* chunk : set_) {
    if (!chunk->resident) {
      missing_.push_back(chunk);
      continue;
    }
    if (IsDiscarded(chunk, stream) && launch.may_move) {  // fetched once more, for this stream
      Fetch(chunk, stream, &plan_.now);
    }
    // Brought on this stream's behalf: wait for it. On another's: that fetch may hang on work the application did not
    // order before us.
    if (chunk->arrival_op <= queues.waited_in || chunk->arrival_stream != stream) continue;
    if (timeline_->InDone(stream, chunk->arrival_op)) {
      chunk->arrival_op = 0;
    } else {
      plan_.wait_in = std::max(plan_.wait_in, chunk->arrival_op);
    }
  }
}

// What it lacks comes, or is used where it lies; what is held beyond the capacity leaves.
void Residency::Move(Launch* launch, Queues* queues, std::optional<size_t> hotter, size_t hotter_chunks) {
  const StreamId stream = launch->stream;
  LeaveSome(launch, hotter, hotter_chunks);
  if (launch->may_move && !reused_after_discard_.empty()) launch->reborn = FetchReused(stream);
  if (!launch->may_move) {
    LeaveToFaults(*launch);
  } else if (!missing_.empty() || plan_.now.in_op) {
    Bring(*launch, queues);
  }
  if (launch->may_move && !scattered_.empty()) Sweep(stream);
  for (Chunk* chunk : behind_) {
    chunk->departure_op = kNever;  // until it has its number
    chunk->departure_stream = stream;
  }
  if (launch->may_move && missing_.empty() && !plan_.now.in_op && resident_ > launch->fits && now_ >= shrink_at_) {
    // More is held than the capacity allows now, and this launch needs no room: what may leave, leaves.
    const uint64_t over = resident_ - launch->fits;
    if (MakeRoom(stream, over, 0, &plan_.now) < over) shrink_at_ = now_ + 16;
    Finish(stream, &plan_.now);
  }
}

// Which way a graph goes that cannot be held, and what of the missing is used in host memory or left to faults.
void Residency::LeaveSome(Launch* launch, std::optional<size_t> hotter, size_t hotter_chunks) {
  const uint64_t id = launch->id;
  const bool may_move = launch->may_move, oversize = launch->oversize;
  const bool may_map_remote = may_map_remote_ && id && prefetch_ != Prefetch::kOff;
  std::optional<GraphStrategy>& way = launch->way;
  if (hotter && oversize && id && may_move && prefetch_ != Prefetch::kOff)
    way = ways_.Next({id, set_.size() * kChunkBytes, capacity_, may_map_remote_});
  if (way) {
    for (Chunk* chunk : set_) chunk->last_fetcher = now_;
  } else if (may_map_remote && launch->seen.refused) {
    for (Chunk* chunk : set_) NoteNeeded(chunk, id, 1);
  }
  hottest_.clear();
  // What other launches use between two such graphs keeps its place: the graph lacks bytes anyhow, and they would wait
  // for theirs behind all that leaves after it.
  if (way) launch->holds -= UsedBetween(launch->fits / 8);
  if (way && (way == GraphStrategy::kFetch || (hotter_chunks && way != GraphStrategy::kDemandPaging))) {
    const uint64_t there = (set_.size() - missing_.size()) * kChunkBytes;
    SplitHottest(launch->stream, launch->holds, launch->holds - std::min(launch->holds, there), hotter_chunks,
                 way == GraphStrategy::kFetch);
  } else if (launch->scatters && may_move) {
    if (const size_t small = SmallFirst(launch->fits))
      SplitHottest(launch->stream, small * kChunkBytes, kNever, small, false);
  }
  const size_t wanted = missing_.size();
  if (way) {
    TakeWay(*way, launch->stream, id);
  } else if (may_map_remote && wanted && may_move) {
    LeaveInHost(launch->stream, id, oversize);
  }
  launch->stayed = (wanted - missing_.size()) * kChunkBytes;
  missing_.insert(missing_.begin(), hottest_.begin(), hottest_.end());
  stats_.misses += missing_.size();
  stats_.host_bytes_used += launch->stayed;
}

// Nothing can be queued now: faults bring what is missing.
void Residency::LeaveToFaults(const Launch& launch) {
  uint64_t scattered = 0;
  for (Chunk* chunk : missing_) {
    if (launch.scatters && resident_ + kChunkBytes > launch.fits) {
      // All of it is never there; it leaves with the next sweep.
      scattered += kChunkBytes;
      scattered_.Add(chunk);
      continue;
    }
    if (IsDiscarded(chunk, launch.stream)) plan_.populate_now.push_back({chunk->base, kChunkBytes});
    SetResident(chunk, true);
    chunk->discarded = false;
    if (chunk->content) stats_.fault_bytes += kChunkBytes;
    chunk->arrival_op = 0;
  }
  if (scattered) NoteScattered(std::min(scattered, host_access_.BytesByFaults(launch.id)));
  if ((resident_ > launch.fits || scattered) && !missing_.empty()) ++stats_.over_budget_launches;
}

// Brings what is missing, in others' place; what does not fit comes for this launch alone, or by faults.
void Residency::Bring(const Launch& launch, Queues* queues) {
  const StreamId stream = launch.stream;
  const uint64_t id = launch.id;
  const uint64_t need = missing_.size() * kChunkBytes;
  const uint64_t in_set = set_.size() * kChunkBytes - launch.stayed;
  uint64_t beyond = 0;  // bytes of the set that can never fit beside the rest of it
  if (in_set > launch.holds) beyond = std::min(need, in_set - launch.holds);
  // Faults bring what is touched, nobody knows of which chunks: no others make place for that, nor for the rest of a
  // graph.
  const bool by_faults = launch.scatters && (prefetch_ == Prefetch::kOff || left_launch_ == now_);
  const uint64_t fits = std::min(by_faults || launch.way ? need - beyond : need, launch.fits);
  if (resident_ <= launch.fits) beyond_.clear();
  uint64_t room = Room(stream), stays = need - beyond;  // of what is missing so much stays behind the launch
  // A capacity that has just shrunk (budget, factor) leaves more held than it allows: that goes too.
  const uint64_t over = resident_ > launch.fits ? resident_ - launch.fits : 0;
  const bool yields = by_faults && prefetch_ != Prefetch::kOff;
  const uint64_t lacks = fits - std::min(fits, room);
  if (!yields && (lacks || (over && missing_.empty()))) {
    room += MakeRoom(stream, lacks + over, 0, &plan_.now);
  } else if (room < fits) {
    if (over && MakeRoom(stream, over, 0, &plan_.now)) room = Room(stream);
    room += MakeRoomForFaults(stream, fits - std::min(fits, room));
  }
  if (yields) stays = std::min(stays, std::max(room, hottest_.size() * kChunkBytes));
  if (room < fits || beyond) ++stats_.over_budget_launches;
  uint64_t fetched = 0, passing = 0, scattered = 0;
  for (Chunk* chunk : missing_) {
    const bool elsewhere = chunk->departure_op && chunk->departure_stream != stream &&
                           !timeline_->OutDone(chunk->departure_stream, chunk->departure_op);
    const bool too_much = fetched + kChunkBytes > stays;
    // A duplicate costs nothing to get rid of behind the launch.
    const bool brought = launch.way ? launch.way == GraphStrategy::kFetch : MayDuplicate(*chunk);
    const bool beyond_card = too_much && resident_ + passing + kChunkBytes > most_;
    const bool discarded = IsDiscarded(chunk, stream);
    // The newest departure is done perhaps, not the one before it on another queue: of that nothing is kept.
    if (elsewhere || too_much) chunk->two_ways_out = elsewhere || (chunk->two_ways_out && HasEvictionsInFlight());
    if (beyond_card || (!discarded && (elsewhere || (too_much && !brought)))) {
      // Faults bring it; it is on its way out again as soon as the launch is over.
      // Mapped where it lies it would not fault, and a launch that was found to re-read it would do so over the link.
      UnmapRemote(chunk);
      if (by_faults && !elsewhere) {
        scattered += kChunkBytes;
        scattered_.Add(chunk);
        continue;
      }
      if (chunk->content) stats_.fault_bytes += kChunkBytes;
      LeaveBehind(chunk);
      continue;
    }
    if (elsewhere || (too_much && !MayDuplicate(*chunk))) {
      // It comes, but only for this launch.
      FetchTransient(chunk, stream);
      passing += kChunkBytes;
      continue;
    }
    if (too_much) {
      beyond_.push_back(chunk->base);
    } else {
      fetched += kChunkBytes;
    }
    if ((prefetch_ == Prefetch::kOff || chunk->left_at == now_) && !discarded) {
      SetResident(chunk, true);
      if (chunk->content) stats_.fault_bytes += kChunkBytes;
      chunk->arrival_op = 0;
    } else if (MayRepopulate(*chunk)) {
      Unmap(chunk);
      Repopulate(chunk, id);
    } else {
      chunk->repopulated_by = 0;
      Unmap(chunk);
      FetchAndPlace(chunk, stream, &plan_.now);
    }
  }
  Finish(stream, &plan_.now);
  if (plan_.now.in_op) plan_.wait_in = plan_.now.in_op;
  Merge(&plan_.repopulate);
  if (!plan_.repopulate.empty()) plan_.repopulate_after = queues->out_op;
  if (scattered) NoteScattered(std::min(scattered, host_access_.BytesByFaults(id)));
  if (scattered && prefetch_ == Prefetch::kOff && host_access_.Due(id, launch.oversize))
    plan_.probe = {id, scattered, set_.size() * kChunkBytes - need, launch.oversize, true};
}

void Residency::DrainOps(Queues* queues, StreamId stream) {
  while (!queues->departing.empty() && timeline_->OutDone(stream, queues->departing.front().first))
    queues->departing.pop_front();
  while (!queues->arriving.empty() && timeline_->InDone(stream, queues->arriving.front().first)) {
    queues->arriving.pop_front();
  }
}

void Residency::Fetch(const Chunk* chunk, StreamId stream, PlanStep* step) {
  if (!step->in_op) step->in_op = ++queues_[stream].in_op;
  step->fetch.push_back({chunk->base, kChunkBytes});
}

// To be there for this stream's next launches.
void Residency::FetchChunk(Chunk* chunk, StreamId stream, PlanStep* step) {
  Fetch(chunk, stream, step);
  chunk->arrival_op = step->in_op;
  chunk->arrival_stream = stream;
  (chunk->content ? stats_.bytes_in : stats_.bytes_saved) += kChunkBytes;
  if (chunk->content) step->content_in += kChunkBytes;
}

void Residency::FetchAndPlace(Chunk* chunk, StreamId stream, PlanStep* step) {
  if (!chunk->duplicate && MayDuplicate(*chunk)) {
    chunk->duplicate = true;
    chunk->sent = false;
    step->duplicate.push_back({chunk->base, kChunkBytes});
    if (chunk->mapped_remote) step->unmap.push_back({chunk->base, kChunkBytes});
    chunk->mapped_remote = false;
  }
  if (chunk->content && CheaperSwapped(*chunk)) NoteComes(chunk);
  SetResident(chunk, true);
  chunk->sure = true;
  chunk->tried = chunk->cold = chunk->asked = false;
  FetchChunk(chunk, stream, step);
}

// Brought for one launch, behind which it is sent away again.
void Residency::FetchTransient(Chunk* chunk, StreamId stream) {
  UnmapRemote(chunk);
  FetchChunk(chunk, stream, &plan_.now);
  LeaveBehind(chunk);
}

// It leaves as soon as the launch is over.
void Residency::LeaveBehind(Chunk* chunk) {
  plan_.evict_after.push_back({chunk->base, kChunkBytes});
  behind_.push_back(chunk);
  FaultResidue::Remove(chunk);
  chunk->content = chunk->sent = true;
}

// What leaves behind the launch is queued after all else of its plan, so it has the last number: who waits for an
// earlier one does not wait for this, and nobody can before it is queued.
void Residency::NumberBehind(Queues* queues, bool graph) {
  Merge(&plan_.evict_after);
  plan_.after_op = ++queues->out_op;
  for (Chunk* chunk : behind_) chunk->departure_op = plan_.after_op;
  stats_.bytes_out += behind_.size() * kChunkBytes;
  queues->graph_out = graph ? plan_.after_op : 0;
  queues->beside = 0;
}

void Residency::Finish(StreamId stream, PlanStep* step) {
  Queues& queues = queues_[stream];
  if (step->out_op) queues.departing.emplace_back(step->out_op, step->evict.size() * kChunkBytes);
  if (step->in_op) {
    queues.arriving.emplace_back(step->in_op, step->fetch.size() * kChunkBytes);
    if (queues.out_op > queues.in_waited_out && !GoesBeside(&queues, stream, *step))
      step->in_after_out = queues.in_waited_out = queues.out_op;
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
    if ((*runs)[out].end() == (*runs)[i].base && !(chunk && chunk->first)) {
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
    if (chunk.arrival_stream == stream) chunk.arrival_op = 0;
    if (chunk.departure_stream == stream) chunk.departure_op = 0;
  });
}

}  // namespace sluice::policy
