#include "hooklib/policy/evict/fault_residue.h"

#include <algorithm>
#include <utility>

namespace sluice::policy {

void FaultResidue::Add(Chunk* chunk) {
  if (!chunk->content) sweep_after_ = kFirstSweep;
  chunk->content = chunk->sent = true;
  if (chunk->scattered) return;
  chunk->scattered = true;
  chunks_.push_back(chunk->base);
}

void FaultResidue::NoteFaultedIn(std::span<const Va> pages) {
  if (chunks_.empty()) return;
  Va before = kNever;
  for (const Va page : pages) {
    const Va chunk = RoundDown(page, kChunkBytes);
    if (chunk != std::exchange(before, chunk)) bytes_ += kChunkBytes;
  }
}

bool FaultResidue::IsDue(uint64_t now) {
  const uint64_t counted = counted_ - std::min(counted_, counted_before_);
  if (std::max(bytes_, counted) >= kMost || !IsRecent(now)) return true;
  if (now < swept_at_ + sweep_after_) return false;
  sweep_after_ = std::min(2 * sweep_after_, kRecent);
  return true;
}

}  // namespace sluice::policy
