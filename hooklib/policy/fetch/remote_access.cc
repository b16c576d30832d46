// Residency: what a launch leaves in host memory, or to faults, instead of having it brought.
//
// To map a chunk in host memory takes 0.1 ms, waits for what is being sent away just then, and makes each later
// departure of the chunk dearer (100 ms a GiB instead of 70), so it pays only for what stays there, used in place for
// longer than it would have stayed on the card. What other launches need there soon, or what is born and dies within a
// round (activations), is brought like anything else: on an H200 a convolution net's step took 243 ms and more where
// such chunks were mapped too, and 202 where nothing was.
#include <algorithm>
#include <utility>

#include "hooklib/policy/residency.h"

namespace sluice::policy {

namespace {
constexpr uint64_t kDominant = uint64_t{32} << 20;
}  // namespace

void Residency::EndIteration(const StreamQueues& queues) {
  Settle();
  constexpr uint64_t kMargin = uint64_t{128} << 20;
  promote_bytes_ = min_slack_bytes_ > kMargin && promotion_pause_ == 0 ? min_slack_bytes_ - kMargin : 0;
  if (promotion_pause_) --promotion_pause_;
  min_slack_bytes_ = kNever;
  iterations_.Begin(now_);
  ExchangePlacement(queues.predictor);
}

// Whether it is used in host memory for longer than it would be kept on the card: `id`, whose launches stream, uses it
// now, and whoever needs it there comes only after others would have taken its place.
bool Residency::StaysRemote(const Predictor& predictor, const Chunk& chunk, uint64_t id) {
  if (iterations_.number() == 1) return IsLongLived(chunk, id);
  if (CheaperSwapped(chunk)) return false;
  const auto next = predictor.NextRequiredUse(chunk, [this](uint64_t other) {
    return classifier_.ClassOf(other, false, now_) != LaunchClassifier::AccessClass::kStreaming;
  });
  // Half of the mean, since what left were those used last.
  return next ? *next > reuse_distance_x64_ / 128 : IsLongLived(chunk, id);
}

void Residency::NoteRequired(Chunk* chunk, uint64_t id, uint64_t rounds) {
  chunk->required_until = std::max(chunk->required_until, now_ + rounds * iterations_.length());
  chunk->required_by = id;
}

void Residency::NoteEvicted(Chunk* chunk) {
  if (chunk->cold || !chunk->has_contents || chunk->evicted_iteration == iterations_.number() ||
      !IsLongLived(*chunk, 0))
    return;
  chunk->evicted_repeatedly = chunk->evicted_iteration && chunk->evicted_iteration + 2 >= iterations_.number();
  chunk->evicted_iteration = iterations_.number();
}

// Whether it has left in each round and is used so little there that it had better stay in host memory, or lies mapped
// there. By the driver's calls to send it away and bring it takes 92 ms a GiB, each pass over it in host memory 24: a
// convolution net's parameters and momenta leave in the forward pass, since they are needed last, and are used two or
// three times in a round. A window is longer than that, so it may count one use more. Where several threads send it
// away (hooklib/engine/execute/eviction_threads.h) it takes 50 beside everything else, and to let it go is the faster
// way.
bool Residency::CheaperRemote(const Chunk& chunk) const {
  constexpr uint64_t kMost = kChunkBytes * 29 / 10;
  if (chunk.mapped_remote) return true;
  if (!slow_write_back_) return false;
  if (!chunk.evicted_repeatedly || chunk.evicted_iteration + 2 < iterations_.number()) return false;
  if (chunk.link_iteration == iterations_.number()) return chunk.previous_link_bytes <= kMost;
  return chunk.link_iteration + 1 < iterations_.number() || chunk.link_bytes <= kMost;
}

// Whether a round passes over it so often, where departures are fast, that it had better come and go, whatever its
// launches could do with it in host memory: three passes there take 70 ms a GiB, to come and to go takes 50 beside
// everything else. An optimizer's second moments are such, its first ones not.
bool Residency::CheaperSwapped(const Chunk& chunk) const {
  constexpr uint64_t kLeast = kChunkBytes * 29 / 10;
  // Not before it is known when it is needed.
  if (prefetch_ != Prefetch::kPredict || slow_write_back_ || chunk.live_since + iterations_.length() * 15 / 8 > now_ ||
      chunk.remote_until > now_) {
    return false;
  }
  if (chunk.link_iteration == iterations_.number())
    return std::max(chunk.previous_link_bytes, chunk.link_bytes) >= kLeast;
  return chunk.link_iteration + 1 == iterations_.number() && chunk.link_bytes >= kLeast;
}

// It is brought for a launch that needs it on the card: the mapping would only make its next departure dearer, unless
// it is used in host memory in nearly every round all the same. What comes and goes was used there by launches that the
// card may not have reached yet: without the mapping these would fault.
void Residency::UnmapForFetch(Chunk* chunk) {
  if (CheaperSwapped(*chunk)) return;
  if (!IsLongLived(*chunk, 0) || chunk->remote_iteration + 2 <= iterations_.number()) UnmapRemote(chunk);
}

void Residency::MapRemote(Chunk* chunk) {
  if (chunk->mapped_remote) return;
  chunk->mapped_remote = true;
  plan_.map_remote.push_back({chunk->base, kChunkBytes});
}

void Residency::UnmapRemote(Chunk* chunk) {
  if (!chunk->mapped_remote) return;
  chunk->mapped_remote = false;
  plan_.unmap_remote.push_back({chunk->base, kChunkBytes});
}

// The host runs ahead: what it brings for a later launch may be there before the one that is timed without it runs.
bool Residency::IsBeingProbed(const Chunk& chunk) {
  return chunk.probed && std::any_of(std::begin(chunk.use), std::end(chunk.use),
                                     [this](const Mark& use) { return use.stream && !timeline_->Done(use); });
}

// Where in set_ the large operand lies beside which the launch names little else; nothing: there is none. A product
// reads an operand once for 256 rows of the other, so such launches pass over it once or twice, or use a part of it.
std::pair<size_t, size_t> Residency::DominantOperand() const {
  uint64_t all = 0, largest = 0;
  size_t at = 0;
  for (size_t i = 0; i < operands_.size(); ++i) {
    all += operands_[i].bytes;
    if (operands_[i].bytes > largest) largest = operands_[at = i].bytes;
  }
  const size_t begin = at ? operands_[at - 1].end : 0;
  const bool dominates = largest >= kDominant && all - largest <= largest / 8;
  // Not where much of it is named before, as another operand.
  if (!dominates || (operands_[at].end - begin + 2) * kChunkBytes < largest) return {0, 0};
  return {begin, operands_[at].end};
}

void Residency::SelectRemote(StreamId stream, uint64_t id, bool oversize) {
  using AccessClass = LaunchClassifier::AccessClass;
  const bool duplicates =
      std::all_of(missing_.begin(), missing_.end(), [this](const Chunk* chunk) { return MayDuplicate(*chunk); });
  const AccessClass verdict = classifier_.ClassOf(id, oversize, now_, duplicates);
  std::erase_if(missing_, [this](const Chunk* chunk) { return IsBeingProbed(*chunk); });
  uint64_t stays = 0;
  if (!classifier_.IsSlowRemote(id, oversize)) {
    stays = kChunkBytes * std::erase_if(missing_, [&](Chunk* chunk) {
              return !IsDiscarded(chunk, stream) && KeepsColdRemote(chunk, id);
            });
  }
  // The host had to wait for a try, so it is far ahead: all that it queues stands behind one that crawls.
  const bool waited = classifier_.ShouldAwait(id);
  classifier_.NoteMissing(id, oversize, missing_.size() * kChunkBytes, capacity_);
  if (verdict == AccessClass::kRereading) return;
  const bool faults = verdict == AccessClass::kFaulting || verdict == AccessClass::kUnknownFaulting;
  const bool trial = verdict == AccessClass::kUnknown || verdict == AccessClass::kUnknownFaulting;
  const uint64_t need = missing_.size() * kChunkBytes;
  const uint64_t resident = set_.size() * kChunkBytes - need;
  uint64_t most = kNever;
  bool commuting = false;  // only what cheaper_remote stays
  if (trial) {
    if (!oversize) {
      const uint64_t room = Room(stream);
      // Nothing has to leave for it now; but of what has come and gone so far something will.
      commuting = room >= need || room + DiscardableBytes(need - room, stream) >= need;
      const auto cheaper_remote = [this](const Chunk* chunk) { return CheaperRemote(*chunk); };
      if (commuting && (faults || std::none_of(missing_.begin(), missing_.end(), cheaper_remote))) return;
    }
    // By faults all of what cannot be held, so that nothing else takes its time, and nothing is brought that it may not
    // touch.
    if (!oversize || !faults) {
      most = oversize ? set_.size() * kChunkBytes - RoundDown(capacity_, kChunkBytes)
                      : LaunchClassifier::ProbeBytes(verdict, resident);
    }
    // For a lookup its whole table would be brought. Not any more once a launch has re-read what it was tried with.
    if (!oversize && !faults && !waited && !classifier_.probe_stats().slow_probes && DominantOperand().second)
      most = kNever;
  }
  bool blocked = false;
  RemoteShare share;
  if (verdict == AccessClass::kFaulting && oversize) share = classifier_.ShareOf(id, need);
  uint64_t mapped = 0, in_place = 0;
  // More uses than this between two rounds cost more over the link than to bring it and to send something away: 24 ms a
  // GiB each time, where those take 92; but a launch over a list of tensors names each of them whole and passes over a
  // part (PyTorch's optimizers).
  constexpr uint16_t kMaxUses = 20;
  uint64_t uses = 0;  // bytes that it names of what stays
  std::erase_if(missing_, [&](Chunk* chunk) {
    // What was discarded or never written has no host pages worth using: to bring it moves nothing.
    if (!chunk->has_contents || IsDiscarded(chunk, stream)) return false;
    if ((oversize ? stays : uses) >= most || (faults && MayDuplicate(*chunk))) return false;
    if (!oversize && verdict != AccessClass::kFaulting &&
        !(trial ? IsLongLived(*chunk, id) : StaysRemote(queues_[stream].predictor, *chunk, id)))
      return false;
    if (commuting && !CheaperRemote(*chunk)) return false;
    // What is still on its way out would be found on the card. Of a launch that cannot be held something always is.
    if (trial && !oversize && IsEvicting(*chunk)) {
      blocked = true;
      return false;
    }
    // It made place when less of it was used, for kernels that nobody timed: they may read it more than once.
    if (trial && chunk->cold && !chunk->probe_victim) return false;
    if (chunk->remote_iteration != iterations_.number()) {
      chunk->remote_iteration = last_remote_iteration_ = iterations_.number();
      chunk->remote_uses = 0;
    }
    // What faults have brought of it would stay on the card, and nobody would count it: that leaves first.
    if (oversize && !trial && !faults && chunk->in_fault_residue && !chunk->mapped_remote) {
      fault_residue_.SweepSoon();
      last_demand_paged_ = chunk->demand_paged_at = now_;
      return false;
    }
    if (share.stride && chunk->base / kChunkBytes % share.stride == 0 &&
        (chunk->mapped_remote || (mapped + kChunkBytes <= share.max_new_bytes && !chunk->in_fault_residue))) {
      if (!chunk->mapped_remote) mapped += kChunkBytes;
      in_place += kChunkBytes;
      stays += kChunkBytes;
      MapRemote(chunk);
      return true;
    }
    if (faults && (trial || !chunk->mapped_remote || chunk->remote_uses == 0)) {
      UnmapRemote(chunk);
      chunk->demand_paged_at = now_;
      stays += kChunkBytes;
      uses += chunk->named_bytes;
      return false;
    }
    if (verdict == AccessClass::kStreaming && !oversize) {
      if (chunk->remote_uses >= kMaxUses) {
        NoteRequired(chunk, 0, 16);
        return false;
      }
      if (promote_bytes_ >= kChunkBytes && (!promotions_chosen_ || chunk->promote_iteration == iterations_.number())) {
        promote_bytes_ -= kChunkBytes;
        return false;
      }
    }
    chunk->probed = trial;
    ++chunk->remote_uses;
    stays += kChunkBytes;
    uses += chunk->named_bytes;
    MapRemote(chunk);
    return true;
  });
  if (stays && faults) {
    ++stats_.demand_paged_launches;
    last_demand_paged_ = now_;
  }
  if (mapped) classifier_.NoteMapped(id, mapped);
  // Not all of it can be mapped at once, and in the mean as much of each part is touched.
  const bool part = share.stride && in_place > need / share.stride / 2;
  const uint32_t every = !faults ? 1 : part ? share.stride : 0;
  if (stays && (trial || classifier_.IsDue(id, oversize, every)))
    plan_.probe = {id, stays, resident, oversize, faults, duplicates, trial, every};
  if (stays && trial) classifier_.NoteProbe(plan_.probe, now_);
  if (blocked && !stays) classifier_.NoteBlocked(id);
}

void Residency::NoteFaultResidue(Extent block) {
  chunks_.ForEach(block, [this](Chunk& chunk) {
    if (!chunk.resident && !chunk.mapped_remote && chunk.live_bytes != 0) fault_residue_.Add(&chunk);
  });
  fault_residue_.SweepSoon();
}

void Residency::NoteFaultResidueBytes(uint64_t bytes) {
  stats_.fault_bytes += bytes;
  fault_residue_.NoteBytes(bytes, now_);
}

// Whether the work is over that used what is to leave.
bool Residency::IsSweepReady() {
  if (fences_->open() == sweep_fence_) fences_->Close();
  if (fences_->open() == sweep_fence_) return true;  // while a capture forbids marks nobody knows
  if (!fences_->Done(sweep_fence_)) return false;
  fences_->Close();  // of what more than two streams used since
  return true;
}

void Residency::PauseResidueSweep(uint64_t least) {
  constexpr uint64_t kLongest = uint64_t{1} << 16;
  sweep_pause_ = std::max(sweep_pause_, least);
  sweep_paused_until_ = now_ + sweep_pause_;
  sweep_pause_ = std::min(2 * sweep_pause_, kLongest);
  failed_sweeps_ = 0;
}

// Sends away behind the launch what faults have scattered, once that is due. What other streams still use does not
// leave: then the sweep is made up for as soon as all that was queued by the next launch is over, for what these bring
// lies there beyond the budget, and nobody may name it again.
void Residency::SweepFaultResidue(StreamId stream) {
  constexpr uint32_t kInVain = 4;  // a launch may come between the look and the sweep
  const bool again = sweep_fence_ && IsSweepReady();
  if (!again && !fault_residue_.IsDue(now_)) return;
  if (again) sweep_fence_ = 0;
  bool in_use = false, went = false;
  fault_residue_.Sweep(&chunks_, now_, [&](Chunk* chunk) {
    const bool stays = chunk->resident || chunk->mapped_remote || chunk->live_bytes == 0;  // what is dead is discarded
    // One queue at a time: it is known of one alone when it is done.
    const bool leaving = IsEvicting(*chunk) && chunk->evict_stream != stream;
    if (!stays && (leaving || chunk->evicting_elsewhere)) return false;
    if (!stays && !MayEvict(*chunk, stream)) {
      in_use = true;
      return false;
    }
    if (stays) {
      FaultResidue::Remove(chunk);
    } else {
      EvictBehind(chunk);
      went = true;
    }
    return true;
  });
  if (went) {
    sweep_pause_ = kSweepPauseLaunches;
    failed_sweeps_ = 0;
  } else if (again && in_use && ++failed_sweeps_ == kInVain) {
    PauseResidueSweep(kSweepPauseLaunches);
  }
  // Closed by whoever looks next: behind the launch.
  if (in_use && !sweep_fence_) sweep_fence_ = fences_->Use();
}

}  // namespace sluice::policy
