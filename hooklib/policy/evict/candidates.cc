#include "hooklib/policy/evict/candidates.h"

#include <iterator>

namespace sluice::policy {

void Candidates::RemoveArena(Extent arena) {
  const auto gone = [&arena](const Chunk* chunk) { return chunk->base >= arena.base && chunk->base < arena.end(); };
  std::erase_if(unranked_, gone);
  std::erase_if(heap_, [&gone](const Candidate& candidate) { return gone(candidate.chunk); });
  std::make_heap(heap_.begin(), heap_.end());
}

bool Candidates::Next(Candidate* first) {
  for (;;) {
    if (heap_.empty()) spares_ = false;
    if (!spares_ && !spared_.empty() && (heap_.empty() || heap_.front() < spared_.front())) {
      *first = spared_.front();
      spared_.erase(spared_.begin());
      first->chunk->passed = false;
    } else if (!heap_.empty()) {
      std::pop_heap(heap_.begin(), heap_.end());
      *first = heap_.back();
      heap_.pop_back();
    } else {
      return false;
    }
    if (first->stamp == first->chunk->rank_stamp && first->chunk->resident) return true;
  }
}

void Candidates::Keep(const Candidate& candidate, std::vector<Candidate>* in) {
  candidate.chunk->passed = true;
  // The first first, as they come but for what was ranked meanwhile.
  auto place = in->end();
  while (place != in->begin() && *std::prev(place) < candidate) --place;
  in->insert(place, candidate);
}

void Candidates::ForgetOutdated() {
  for (std::vector<Candidate>* list : {&spared_, &aside_}) {
    std::erase_if(*list, [](const Candidate& candidate) {
      if (candidate.stamp == candidate.chunk->rank_stamp) return false;
      candidate.chunk->passed = false;
      return true;
    });
  }
}

void Candidates::TakeBack() {
  for (std::vector<Candidate>* list : {&spared_, &aside_}) {
    for (const Candidate& candidate : *list) candidate.chunk->passed = false;
    list->clear();
  }
}

void Candidates::End() {
  const size_t count = spared_.size() + aside_.size();
  if (count == 0) return;
  const bool many = count > heap_.size() / 8;
  for (const std::vector<Candidate>* list : {&spared_, &aside_}) {
    for (const Candidate& candidate : *list) Push(candidate, many);
  }
  if (many) std::make_heap(heap_.begin(), heap_.end());
  TakeBack();
}

}  // namespace sluice::policy
