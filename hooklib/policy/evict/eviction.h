// Eviction: room for chunks that are missing (victims.cc), and the end of fault residue (residue_sweep.cc).
#ifndef SLUICE_HOOKLIB_POLICY_EVICT_EVICTION_H_
#define SLUICE_HOOKLIB_POLICY_EVICT_EVICTION_H_

#include "hooklib/policy/evict/duplicates.h"

namespace sluice::policy {

class Eviction : public Duplicates {
 public:
  // --- fault residue: a launch larger than the capacity leaves the rest of its set to demand faults ---
  bool has_recent_fault_residue() const { return fault_residue_.IsRecent(now_); }
  // Launches of this id fault in an unknown number of bytes: a host ahead of the GPU evicts these too late.
  bool ExpectsFaultResidue(uint64_t id) const { return has_recent_fault_residue() && classifier_.LeftToFaults(id); }
  // Whether a sweep is due, but work of several streams still uses its chunks. Launches that leave more residue had
  // better wait: while they are queued, that work is never over. Asks the GPU.
  bool ResidueSweepPending() { return sweep_fence_ && now_ >= sweep_paused_until_ && !IsSweepReady(); }
  // The wait had no effect: no launch waits again for so many launches. Doubled each time, until a sweep has evicted
  // some.
  void PauseResidueSweep(uint64_t min_launches = 1024);
  // Faults may have brought any page of the block: its non-resident chunks are evicted behind the next launch.
  void NoteFaultResidue(Extent block);
  // Faults of a launch were on these pages, in order. Pages that were never written are in no count of bytes.
  void NoteFaultedIn(std::span<const Va> pages) { fault_residue_.NoteFaultedIn(pages); }

  // --- duplicates (duplicates.h) ---
  // More is resident than the capacity allows, and duplicates are to be dropped once their users are over.
  bool has_excess_duplicates() const { return !excess_duplicates_.empty() && resident_bytes_ > capacity_; }
  // Drops the unused ones of these, down to the capacity. Of the plan only now.drop is used.
  const Plan& DropExcessDuplicates();

 protected:
  using Duplicates::Duplicates;

  uint64_t Rank(const Chunk& chunk) const;
  uint64_t FreedAt(const Chunk& chunk) const;
  uint64_t Room(StreamId stream);
  uint64_t MakeRoom(StreamId stream, uint64_t bytes, uint64_t keep_until, PlanStep* step);
  uint64_t MakeRoomAgain(StreamId stream, uint64_t bytes, uint64_t keep_until, PlanStep* step);
  uint64_t FarUse();
  uint64_t SwapsByDiscard() const;
  uint64_t MakeRoomForFaults(StreamId stream, uint64_t bytes);
  uint64_t Evict(StreamId stream, uint64_t bytes, uint64_t keep_until, PlanStep* step);
  void EvictChunk(Chunk* chunk, StreamId stream, PlanStep* step);
  bool MayEvict(const Chunk& chunk, StreamId stream);
  void EvictBehind(Chunk* chunk, StreamId stream);
  uint64_t DiscardFreed(uint64_t bytes, StreamId stream, PlanStep* step, uint64_t keep_until = 0);
  bool DiscardFreedOnHost(StreamId stream);
  void Discard(Chunk* chunk, bool over);
  uint64_t DiscardableBytes(uint64_t bytes, StreamId stream);
  bool IsReclaimable(const Chunk& chunk);
  bool MayDiscardInStream(const Chunk& chunk, StreamId stream);
  void NoteFaultResidueBytes(uint64_t bytes);
  void SweepFaultResidue(StreamId stream);
  bool IsSweepReady();
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_EVICT_EVICTION_H_
