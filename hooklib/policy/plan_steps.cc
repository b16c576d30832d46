// Residency, the steps of a plan: their numbers, their order and their extents.
#include <algorithm>
#include <utility>

#include "hooklib/policy/plan_builder.h"

namespace sluice::policy {

namespace {

// The driver's queue for deferred prefetches is short: a step is in one piece where so many are in flight.
constexpr size_t kMaxPiecesInFlight = 24;

void SortByAddress(std::vector<Extent>::iterator begin, std::vector<Extent>::iterator end) {
  std::sort(begin, end, [](const Extent& a, const Extent& b) { return a.base < b.base; });
}

}  // namespace

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
  queues->evict_behind_op = plan_.evict_after_op;
  queues->graph_out_op = graph ? plan_.evict_after_op : 0;
  queues->bytes_beside_graph = 0;
}

// Sorts and joins adjacent extents of [begin, end), and moves them to `to`; returns where they end. Long runs move at
// the link's rate, single chunks at half of it. Never across the border of two arenas, which may be neighbours: the
// driver refuses a range of two allocations.
size_t PlanBuilder::MergeRuns(std::vector<Extent>* runs, size_t begin, size_t end, size_t to) {
  if (begin == end) return to;
  const auto at = [runs](size_t i) { return runs->begin() + static_cast<ptrdiff_t>(i); };
  SortByAddress(at(begin), at(end));
  (*runs)[to] = (*runs)[begin];
  for (size_t i = begin + 1; i < end; ++i) {
    const Chunk* chunk = chunks_.Find((*runs)[i].base);
    if ((*runs)[to].end() == (*runs)[i].base && !(chunk && chunk->first_of_arena)) {
      (*runs)[to].bytes += (*runs)[i].bytes;
    } else {
      (*runs)[++to] = (*runs)[i];
    }
  }
  return to + 1;
}

// In pieces where there is much to evict and to fetch, since the link moves both ways at a time
// (docs/design/driver.md).
void PlanBuilder::FinishStep(StreamId stream, PlanStep* step) {
  for (std::vector<Extent>* runs : {&step->drop, &step->unmap, &step->duplicate}) Merge(runs);
  if (!step->out_op && !step->in_op) return;
  StreamQueues* const queues = &queues_[stream];
  size_t pieces = 1;
  if (step->out_op && step->in_op) {
    const size_t in_flight = queues->evictions.size() + queues->fetches.size();
    const size_t wanted = std::max(std::max(step->evict.size(), step->fetch.size()) / piece_chunks_, size_t{1});
    pieces = std::clamp((kMaxPiecesInFlight - std::min(kMaxPiecesInFlight, in_flight)) / 2, size_t{1}, wanted);
  }
  // Runs stay as long as they are in the whole step, but where a piece ends.
  if (pieces > 1) {
    SortByAddress(step->evict.begin(), step->evict.end());
    SortByAddress(step->fetch.begin(), step->fetch.end());
  }
  for (size_t i = 1; i <= pieces; ++i)
    step->pieces.push_back(
        {.evict_end = step->evict.size() * i / pieces, .fetch_end = step->fetch.size() * i / pieces});
  NumberPieces(stream, queues, step);
  if (step->in_op && queues->out_op > queues->in_awaited_out_op) OrderFetches(stream, queues, step);
  MergePieces(step);
}

