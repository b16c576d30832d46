// Fetches: missing chunks of a launch (missing.cc), chunks of later launches (prefetch.cc), discarded chunks
// (discarded.cc), and those that a launch overwrites whole (overwrites.cc).
#ifndef SLUICE_HOOKLIB_POLICY_FETCH_FETCHES_H_
#define SLUICE_HOOKLIB_POLICY_FETCH_FETCHES_H_

#include "hooklib/policy/evict/eviction.h"

namespace sluice::policy {

class Fetches : public Eviction {
 public:
  // The driver refused a plan's fetches: faults bring their contents.
  void NoteNotFetched(const PlanPiece& piece);
  // A plan's `repopulate` chunks were fetched: no stream order was there to discard them in.
  void NoteNotRepopulated(const Plan& plan);
  // Whether a discarded chunk was allocated again, and no launch has fetched it yet.
  bool has_reused_chunks() const { return !reused_after_discard_.empty(); }
  // Plans to populate these chunks before any work may write them; with `fetching` also those whose fetch is queued. Of
  // the plan only `populate_now` and `populate_on_host` are used.
  const Plan& PopulateDiscarded(bool fetching);

 protected:
  using Eviction::Eviction;

  // --- missing.cc ---
  void FindMissing(const StreamQueues& queues, const PlannedLaunch& launch);
  void FaultInMissing(const PlannedLaunch& launch);
  void FetchMissing(const PlannedLaunch& launch, StreamQueues* queues);
  void QueueFetch(const Chunk* chunk, StreamId stream, PlanStep* step);
  void FetchChunk(Chunk* chunk, StreamId stream, PlanStep* step);
  void FetchResident(Chunk* chunk, StreamId stream, PlanStep* step);
  void FetchTransient(Chunk* chunk, StreamId stream);
  // --- discarded.cc ---
  bool IsDiscarded(Chunk* chunk, StreamId stream);
  size_t FetchReused(StreamId stream);
  void NoteReused(size_t count, Mark mark);
  void PopulateOnHost(Chunk* chunk);
  void PopulateReused();
  // --- overwrites.cc ---
  bool MayRepopulate(const Chunk& chunk);
  void Repopulate(Chunk* chunk, uint64_t id);
  bool IsRepopulatedBy(const Chunk& chunk, uint64_t id) const;
  // --- prefetch.cc ---
  static constexpr uint64_t kHorizonLaunches = 256;
  // Whether a prefetch may be due, or transfers in flight may have finished.
  static bool MayPrefetch(const StreamQueues& queues) {
    return queues.predictor.confident() && !queues.predictor.is_repeating() &&
           (queues.predictor.HasAhead(kHorizonLaunches) || !queues.evictions.empty() || !queues.fetches.empty());
  }
  bool PrefetchUpcoming(StreamQueues* queues, StreamId stream);
  void KeepReserve(uint64_t at, StreamId stream);
  void PrefetchNear(StreamQueues* queues, StreamId stream);
  void PrefetchFar(StreamQueues* queues, StreamId stream);
  void EvictProactively(const StreamQueues& queues, StreamId stream);
  bool ShouldPrefetch(Chunk* chunk, uint64_t id, StreamId stream);
  void PrefetchChunk(Chunk* chunk, uint64_t at, StreamId stream);
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_FETCH_FETCHES_H_
