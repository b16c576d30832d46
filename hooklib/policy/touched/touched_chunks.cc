// Residency, touched chunks: chunks that launches name and do not touch are left out of their sets (touch_sampler.h).
//
// A chunk that is left out is neither fetched nor used remotely, and it does not protect its neighbours' room. If a
// launch touches it after all, it faults: the driver's records say so, and it is resident from then on. Discarded
// chunks are never left out, since they must not be written by faults.
#include "hooklib/policy/touched/touched_chunks.h"

#include <algorithm>
#include <vector>

namespace sluice::policy {

namespace {
using memory::Touch;
constexpr uint32_t kUsesOfGraph = 2;                            // one replay is a whole iteration
constexpr uint64_t kMaxIdleRoom = uint64_t{64} << 20;           // less is free: launches compete for room
constexpr uint64_t kMaxIdleRoomOfLaunch = uint64_t{256} << 20;  // promotions leave 128 MiB free
constexpr uint32_t kMaxExploringReplays = 16;
constexpr uint64_t kMarginOfShare = 8;  // samples end where graphs need so much less than their share
// Since a chunk was touched, before it is tried again.
constexpr uint64_t kMinAgeLaunches = 1024, kMinAgeIterations = 32;
constexpr uint64_t kMinLackingBytes = uint64_t{32} << 20;  // less that an iteration lacks is not worth a fault
constexpr uint32_t kMaxGapIterations = 63;
constexpr uint32_t kStillIterations = 6, kSettledIterations = 32;  // of one length in a row, before chunks are tried
constexpr uint64_t kMinUnnamedLaunches = 1024, kUnnamedIterations = 4;  // of a sample that ends without a result
constexpr double kMaxTouchedOfLaunch = 32;                              // several launches' records are read at once
}  // namespace

// Whether the chunk may be tried first. Not where copies alone wrote it: such weights are duplicated, which a fault
// would end. Launches one by one wait until they would try a presumed chunk as a touched one: their caches grow.
bool TouchedChunks::MayTry(const Chunk& chunk, bool is_graph) const {
  const bool is_known = chunk.touch != Touch::kUnknown && (chunk.touch != Touch::kPresumed || !is_graph);
  return !is_known && chunk.has_contents() && chunk.live_bytes != 0 && !chunk.discarded() &&
         !chunk.reused_after_discard && !IsCopied(chunk) && !chunk.duplicate() && chunk.live_since + 1 < now_;
}

// The chunks of the set that are not left out.
size_t TouchedChunks::CountInSet() const {
  return static_cast<size_t>(
      std::count_if(set_.begin(), set_.end(), [](const Chunk* chunk) { return !TouchSampler::IsLeftOut(*chunk); }));
}

// Takes chunks out of the set that are not touched, and those that are tried from here on. Returns the hot chunks.
size_t TouchedChunks::LeaveOutUntouched(std::span<const Extent> extents, std::optional<size_t> hot_extents,
                                        const StreamQueues& queues, PlannedLaunch* launch, Seq seq) {
  size_t kept = 0;
  bool lacks_chunks = false;
  // One block may hold the caches of all layers: then each launch touches another part of it.
  const uint64_t sample_launches = hot_extents ? 0 : iterations_.length();
  const uint64_t room = hot_extents ? kMaxIdleRoom : kMaxIdleRoomOfLaunch;
  const bool full = resident_bytes_ - std::min(resident_bytes_, idle_bytes_) + room > capacity_;
  const uint64_t named_bytes = set_.size() * kChunkBytes;  // with the chunks that are left out
  const bool exceeds = named_bytes > launch->capacity;
  bool tries = launch->can_queue && full &&
               (hot_extents ? exceeds && launch->lacks_chunks
                            : launch_samples_.room && (!exceeds || CountInSet() * kChunkBytes <= launch->capacity));
  // Faults bring the touched chunks of such a launch as it is. Samples of resident chunks would only evict those.
  if (tries && !hot_extents && classifier_.ClassOf(launch->id, false, now_) == LaunchClassifier::AccessClass::kFaulting)
    tries = false;
  const bool left_to_faults = !hot_extents && exceeds && launch->can_queue && classifier_.LeftToFaults(launch->id);
  // A touched chunk is resident beyond the capacity until the next launch.
  const uint64_t capacity_chunks = launch->capacity / kChunkBytes;
  double touched =
      std::min(hot_extents ? TouchSampler::kMaxTouched : kMaxTouchedOfLaunch, static_cast<double>(capacity_chunks) / 8);
  const auto may_try_absent = [&](const Chunk& chunk) {
    return !chunk.resident() && !chunk.maybe_mapped() && MayTry(chunk, hot_extents.has_value());
  };
  for (size_t i = 0, from = 0; i < operands_.size(); ++i) {
    const size_t to = operands_[i].end;
    size_t absent = 0;
    for (size_t at = from; (tries || left_to_faults) && at < to; ++at) absent += may_try_absent(*set_[at]);
    size_t tried = 0;
    if (absent) tried = touched_.Allowance(extents[i], absent, &touched);
    // Spread evenly: every stride-th.
    const size_t stride = tried ? absent / tried : 0;
    size_t seen = tried ? now_ % stride : 0;
    for (size_t at = from; at < to; ++at) {
      Chunk* const chunk = set_[at];
      if (tried && may_try_absent(*chunk) && seen++ % stride == 0) {
        touched_.Begin(chunk, extents[i]);
        --tried;
      }
      if (TouchSampler::IsLeftOut(*chunk) && !chunk->discarded()) {
        if (chunk->touch == Touch::kSampled && !chunk->resident() && !IsEvicting(*chunk) && !IsEvictingElsewhere(chunk))
          touched_.NoteNamed(*chunk, {launch->stream, seq}, hot_extents ? kUsesOfGraph : 1, now_, sample_launches);
        chunk->named_at = 0;
        continue;
      }
      const bool is_own = chunk->fetch_stream() == launch->stream;
      lacks_chunks |= !chunk->resident() || (is_own ? chunk->fetch_op() > queues.awaited_in_op : chunk->discarded());
      set_[kept++] = chunk;
    }
    from = to;
    operands_[i].end = kept;
  }
  set_ = set_.first(kept);
  launch->lacks_chunks = lacks_chunks;
  if (!hot_extents && tries) {
    SampleResident(extents, launch, touched, &launch_samples_.room, false,
                   classifier_.TouchedShare(launch->id).IsLittle());
  } else if (const uint64_t fits = std::min(launch->capacity, share_bytes_), most = fits - fits / kMarginOfShare;
             hot_extents && launch->can_queue && named_bytes > fits && kept * kChunkBytes > most) {
    // Lent memory goes back: the need of a graph must be known before, or its lender waits for nothing. A need just
    // as large as the share would exceed it with each page that is used next.
    launch->exceeds_share = true;
    size_t over = set_.size() - most / kChunkBytes;
    SampleResident(extents, launch, touched, &over, true, false);
    // Its chunks are fetched for it: their faults would fill the records.
    launch->explores = over && touched_.explores() && explored_replays_ < kMaxExploringReplays;
    explored_replays_ += launch->explores;
  }
  if (!hot_extents || *hot_extents == 0) return 0;
  return operands_.empty() ? 0 : operands_[std::min(*hot_extents, operands_.size()) - 1].end;
}

// More is named than fits: `most` resident chunks of operands that may be untouched are evicted, and tried.
// `touched` and `sparse`: as in TouchSampler::Allowance.
void TouchedChunks::SampleResident(std::span<const Extent> extents, PlannedLaunch* launch, double touched, size_t* most,
                                   bool is_graph, bool sparse) {
  const uint64_t min_age = std::max(kMinAgeLaunches, kMinAgeIterations * iterations_.length());
  std::vector<Chunk*> unknown, old;
  const size_t before = *most;
  for (size_t i = 0, from = 0; i < operands_.size() && *most; from = operands_[i++].end) {
    if (extents[i].bytes < TouchSampler::kMinOperandBytes) continue;
    const bool tries_unknown = sparse || !touched_.IsTouchedWhole(extents[i]);
    unknown.clear();
    old.clear();
    for (size_t at = from; at < operands_[i].end; ++at) {
      Chunk* const chunk = set_[at];
      if (!chunk->resident() || !MayEvict(*chunk, launch->stream)) continue;
      const bool was_touched = chunk->touch == Touch::kTouched || chunk->touch == Touch::kPresumed;
      if (tries_unknown && MayTry(*chunk, is_graph)) {
        unknown.push_back(chunk);
      } else if (was_touched && chunk->touched_at + min_age < now_) {
        old.push_back(chunk);
      }
    }
    // Some of the unknown chunks, spread evenly, and those touched chunks that were so the longest ago.
    size_t allowed = touched_.Allowance(extents[i], std::min(*most, unknown.size()), &touched, sparse);
    const size_t stride = allowed ? unknown.size() / allowed : 1;
    for (size_t at = now_ % stride; allowed && at < unknown.size(); at += stride, --allowed, --*most)
      TryResident(unknown[at], extents[i], launch->stream);
    allowed = touched_.AllowanceOfOld(extents[i], std::min(*most, old.size()), &touched);
    std::sort(old.begin(), old.end(), [](const Chunk* a, const Chunk* b) { return a->touched_at < b->touched_at; });
    for (size_t at = 0; at < allowed; ++at, --*most) TryResident(old[at], extents[i], launch->stream);
  }
  if (*most == before) return;
  size_t kept = 0;
  for (size_t i = 0, from = 0; i < operands_.size(); ++i) {
    const size_t to = operands_[i].end;
    for (size_t at = from; at < to; ++at) {
      if (!TouchSampler::IsLeftOut(*set_[at]) || set_[at]->discarded()) set_[kept++] = set_[at];
    }
    from = to;
    operands_[i].end = kept;
  }
  set_ = set_.first(kept);
  launch->lacks_chunks |= plan_.now.out_op != 0;
}

void TouchedChunks::TryResident(Chunk* chunk, Extent operand, StreamId stream) {
  touched_.Begin(chunk, operand);
  chunk->named_at = 0;
  chunk->remote_iteration = 0;  // a promoted chunk is not evicted for want of room
  UnmapRemote(chunk);
  EvictChunk(chunk, stream, &plan_.now);
}

// At the end of an iteration: whether launches of the next one, that are no graphs, try chunks. They do while bytes are
// lacking, at once where the last tries found untouched chunks, and else ever more rarely.
void TouchedChunks::ScheduleSamples() {
  if (touched_.explores())
    touched_.EndUnnamed(now_, std::max(kMinUnnamedLaunches, kUnnamedIterations * iterations_.length()), &chunks_);
  const uint64_t all = stats_.bytes_in + stats_.remote_bytes;
  const uint64_t lacking = all - std::min(all, launch_samples_.lacked_bytes);  // the driver may have refused some
  launch_samples_.lacked_bytes = all;
  launch_samples_.room = 0;
  // Samples move bytes, and an exchange waits until nothing moves. So it comes first.
  const bool is_still = placement_.still_iterations > 1 && placement_.stats.demoted_bytes == 0;
  launch_samples_.alike = iterations_.length() == placement_.previous_length ? launch_samples_.alike + 1 : 0;
  // Where untouched chunks were found, samples are what ends the moves.
  const bool is_early = is_still || touched_.stats().untouched;
  const bool is_settled = launch_samples_.alike >= (is_early ? kStillIterations : kSettledIterations);
  if (!touched_.enabled() || lacking < kMinLackingBytes || !is_settled) return;
  touched_.NoteLacking(lacking);
  if (launch_samples_.pause) {
    --launch_samples_.pause;
    return;
  }
  const uint64_t untouched = touched_.stats().untouched;
  launch_samples_.gap =
      untouched != launch_samples_.untouched ? 0 : std::min(2 * launch_samples_.gap + 1, kMaxGapIterations);
  launch_samples_.untouched = untouched;
  launch_samples_.pause = launch_samples_.gap;
  launch_samples_.room = lacking / kChunkBytes;
  NoteChange();  // of launches with steady sets, too
}

void TouchedChunks::MarkTouchesOver() {
  touched_.MarkOver([this](const Mark& mark) { return timeline_->Done(mark); });
}

// An untouched chunk was touched. Others that will be, too, are fetched with the next launch that names them.
void TouchedChunks::TakeCompanions(const Chunk& touched) {
  const auto untouched = [this](Va base) {
    Chunk* const chunk = chunks_.Find(base);
    return chunk && chunk->touch == Touch::kUntouched ? chunk : nullptr;
  };
  for (const Va base : touched_.companions().GroupOf(touched.base)) {
    if (Chunk* const chunk = untouched(base)) touched_.Return(chunk, now_);
  }
  for (const Va base : touched_.companions().AlikeOf(touched.base)) {
    if (Chunk* const chunk = untouched(base)) touched_.Presume(chunk, now_);
  }
  // Caches grow upwards.
  if (Chunk* const chunk = untouched(touched.base + kChunkBytes)) touched_.Presume(chunk, now_);
}

void TouchedChunks::ConcludeTouches(std::span<const Va> pages, bool lost) {
  for (const Va page : pages) {
    Chunk* const chunk = chunks_.Find(page);
    if (!chunk) continue;
    const bool is_late = chunk->touch == Touch::kUntouched;
    const bool was_left_out = touched_.NoteFault(chunk, now_);
    if (chunk->resident()) continue;
    if (!was_left_out) {
      TakeFaultedIn(chunk);
      continue;
    }
    Settle();
    SetResident(chunk, true);
    chunk->last_use = now_;
    chunk->EndFetch();
    candidates_.Unrank(chunk);
    if (chunk->has_contents()) stats_.fault_bytes += kChunkBytes;
    touched_late_.push_back(chunk->base);
    if (is_late) TakeCompanions(*chunk);
  }
  if (lost) {
    touched_.Repeat([this](Va base) {
      Chunk* const chunk = chunks_.Find(base);
      if (chunk && !chunk->resident()) fault_residue_.Add(chunk);
    });
    fault_residue_.SweepSoon();
  } else {
    touched_.Conclude(&chunks_);
  }
}

// A launch that touches another page of such a chunk would fault again. One that another stream's queue is evicting
// waits for a later launch.
void TouchedChunks::FetchTouched(StreamId stream) {
  std::erase_if(touched_late_, [&](Va base) {
    Chunk* const chunk = chunks_.Find(base);
    if (!chunk || !chunk->resident() || chunk->is_whole() || chunk->fetch_op()) return true;
    if (IsEvictingBeside(chunk, stream)) return false;
    chunk->FetchWhole();
    FetchChunk(chunk, stream, &plan_.now);
    NotePrefetched(chunk);
    return true;
  });
}

void TouchedChunks::ForgetTouches() {
  touched_.set_enabled(false);
  chunks_.ForAll([this](Chunk& chunk) { touched_.Forget(&chunk); });
}

}  // namespace sluice::policy
