// Residency, the steps of a plan: their numbers, their order and their extents.
#include <algorithm>

#include "hooklib/policy/residency.h"

namespace sluice::policy {

void Residency::ClearWholePlan() {
  plan_.Clear();
  evicted_behind_.clear();
}

void Residency::DrainOps(StreamQueues* queues, StreamId stream) {
  while (!queues->evictions.empty() && timeline_->OutDone(stream, queues->evictions.front().first))
    queues->evictions.pop_front();
  while (!queues->fetches.empty() && timeline_->InDone(stream, queues->fetches.front().first)) {
    queues->fetches.pop_front();
  }
}

// Evictions behind the launch are queued after all other steps of its plan, so they have the last number. A wait for an
// earlier number does not include them, and no wait for them is possible before they are queued.
void Residency::NumberEvictAfter(StreamQueues* queues, bool graph) {
  Merge(&plan_.evict_after);
  plan_.evict_after_op = ++queues->out_op;
  for (Chunk* chunk : evicted_behind_) chunk->evict_op = plan_.evict_after_op;
  stats_.bytes_out += evicted_behind_.size() * kChunkBytes;
  queues->graph_out_op = graph ? plan_.evict_after_op : 0;
  queues->bytes_beside_graph = 0;
}

void Residency::FinishStep(StreamId stream, PlanStep* step) {
  StreamQueues& queues = queues_[stream];
  if (step->out_op) queues.evictions.emplace_back(step->out_op, step->evict.size() * kChunkBytes);
  if (step->in_op) {
    queues.fetches.emplace_back(step->in_op, step->fetch.size() * kChunkBytes);
    if (queues.out_op > queues.in_awaited_out_op && !MayOverlapEviction(&queues, stream, *step))
      step->in_after_out = queues.in_awaited_out_op = queues.out_op;
  }
  for (std::vector<Extent>* runs : {&step->drop, &step->unmap, &step->duplicate, &step->evict, &step->fetch})
    Merge(runs);
}

// Sorts and joins adjacent extents: long runs move at the link's rate, single chunks at half of it. Never across
// the border of two arenas, which may be neighbours: the driver refuses a range of two allocations.
void Residency::MergeRuns(std::vector<Extent>* runs) {
  std::sort(runs->begin(), runs->end(), [](const Extent& a, const Extent& b) { return a.base < b.base; });
  size_t out = 0;
  for (size_t i = 1; i < runs->size(); ++i) {
    const Chunk* chunk = chunks_.Find((*runs)[i].base);
    if ((*runs)[out].end() == (*runs)[i].base && !(chunk && chunk->first_of_arena)) {
      (*runs)[out].bytes += (*runs)[i].bytes;
    } else {
      (*runs)[++out] = (*runs)[i];
    }
  }
  runs->resize(out + 1);
}

}  // namespace sluice::policy
