#include "hooklib/policy/evict/fault_residue.h"

#include <algorithm>
#include <utility>

namespace sluice::policy {

void FaultResidue::Add(Chunk* chunk) {
  if (!chunk->has_contents()) {
    sweep_interval_ = kFirstSweepLaunches;
    is_counted_ = false;
  }
  chunk->NoteContents();
  chunk->written_back = true;
  if (chunk->has_fault_residue()) return;
  chunk->NoteFaultResidue();
  List(chunk);
}

void FaultResidue::NoteFaultedIn(std::span<const Va> pages) {
  if (chunks_.empty()) return;
  // A fault brings 64 KiB around its page, or more. Parts with contents are counted.
  const uint64_t part_bytes = counts_ ? uint64_t{64} << 10 : kChunkBytes;
  Va before = kNever;
  for (const Va page : pages) {
    const Va part = RoundDown(page, part_bytes);
    if (part != std::exchange(before, part)) expected_bytes_ += part_bytes;
  }
}

// The expected bytes are the most that faults can have brought in the launches' time. Where launches are slow for
// another reason, each sweep would find next to nothing, and itself delay the launches that are timed.
void FaultResidue::Calibrate() {
  if (!counts_ || !is_counted_) return;
  const uint64_t counted = counted_bytes_ - std::min(counted_bytes_, counted_at_sweep_);
  if (counted >= std::max(expected_bytes_, kMaxBytes) / 2) {
    distrust_ = 0;
  } else if (expected_bytes_ >= kMaxBytes) {
    distrust_ = std::min(distrust_ + 1, kMaxDistrust);
  }
}

bool FaultResidue::IsDue(uint64_t now) {
  const uint64_t counted = counted_bytes_ - std::min(counted_bytes_, counted_at_sweep_);
  if (sweep_soon_ || std::max(expected_bytes_, counted) >= kMaxBytes || !IsRecent(now)) return true;
  if (now < swept_at_ + sweep_interval_) return false;
  sweep_interval_ = std::min(2 * sweep_interval_, kRecentLaunches);
  return true;
}

}  // namespace sluice::policy
