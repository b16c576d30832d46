// Residency, fault residue (fault_residue.h): the sweep that evicts it behind a launch.
#include <algorithm>

#include "hooklib/policy/evict/eviction.h"

namespace sluice::policy {

void Eviction::NoteFaultResidue(Extent block) {
  chunks_.ForEach(block, [this](Chunk& chunk) {
    if (!chunk.resident() && !chunk.mapped_remote() && chunk.live_bytes != 0) fault_residue_.Add(&chunk);
  });
  fault_residue_.SweepSoon();
}

void Eviction::NoteFaultResidueBytes(uint64_t bytes) {
  stats_.fault_bytes += bytes;
  fault_residue_.NoteBytes(bytes, now_);
}

// Whether the work that used the residue is over.
bool Eviction::IsSweepReady() {
  if (fences_->open() == sweep_fence_) fences_->Close();
  if (fences_->open() == sweep_fence_) return true;  // not known while a capture forbids marks
  if (!fences_->Done(sweep_fence_)) return false;
  fences_->Close();  // of chunks with more than two users since
  return true;
}

void Eviction::PauseResidueSweep(uint64_t min_launches) {
  constexpr uint64_t kMaxPauseLaunches = uint64_t{1} << 16;
  sweep_pause_ = std::max(sweep_pause_, min_launches);
  sweep_paused_until_ = now_ + sweep_pause_;
  sweep_pause_ = std::min(2 * sweep_pause_, kMaxPauseLaunches);
  failed_sweeps_ = 0;
}

// Evicts fault residue behind the launch, once that is due. Chunks that other streams still use stay. Then the sweep is
// repeated as soon as all work queued before the next launch is over: the pages lie beyond the budget, and no launch
// may name them again.
void Eviction::SweepFaultResidue(StreamId stream) {
  constexpr uint32_t kMaxFailedSweeps = 4;  // a launch may be queued between the question and the sweep
  const bool again = sweep_fence_ && IsSweepReady();
  if (!again && !fault_residue_.IsDue(now_)) return;
  if (again) sweep_fence_ = 0;
  bool is_used = false, evicted = false;
  fault_residue_.Sweep(&chunks_, now_, [&](Chunk* chunk) {
    if (chunk->live_bytes == 0) return true;       // to be discarded; listed again if it is reused before
    if (chunk->has_leave_pending()) return false;  // evicted behind this very launch, and perhaps not for good
    // One queue at a time: an eviction's end is known of one queue alone.
    if (IsEvictingBeside(chunk, stream)) return false;
    if (!MayEvict(*chunk, stream)) {
      is_used = true;
      return false;
    }
    EvictBehind(chunk, stream);
    return evicted = true;
  });
  if (evicted) {
    sweep_pause_ = kSweepPauseLaunches;
    failed_sweeps_ = 0;
  } else if (again && is_used && ++failed_sweeps_ == kMaxFailedSweeps) {
    PauseResidueSweep(kSweepPauseLaunches);
  }
  // IsSweepReady closes it, behind the launch.
  if (is_used && !sweep_fence_) sweep_fence_ = fences_->Use();
}

// The chunk is evicted as soon as the launch, which is in `stream`, is over. Where faults of other streams' work may
// bring it again, a sweep evicts it once more.
void Eviction::EvictBehind(Chunk* chunk, StreamId stream) {
  BeginEviction(chunk, stream, kNever);
  plan_.evict_after.push_back({chunk->base, kChunkBytes});
  evicted_behind_.push_back(chunk);
  if (chunk->has_fault_residue() && !IsUsedElsewhere(*chunk)) chunk->EndFaultResidue();
  chunk->NoteContents();
  chunk->written_back = true;
}

}  // namespace sluice::policy
