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

void Residency::EndWindow(const Queues& queues) {
  Settle();
  constexpr uint64_t kMargin = uint64_t{128} << 20;
  promote_ = least_slack_ > kMargin && no_promotion_ == 0 ? least_slack_ - kMargin : 0;
  if (no_promotion_) --no_promotion_;
  least_slack_ = kNever;
  windows_.Next(now_);
  ChangePlaces(queues.predictor);
}

// Whether it is used in host memory for longer than it would be kept on the card: `id`, whose launches stream, uses it
// now, and whoever needs it there comes only after others would have taken its place.
bool Residency::StaysInHost(const Predictor& predictor, const Chunk& chunk, uint64_t id) {
  if (windows_.number() == 1) return IsLasting(chunk, id);
  if (CheaperSwapped(chunk)) return false;
  const auto next = predictor.NextNeeded(chunk, [this](uint64_t other) {
    return host_access_.Of(other, false, now_) != LaunchClassifier::Verdict::kStreams;
  });
  // Half of the mean, since what left were those used last.
  return next ? *next > horizon_ / 128 : IsLasting(chunk, id);
}

void Residency::NoteNeeded(Chunk* chunk, uint64_t id, uint64_t rounds) {
  chunk->needed_until = std::max(chunk->needed_until, now_ + rounds * windows_.length());
  chunk->needed_by = id;
}

void Residency::NoteLeft(Chunk* chunk) {
  if (chunk->cold || !chunk->content || chunk->left_window == windows_.number() || !IsLasting(*chunk, 0)) return;
  chunk->cheaper_remote = chunk->left_window && chunk->left_window + 2 >= windows_.number();
  chunk->left_window = windows_.number();
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
  if (!chunk.cheaper_remote || chunk.left_window + 2 < windows_.number()) return false;
  if (chunk.link_window == windows_.number()) return chunk.link_before <= kMost;
  return chunk.link_window + 1 < windows_.number() || chunk.link_bytes <= kMost;
}

// Whether a round passes over it so often, where departures are fast, that it had better come and go, whatever its
// launches could do with it in host memory: three passes there take 70 ms a GiB, to come and to go takes 50 beside
// everything else. An optimizer's second moments are such, its first ones not.
bool Residency::CheaperSwapped(const Chunk& chunk) const {
  constexpr uint64_t kLeast = kChunkBytes * 29 / 10;
  // Not before it is known when it is needed.
  if (prefetch_ != Prefetch::kPredict || slow_write_back_ || chunk.born + windows_.length() * 15 / 8 > now_ ||
      chunk.in_place_until > now_) {
    return false;
  }
  if (chunk.link_window == windows_.number()) return std::max(chunk.link_before, chunk.link_bytes) >= kLeast;
  return chunk.link_window + 1 == windows_.number() && chunk.link_bytes >= kLeast;
}

// It is brought for a launch that needs it on the card: the mapping would only make its next departure dearer, unless
// it is used in host memory in nearly every round all the same. What comes and goes was used there by launches that the
// card may not have reached yet: without the mapping these would fault.
void Residency::Unmap(Chunk* chunk) {
  if (CheaperSwapped(*chunk)) return;
  if (!IsLasting(*chunk, 0) || chunk->host_window + 2 <= windows_.number()) UnmapRemote(chunk);
}

