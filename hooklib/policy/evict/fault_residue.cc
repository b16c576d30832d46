#include "hooklib/policy/evict/fault_residue.h"

#include <algorithm>
#include <utility>

namespace sluice::policy {

void FaultResidue::Add(Chunk* chunk) {
  if (!chunk->has_contents) sweep_interval_ = kFirstSweepLaunches;
  chunk->has_contents = chunk->written_back = true;
  if (chunk->in_fault_residue) return;
  chunk->in_fault_residue = true;
  chunks_.push_back(chunk->base);
}

void FaultResidue::NoteFaultedIn(std::span<const Va> pages) {
  if (chunks_.empty()) return;
  Va before = kNever;
  for (const Va page : pages) {
    const Va chunk = RoundDown(page, kChunkBytes);
    if (chunk != std::exchange(before, chunk)) expected_bytes_ += kChunkBytes;
  }
}

bool FaultResidue::IsDue(uint64_t now) {
  const uint64_t counted = counted_bytes_ - std::min(counted_bytes_, counted_at_sweep_);
  if (std::max(expected_bytes_, counted) >= kMaxBytes || !IsRecent(now)) return true;
  if (now < swept_at_ + sweep_interval_) return false;
  sweep_interval_ = std::min(2 * sweep_interval_, kRecentLaunches);
  return true;
}

}  // namespace sluice::policy