// The chunks were noted with the first piece's numbers.
void PlanBuilder::NumberPieces(StreamId stream, StreamQueues* queues, PlanStep* step) {
  const uint64_t first_out = step->out_op, first_in = step->in_op;
  size_t evict = 0, fetch = 0;
  for (PlanPiece& piece : step->pieces) {
    if (piece.evict_end > evict) {
      piece.out_op = evict ? ++queues->out_op : first_out;
      queues->evictions.emplace_back(piece.out_op, (piece.evict_end - evict) * kChunkBytes);
    }
    if (piece.fetch_end > fetch) {
      piece.in_op = fetch ? ++queues->in_op : first_in;
      queues->fetches.emplace_back(piece.in_op, (piece.fetch_end - fetch) * kChunkBytes);
    }
    for (; evict < piece.evict_end; ++evict) {
      if (piece.out_op != first_out) chunks_.Find(step->evict[evict].base)->RenumberEviction(first_out, piece.out_op);
    }
    for (; fetch < piece.fetch_end; ++fetch) {
      Chunk* const chunk = chunks_.Find(step->fetch[fetch].base);
      // One that is resident already is fetched once more for this stream alone.
      if (chunk->fetch_stream() != stream || chunk->fetch_op() != first_in) continue;
      if (chunk->fetches_contents()) piece.fetch_content_bytes += kChunkBytes;
      chunk->RenumberFetch(piece.in_op);
    }
  }
  step->out_op = first_out ? queues->out_op : 0;
  step->in_op = first_in ? queues->in_op : 0;
}

// A fetch waits for the evictions that leave room for it, and for those of its own chunks.
void PlanBuilder::OrderFetches(StreamId stream, StreamQueues* queues, PlanStep* step) {
  if (MayOverlapEviction(queues, stream, *step)) return;
  uint64_t room = evicted_behind_.empty() ? RoomBesideOthers(stream) : 0;
  for (auto piece = step->pieces.rbegin(); piece != step->pieces.rend(); ++piece) {
    if (!piece->in_op) continue;
    const size_t begin = piece + 1 == step->pieces.rend() ? 0 : (piece + 1)->fetch_end;
    uint64_t left = room;
    piece->in_after_out = queues->evict_behind_op;
    for (auto eviction = queues->evictions.rbegin(); eviction != queues->evictions.rend(); ++eviction) {
      if (eviction->second > left) {
        piece->in_after_out = std::max(piece->in_after_out, eviction->first);
        break;
      }
      left -= eviction->second;
    }
    for (size_t i = begin; i < piece->fetch_end; ++i) {
      const Chunk& chunk = *chunks_.Find(step->fetch[i].base);
      if (chunk.evict_stream() == stream && !chunk.has_leave_pending())
        piece->in_after_out = std::max(piece->in_after_out, chunk.evict_op());
      // It is not there yet for the pieces before.
      const bool is_counted = chunk.fetch_stream() == stream && chunk.fetch_op() == piece->in_op && chunk.resident();
      if (is_counted && evicted_behind_.empty()) room += kChunkBytes;
    }
  }
  // Behind unfinished work a prefetch is deferred. Else it takes the calling thread for its whole length.
  PlanPiece& first = *std::find_if(step->pieces.begin(), step->pieces.end(), [](const auto& p) { return p.in_op; });
  if (first.in_after_out == 0 && !queues->evictions.empty()) first.in_after_out = queues->evictions.front().first;
  for (PlanPiece& piece : step->pieces) {
    if (piece.in_after_out <= queues->in_awaited_out_op)
      piece.in_after_out = 0;
    else
      queues->in_awaited_out_op = piece.in_after_out;
  }
}

// That chunks which other streams are still evicting leave.
uint64_t PlanBuilder::RoomBesideOthers(StreamId stream) const {
  uint64_t used = resident_bytes_;
  for (const auto& [other, queues] : queues_) {
    if (other == stream) continue;
    for (const auto& [op, bytes] : queues.evictions) used += bytes;
  }
  return capacity_ - std::min(capacity_, used);
}

void PlanBuilder::MergePieces(PlanStep* step) {
  size_t evict = 0, fetch = 0, evict_in = 0, fetch_in = 0;
  for (PlanPiece& piece : step->pieces) {
    evict = MergeRuns(&step->evict, evict_in, piece.evict_end, evict);
    evict_in = std::exchange(piece.evict_end, evict);
    fetch = MergeRuns(&step->fetch, fetch_in, piece.fetch_end, fetch);
    fetch_in = std::exchange(piece.fetch_end, fetch);
  }
  step->evict.resize(evict);
  step->fetch.resize(fetch);
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
