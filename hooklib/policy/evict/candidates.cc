#include "hooklib/policy/evict/candidates.h"

#include <iterator>

namespace sluice::policy {

void Candidates::RemoveArena(Extent arena) {
  const auto is_inside = [&arena](const Chunk* chunk) {
    return chunk->base >= arena.base && chunk->base < arena.end();
  };
  std::erase_if(unranked_, is_inside);
  for (auto* heap : {&heap_, &unpredicted_})
    std::erase_if(*heap, [&is_inside](const Candidate& candidate) { return is_inside(candidate.chunk); });
  MakeHeaps();
}

void Candidates::DropOutdatedTop(std::vector<Candidate>* heap) {
  const auto is_outdated = [](const Candidate& top) {
    return top.stamp != top.chunk->rank_stamp || !top.chunk->resident();
  };
  while (!heap->empty() && is_outdated(heap->front())) {
    std::pop_heap(heap->begin(), heap->end());
    heap->pop_back();
  }
}

bool Candidates::Next(Candidate* first, uint64_t now) {
  for (;;) {
    DropOutdatedTop(&heap_);
    DropOutdatedTop(&unpredicted_);
    std::vector<Candidate>* heap = &heap_;
    if (heap_.empty() || (!unpredicted_.empty() && unpredicted_.front().NeededAt(now) > heap_.front().NeededAt(now)))
      heap = &unpredicted_;
    if (heap->empty()) protects_ = false;
    const bool has_protected = !protects_ && !protected_.empty();
    if (has_protected && (heap->empty() || heap->front().NeededAt(now) < protected_.front().NeededAt(now))) {
      *first = protected_.front();
      protected_.erase(protected_.begin());
      first->chunk->set_aside = false;
    } else if (!heap->empty()) {
      std::pop_heap(heap->begin(), heap->end());
      *first = heap->back();
      heap->pop_back();
    } else {
      return false;
    }
    if (first->stamp == first->chunk->rank_stamp && first->chunk->resident()) return true;
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
  const bool many = count > (heap_.size() + unpredicted_.size()) / 8;
  for (const std::vector<Candidate>* list : {&protected_, &deferred_}) {
    for (const Candidate& candidate : *list) Push(candidate, many);
  }
  if (many) MakeHeaps();
  ReleaseAll();
}

}  // namespace sluice::policy