void Residency::MapInHost(Chunk* chunk) {
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
bool Residency::IsBeingTried(const Chunk& chunk) {
  return chunk.tried && std::any_of(std::begin(chunk.use), std::end(chunk.use),
                                    [this](const Mark& use) { return use.stream && !timeline_->Done(use); });
}

// Where in set_ the large operand lies beside which the launch names little else; nothing: there is none. A product
// reads an operand once for 256 rows of the other, so such launches pass over it once or twice, or use a part of it.
std::pair<size_t, size_t> Residency::Dominant() const {
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

void Residency::LeaveInHost(StreamId stream, uint64_t id, bool oversize) {
  using Verdict = LaunchClassifier::Verdict;
  const bool duplicates =
      std::all_of(missing_.begin(), missing_.end(), [this](const Chunk* chunk) { return MayDuplicate(*chunk); });
  const Verdict verdict = host_access_.Of(id, oversize, now_, duplicates);
  std::erase_if(missing_, [this](const Chunk* chunk) { return IsBeingTried(*chunk); });
  uint64_t stays = 0;
  if (!host_access_.Refused(id, oversize)) {
    stays = kChunkBytes *
            std::erase_if(missing_, [&](Chunk* chunk) { return !IsDiscarded(chunk, stream) && StaysCold(chunk, id); });
  }
  // The host had to wait for a try, so it is far ahead: all that it queues stands behind one that crawls.
  const bool waited = host_access_.Crowded(id);
  host_access_.Missed(id, oversize, missing_.size() * kChunkBytes, capacity_);
  if (verdict == Verdict::kFetch) return;
  const bool faults = verdict == Verdict::kFaults || verdict == Verdict::kTryFaults;
  const bool trial = verdict == Verdict::kTry || verdict == Verdict::kTryFaults;
  const uint64_t need = missing_.size() * kChunkBytes;
  const uint64_t resident = set_.size() * kChunkBytes - need;
  uint64_t most = kNever;
  bool commuting = false;  // only what cheaper_remote stays
  if (trial) {
    if (!oversize) {
      const uint64_t room = Room(stream);
      // Nothing has to leave for it now; but of what has come and gone so far something will.
      commuting = room >= need || room + DeadRoom(need - room, stream) >= need;
      const auto cheaper_remote = [this](const Chunk* chunk) { return CheaperRemote(*chunk); };
      if (commuting && (faults || std::none_of(missing_.begin(), missing_.end(), cheaper_remote))) return;
    }
    // By faults all of what cannot be held, so that nothing else takes its time, and nothing is brought that it may not
    // touch.
    if (!oversize || !faults) {
      most = oversize ? set_.size() * kChunkBytes - RoundDown(capacity_, kChunkBytes)
                      : LaunchClassifier::TryBytes(verdict, resident);
    }
    // For a lookup its whole table would be brought. Not any more once a launch has re-read what it was tried with.
    if (!oversize && !faults && !waited && !host_access_.tries().slow && Dominant().second) most = kNever;
  }
  bool blocked = false;
  RemoteShare share;
  if (verdict == Verdict::kFaults && oversize) share = host_access_.Share(id, need);
  uint64_t mapped = 0, in_place = 0;
  // More uses than this between two rounds cost more over the link than to bring it and to send something away: 24 ms a
  // GiB each time, where those take 92; but a launch over a list of tensors names each of them whole and passes over a
  // part (PyTorch's optimizers).
  constexpr uint16_t kMaxUses = 20;
  uint64_t uses = 0;  // bytes that it names of what stays
  std::erase_if(missing_, [&](Chunk* chunk) {
    // What was discarded or never written has no host pages worth using: to bring it moves nothing.
    if (!chunk->content || IsDiscarded(chunk, stream)) return false;
    if ((oversize ? stays : uses) >= most || (faults && MayDuplicate(*chunk))) return false;
    if (!oversize && verdict != Verdict::kFaults &&
        !(trial ? IsLasting(*chunk, id) : StaysInHost(queues_[stream].predictor, *chunk, id)))
      return false;
    if (commuting && !CheaperRemote(*chunk)) return false;
    // What is still on its way out would be found on the card. Of a launch that cannot be held something always is.
    if (trial && !oversize && IsLeaving(*chunk)) {
      blocked = true;
      return false;
    }
    // It made place when less of it was used, for kernels that nobody timed: they may read it more than once.
    if (trial && chunk->cold && !chunk->asked) return false;
    if (chunk->host_window != windows_.number()) {
      chunk->host_window = host_window_ = windows_.number();
      chunk->host_uses = 0;
    }
    // What faults have brought of it would stay on the card, and nobody would count it: that leaves first.
    if (oversize && !trial && !faults && chunk->scattered && !chunk->mapped_remote) {
      scattered_.Hasten();
      left_launch_ = chunk->left_at = now_;
      return false;
    }
    if (share.every && chunk->base / kChunkBytes % share.every == 0 &&
        (chunk->mapped_remote || (mapped + kChunkBytes <= share.most && !chunk->scattered))) {
      if (!chunk->mapped_remote) mapped += kChunkBytes;
      in_place += kChunkBytes;
      stays += kChunkBytes;
      MapInHost(chunk);
      return true;
    }
    if (faults && (trial || !chunk->mapped_remote || chunk->host_uses == 0)) {
      UnmapRemote(chunk);
      chunk->left_at = now_;
      stays += kChunkBytes;
      uses += chunk->named_bytes;
      return false;
    }
    if (verdict == Verdict::kStreams && !oversize) {
      if (chunk->host_uses >= kMaxUses) {
        NoteNeeded(chunk, 0, 16);
        return false;
      }
      if (promote_ >= kChunkBytes && (!chosen_ || chunk->hot_window == windows_.number())) {
        promote_ -= kChunkBytes;
        return false;
      }
    }
    chunk->tried = trial;
    ++chunk->host_uses;
    stays += kChunkBytes;
    uses += chunk->named_bytes;
    MapInHost(chunk);
    return true;
  });
  if (stays && faults) {
    ++stats_.left_launches;
    left_launch_ = now_;
  }
  if (mapped) host_access_.Mapped(id, mapped);
  // Not all of it can be mapped at once, and in the mean as much of each part is touched.
  const bool part = share.every && in_place > need / share.every / 2;
  const uint32_t every = !faults ? 1 : part ? share.every : 0;
  if (stays && (trial || host_access_.Due(id, oversize, every)))
    plan_.probe = {id, stays, resident, oversize, faults, duplicates, trial, every};
  if (stays && trial) host_access_.Trying(plan_.probe, now_);
  if (blocked && !stays) host_access_.Blocked(id);
}

void Residency::NoteFaultResidue(Extent block) {
  chunks_.ForEach(block, [this](Chunk& chunk) {
    if (!chunk.resident && !chunk.mapped_remote && chunk.live_bytes != 0) scattered_.Add(&chunk);
  });
  scattered_.Hasten();
}

void Residency::NoteScattered(uint64_t bytes) {
  stats_.fault_bytes += bytes;
  scattered_.NoteBytes(bytes, now_);
}

// Whether the work is over that used what is to leave.
bool Residency::IsSweepFree() {
  if (fences_->open() == scattered_behind_) fences_->Close();
  if (fences_->open() == scattered_behind_) return true;  // while a capture forbids marks nobody knows
  if (!fences_->Done(scattered_behind_)) return false;
  fences_->Close();  // of what more than two streams used since
  return true;
}

void Residency::PauseResidueSweep(uint64_t least) {
  constexpr uint64_t kLongest = uint64_t{1} << 16;
  sweep_rest_ = std::max(sweep_rest_, least);
  sweep_rests_until_ = now_ + sweep_rest_;
  sweep_rest_ = std::min(2 * sweep_rest_, kLongest);
  sweeps_in_vain_ = 0;
}

// Sends away behind the launch what faults have scattered, once that is due. What other streams still use does not
// leave: then the sweep is made up for as soon as all that was queued by the next launch is over, for what these bring
// lies there beyond the budget, and nobody may name it again.
void Residency::Sweep(StreamId stream) {
  constexpr uint32_t kInVain = 4;  // a launch may come between the look and the sweep
  const bool again = scattered_behind_ && IsSweepFree();
  if (!again && !scattered_.IsDue(now_)) return;
  if (again) scattered_behind_ = 0;
  bool in_use = false, went = false;
  scattered_.Sweep(&chunks_, now_, [&](Chunk* chunk) {
    const bool stays = chunk->resident || chunk->mapped_remote || chunk->live_bytes == 0;  // what is dead is discarded
    // One queue at a time: it is known of one alone when it is done.
    const bool leaving = IsLeaving(*chunk) && chunk->departure_stream != stream;
    if (!stays && (leaving || chunk->two_ways_out)) return false;
    if (!stays && !MayLeave(*chunk, stream)) {
      in_use = true;
      return false;
    }
    if (stays) {
      FaultResidue::Remove(chunk);
    } else {
      LeaveBehind(chunk);
      went = true;
    }
    return true;
  });
  if (went) {
    sweep_rest_ = kSweepRest;
    sweeps_in_vain_ = 0;
  } else if (again && in_use && ++sweeps_in_vain_ == kInVain) {
    PauseResidueSweep(kSweepRest);
  }
  // Closed by whoever looks next: behind the launch.
  if (in_use && !scattered_behind_) scattered_behind_ = fences_->Use();
}

}  // namespace sluice::policy
