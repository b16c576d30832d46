#include "hooklib/policy/residency_figures.h"

#include <algorithm>

namespace sluice::policy {

uint64_t ResidencyFigures::MissingBytes(std::span<const Extent> set) {
  missing_.clear();
  for (const Extent& extent : set) {
    chunks_.ForEach(extent, [this](Chunk& chunk) {
      if (!chunk.resident()) missing_.push_back(&chunk);
    });
  }
  // Small tensors share a chunk.
  std::sort(missing_.begin(), missing_.end());
  const auto last = std::unique(missing_.begin(), missing_.end());
  return static_cast<uint64_t>(last - missing_.begin()) * kChunkBytes;
}

uint64_t ResidencyFigures::BytesToEvict(std::span<const Extent> set) {
  const uint64_t missing = MissingBytes(set);
  const uint64_t busy = resident_bytes_ - std::min(resident_bytes_, idle_bytes_);
  const uint64_t room = capacity_ - std::min(capacity_, busy);
  return missing - std::min(missing, room);
}

uint64_t ResidencyFigures::EvictingBytes() {
  uint64_t bytes = 0;
  for (auto& [stream, queues] : queues_) {
    DrainOps(&queues, stream);
    for (const auto& [op, n] : queues.evictions) bytes += n;
  }
  return evicting_bytes_ = bytes;
}

bool ResidencyFigures::FetchesWithinBudget() {
  bool any = false;
  for (auto& [stream, queues] : queues_) {
    DrainOps(&queues, stream);
    any |= !queues.fetches.empty();
    if (!timeline_->OutDone(stream, queues.evict_behind_op)) return false;
  }
  return any && resident_bytes_ <= capacity_;
}

uint64_t ResidencyFigures::fetching_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [stream, queues] : queues_) {
    for (const auto& [op, n] : queues.fetches) bytes += n;
  }
  return bytes;
}

bool ResidencyFigures::HasEvictionsInFlight(std::optional<StreamId> beside) const {
  return std::any_of(queues_.begin(), queues_.end(), [&](const auto& one) {
    return one.first != beside && !timeline_->OutDone(one.first, one.second.out_op);
  });
}

uint64_t ResidencyFigures::NextTransferBytes(StreamId stream) {
  StreamQueues& queues = queues_[stream];
  DrainOps(&queues, stream);
  return (queues.evictions.empty() ? 0 : queues.evictions.front().second) +
         (queues.fetches.empty() ? 0 : queues.fetches.front().second);
}

uint64_t ResidencyFigures::wrong_predictions() const {
  uint64_t sum = 0;
  for (const auto& [stream, queues] : queues_) sum += queues.predictor.wrong();
  return sum;
}

bool ResidencyFigures::HasAllResident() const {
  return std::all_of(set_.begin(), set_.end(), [this](const Chunk* chunk) {
    return chunk->mapped_remote() || (chunk->resident() && chunk->demand_paged_at != now_);
  });
}

void ResidencyFigures::DrainOps(StreamQueues* queues, StreamId stream) {
  while (!queues->evictions.empty() && timeline_->OutDone(stream, queues->evictions.front().first))
    queues->evictions.pop_front();
  while (!queues->fetches.empty() && timeline_->InDone(stream, queues->fetches.front().first)) {
    queues->fetches.pop_front();
  }
}

}  // namespace sluice::policy
