#include "hooklib/policy/evict/candidates.h"

#include <iterator>

namespace sluice::policy {

void Candidates::RemoveArena(Extent arena) {
  const auto is_inside = [&arena](const Chunk* chunk) {
    return chunk->base >= arena.base && chunk->base < arena.end();
  };
  std::erase_if(unranked_, is_inside);
  std::erase_if(heap_, [&is_inside](const Candidate& candidate) { return is_inside(candidate.chunk); });
  std::make_heap(heap_.begin(), heap_.end());
}

bool Candidates::Next(Candidate* first) {
  for (;;) {
    if (heap_.empty()) protects_ = false;
    if (!protects_ && !protected_.empty() && (heap_.empty() || heap_.front() < protected_.front())) {
      *first = protected_.front();
      protected_.erase(protected_.begin());
      first->chunk->set_aside = false;
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

void Candidates::SetAside(const Candidate& candidate, std::vector<Candidate>* in) {
  candidate.chunk->set_aside = true;
  // In order. They arrive in order, except for candidates that were ranked meanwhile.
  auto place = in->end();
  while (place != in->begin() && *std::prev(place) < candidate) --place;
  in->insert(place, candidate);
}

void Candidates::DropOutdated() {
  for (std::vector<Candidate>* list : {&protected_, &deferred_}) {
    std::erase_if(*list, [](const Candidate& candidate) {
      if (candidate.stamp == candidate.chunk->rank_stamp) return false;
      candidate.chunk->set_aside = false;
      return true;
    });
  }
}

void Candidates::ReleaseAll() {
  for (std::vector<Candidate>* list : {&protected_, &deferred_}) {
    for (const Candidate& candidate : *list) candidate.chunk->set_aside = false;
    list->clear();
  }
}

void Candidates::End() {
  const size_t count = protected_.size() + deferred_.size();
  if (count == 0) return;
  const bool many = count > heap_.size() / 8;
  for (const std::vector<Candidate>* list : {&protected_, &deferred_}) {
    for (const Candidate& candidate : *list) Push(candidate, many);
  }
  if (many) std::make_heap(heap_.begin(), heap_.end());
  ReleaseAll();
}

}  // namespace sluice::policy
