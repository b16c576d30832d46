// Residency, beside the launches: requests of the agent (a budget that shrank, a time slice that begins).
#include <algorithm>

#include "hooklib/policy/residency.h"

namespace sluice::policy {

const Plan& Residency::Shrink(StreamId queue, uint64_t bytes) {
  ClearPlan();
  ++now_;
  in_order_ = false;
  if (resident_bytes_ <= bytes) return plan_;
  const uint64_t wanted = resident_bytes_ - bytes;
  const uint64_t freed = MakeRoom(queue, wanted, 0, &plan_.now);
  // A chunk with more users than are remembered is evicted behind a fence.
  if (freed < wanted) fences_->Close();
  FinishStep(queue, &plan_.now);
  Merge(&plan_.discard);
  return plan_;
}

const Plan& Residency::RestoreWorkingSet(StreamId queue, uint64_t bytes, uint64_t since) {
  Settle();
  ClearPlan();
  std::vector<Chunk*> wanted;
  chunks_.ForAll([&](Chunk& chunk) {
    if (chunk.resident() || chunk.live_bytes == 0 || !chunk.has_contents() || chunk.last_use < since) return;
    if (TouchSampler::IsLeftOut(chunk)) return;
    if (IsEvicting(chunk) || IsEvictingElsewhere(&chunk)) return;
    wanted.push_back(&chunk);
  });
  const auto count =
      static_cast<size_t>(std::min({uint64_t{wanted.size()}, bytes / kChunkBytes, Room(queue) / kChunkBytes}));
  // The oldest chunk of the working set is needed next: work repeats itself. Chunks that no plan has seen go by
  // address.
  const auto middle = wanted.begin() + static_cast<std::ptrdiff_t>(count);
  const auto by_use = [](const Chunk* a, const Chunk* b) {
    return a->last_use != b->last_use ? a->last_use < b->last_use : a->base < b->base;
  };
  std::nth_element(wanted.begin(), middle, wanted.end(), by_use);
  std::sort(wanted.begin(), middle, by_use);
  for (size_t i = 0; i < count; ++i) {
    FetchResident(wanted[i], queue, &plan_.now);
    NotePrefetched(wanted[i]);
    candidates_.Unrank(wanted[i]);
  }
  FinishStep(queue, &plan_.now);
  return plan_;
}

std::vector<Extent> Residency::WrittenParts(Extent range) {
  Settle();
  std::vector<Extent> parts;
  chunks_.ForEach(range, [&](const Chunk& chunk) {
    if (chunk.discarded() && !chunk.has_contents()) return;
    const Va begin = std::max(range.base, chunk.base), end = std::min(range.end(), chunk.base + kChunkBytes);
    if (parts.empty() || parts.back().end() != begin) parts.push_back({begin, 0});
    parts.back().bytes += end - begin;
  });
  return parts;
}

void Residency::NoteUnseenUse() {
  Settle();
  ++now_;
  const Epoch epoch = fences_->Use();
  chunks_.ForAll([epoch](Chunk& chunk) {
    if (chunk.resident()) chunk.use_epoch = epoch;
    if (chunk.resident() || chunk.live_bytes > 0) chunk.NoteContents();
  });
}

}  // namespace sluice::policy
