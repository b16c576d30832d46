// Residency, the steps of a plan: their numbers, their order and their extents.
#include <algorithm>

#include "hooklib/policy/plan_builder.h"

namespace sluice::policy {

void PlanBuilder::ClearWholePlan() {
  plan_.Clear();
  evicted_behind_.clear();
}

// Evictions behind the launch are queued after all other steps of its plan, so they have the last number. A wait for an
// earlier number does not include them, and no wait for them is possible before they are queued.
void PlanBuilder::NumberEvictAfter(StreamQueues* queues, bool graph) {
  Merge(&plan_.evict_after);
  plan_.evict_after_op = ++queues->out_op;
  for (Chunk* chunk : evicted_behind_) chunk->NumberEviction(plan_.evict_after_op);
  stats_.bytes_out += evicted_behind_.size() * kChunkBytes;
  queues->graph_out_op = graph ? plan_.evict_after_op : 0;
  queues->bytes_beside_graph = 0;
}

void PlanBuilder::FinishStep(StreamId stream, PlanStep* step) {
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
void PlanBuilder::MergeRuns(std::vector<Extent>* runs) {
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

// Whether a fetch need not wait for the evictions behind a graph larger than the capacity. The GPU holds more than the
// budget until these are over anyhow, and demand faults would not wait: the launches between two graphs may fetch a
// little. A chunk whose own eviction is in flight has to wait.
bool PlanBuilder::MayOverlapEviction(StreamQueues* queues, StreamId stream, const PlanStep& step) {
  constexpr uint64_t kMaxOverlapBytes = uint64_t{32} << 20;
  uint64_t bytes = 0;
  for (const Extent& run : step.fetch) bytes += run.bytes;
  if (!queues->graph_out_op || queues->bytes_beside_graph + bytes > kMaxOverlapBytes ||
      timeline_->OutDone(stream, queues->graph_out_op))
    return false;
  for (const Extent& run : step.fetch) {
    const Chunk& chunk = *chunks_.Find(run.base);
    if (!chunk.has_leave_pending() && IsEvicting(chunk)) return false;
  }
  queues->bytes_beside_graph += bytes;
  return true;
}

}  // namespace sluice::policy
