// The plan that Residency (residency.h) is writing: its extents, the numbers of its operations and their order. Also
// which chunks are resident by it, and that steady sets and counted launches are entered before it is changed.
#ifndef SLUICE_HOOKLIB_POLICY_PLAN_BUILDER_H_
#define SLUICE_HOOKLIB_POLICY_PLAN_BUILDER_H_

#include <utility>
#include <vector>

#include "hooklib/policy/residency_figures.h"

namespace sluice::policy {

class PlanBuilder : public ResidencyFigures {
 protected:
  using ResidencyFigures::ResidencyFigures;

  // Writes the notes of steady sets to the chunks: before anything but a repeated launch.
  void Settle() { steady_sets_.Settle(); }
  // Enters the launches that were only counted: before the predictor is asked.
  void CatchUp() {
    if (repeating_predictor_) std::exchange(repeating_predictor_, nullptr)->CatchUp();
  }
  void NoteChange() { steady_sets_.NoteChange(now_); }

  // Changes the state that makes a chunk idle: resident, but without live bytes.
  template <typename F>
  void ChangeIdle(Chunk* chunk, F change) {
    const auto idle = [chunk] { return chunk->resident() && chunk->live_bytes == 0 && chunk->pins == 0; };
    const bool before = idle();
    change();
    idle_bytes_ += (idle() ? kChunkBytes : 0) - (before ? kChunkBytes : 0);
  }
  void SetResident(Chunk* chunk, bool resident) {
    if (chunk->resident() == resident) return;
    NoteChange();
    resident_bytes_ += resident ? kChunkBytes : -kChunkBytes;
    ChangeIdle(chunk, [&] { resident ? chunk->FaultIn() : chunk->Leave(); });
  }
  // kNever: it will be, behind the launch that is being planned.
  bool IsEvicting(const Chunk& chunk) {
    return chunk.evict_op() && !timeline_->OutDone(chunk.evict_stream(), chunk.evict_op());
  }
  // Whether a queue other than the newest eviction's may still be evicting it. The flag alone says nothing: it stays
  // after that eviction's end.
  bool IsEvictingElsewhere(const Chunk& chunk) const {
    if (!chunk.evicting_elsewhere()) return false;
    return chunk.evict_op() ? HasEvictionsInFlight(chunk.evict_stream()) : HasEvictionsInFlight();
  }
  bool IsEvictingElsewhere(Chunk* chunk) {
    chunk->SetEvictingElsewhere(IsEvictingElsewhere(std::as_const(*chunk)));
    return chunk->evicting_elsewhere();
  }
  // Whether a queue of another stream may still be evicting it: nothing that `stream` queues is ordered behind that.
  bool IsEvictingBeside(Chunk* chunk, StreamId stream) {
    return IsEvictingElsewhere(chunk) || (chunk->evict_stream() != stream && IsEvicting(*chunk));
  }
  // Only the newest eviction is recorded. The flag stands for older ones, which may run on other queues.
  void BeginEviction(Chunk* chunk, StreamId stream, uint64_t op) {
    chunk->SetEvictingElsewhere(IsEvictingBeside(chunk, stream));
    chunk->BeginEviction(stream, op);
  }

  void ClearPlan() {
    if (!plan_.is_empty) ClearWholePlan();
    plan_.is_empty = false;
  }
  void ClearWholePlan();
  void Merge(std::vector<Extent>* runs) {
    if (runs->size() > 1) runs->resize(MergeRuns(runs, 0, runs->size(), 0));
  }
  size_t MergeRuns(std::vector<Extent>* runs, size_t begin, size_t end, size_t to);
  void FinishStep(StreamId stream, PlanStep* step);
  void NumberPieces(StreamId stream, StreamQueues* queues, PlanStep* step);
  void OrderFetches(StreamId stream, StreamQueues* queues, PlanStep* step);
  void MergePieces(PlanStep* step);
  uint64_t RoomBesideOthers(StreamId stream) const;
  void NumberEvictAfter(StreamQueues* queues, bool graph);
  bool MayOverlapEviction(StreamQueues* queues, StreamId stream, const PlanStep& step);
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_PLAN_BUILDER_H_
