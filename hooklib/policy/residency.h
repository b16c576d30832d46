// Residency holds the resident chunks of one device to their capacity, and plans fetches and evictions before each
// launch.
//
// It only decides; the engine executes the plans (plan.h). Rules:
//  - A victim is finished, or was used earlier in the stream that needs the room.
//  - No stream waits for another stream's work.
//  - A fetch waits for the evictions that make its room. The launch waits for the fetch on the GPU, never on the host.
//  - Where nothing may be evicted, the launch goes over the budget, and that is counted.
//  - Contents are discarded only if the application freed them, and if a fence behind that free is done, or one stream
//    alone works on the device, which then takes the discard in its order.
// The order of victims: evict/victims.cc.
//
// It is built in layers, each a class that knows those below it and none above: settings, figures, the plan
// (plan_builder.h), notes on chunks (chunk_notes.h), duplicates and eviction (evict/), fetches (fetch/fetches.h),
// touched chunks (touched/), remote access (fetch/remote_access.h). This class enters memory and launches.
//
// Launch numbers (`now_`) count all launches of the device; `..._at` and `..._until` are such numbers. Not thread-safe:
// the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_RESIDENCY_H_
#define SLUICE_HOOKLIB_POLICY_RESIDENCY_H_

#include <optional>
#include <span>
#include <vector>

#include "hooklib/policy/fetch/remote_access.h"

namespace sluice::policy {

class Residency : public RemoteAccess {
 public:
  Residency(Timeline* timeline, Fences* fences) : RemoteAccess(timeline, fences) {}

  // --- memory ---
  // `populated`: the backend has made its pages resident already.
  void AddArena(Extent arena, bool populated);
  void RemoveArena(Extent arena);
  void NotePopulated(Extent range);  // the same of a part, whose chunks were not resident
  // Another GPU is about to write the range, and its pages are made here: chunks that were never written count as
  // resident.
  void NoteWrittenElsewhere(Extent range);
  void AddLive(Extent range);
  // `owner`: the live allocation that holds the range, if its application freed the range itself (PyTorch's report).
  void RemoveLive(Extent range, Extent owner = {});
  // An allocation ended: once a fence is done, its range may be given out, and the host may write it.
  void NoteFreed(Extent range);
  // A pinned chunk stays live whatever is reported (see LiveMap).
  void Pin(Extent range, bool pin);

  // --- working set (working_set/working_set.cc). Seconds: UseWatch::SecondOf ---
  // Work that is not planned uses the range in this second. How many of its chunks had no use since second `since`.
  size_t NoteUnplannedUse(Extent range, uint32_t second, uint32_t since);
  // To be called about once a second: uses since the last call count as uses in this second.
  UsedBytes CountUsed(uint64_t since_launch, uint32_t second);

  // --- launches ---
  // Plans for work on `stream` at position `seq` that touches `set`. `id`: execution id; 0: work that is not predicted.
  // The plan is valid until the next call.
  // can_queue false: nothing can be queued now, and missing chunks are left to faults.
  // overwritten_extents: so many extents at the end of `set` are proven to be overwritten whole by this work. Nothing
  // reads them between the work that the stream holds already and this one.
  // hot_extents: the work is a graph, whose nodes use so many extents at the begin of `set` more than the others, most
  // used first. If the graph exceeds the capacity, these are kept resident, and whole launches are timed to find the
  // best strategy for the rest (graph_strategy.h).
  const Plan& Prepare(StreamId stream, Seq seq, std::span<const Extent> set, uint64_t id, bool can_queue = true,
                      size_t overwritten_extents = 0, std::optional<size_t> hot_extents = {});
  // The newest launch's set if it is in steady state: its chunks are resident, its period repeats, and its plan was
  // empty; else null. Until a call other than for launches, a launch with the same arguments may call PrepareSteady.
  SteadySets::Set* steady_set() const { return steady_set_; }
  // False: call Prepare. True: the launch is noted, and its plan is empty.
  bool PrepareSteady(StreamId stream, Seq seq, uint64_t id, SteadySets::Set* set);
  void ForgetStream(StreamId stream);
  // Launches were not looked at until now: any resident chunk may be in use, and may have been written.
  void NoteUnseenUse();
  // The parts of the range with contents that may matter: all but discarded ones. Work may have written any of them by
  // a table of pointers.
  std::vector<Extent> WrittenParts(Extent range);

  // --- beside the launches (rebalance.cc); `queue` is a stream of the engine's own ---
  // Evicts finished chunks until at most `bytes` are resident, for a budget that shrank. Chunks in use stay. Of the
  // plan only `discard` and `now` are used.
  const Plan& Shrink(StreamId queue, uint64_t bytes);
  // Fetches up to `bytes` of the chunks used since launch number `since`, within the capacity.
  const Plan& RestoreWorkingSet(StreamId queue, uint64_t bytes, uint64_t since);

 private:
  bool IsSteady(const SteadySets::Set& set, const PlannedLaunch& launch) const;
  void TakeTurn(StreamQueues* queues, StreamId stream);
  void EndSteadyState(StreamQueues* queues, StreamId stream);
  bool LeavesSteadyState(const PlannedLaunch& launch) const;
  void ForgetTouch(Chunk* chunk);
  bool RequiresResidency(const PlannedLaunch& launch) const {
    return launch.id && !(may_map_remote_ && prefetch_ != Prefetch::kOff && launch.traits.streaming);
  }
  void PlanMoves(PlannedLaunch* launch, StreamQueues* queues, std::optional<size_t> hot_extents, size_t hot_chunks);
  void ChooseStrategy(PlannedLaunch* launch, std::optional<size_t> hot_extents, size_t hot_chunks);
  // --- predict/launch_sets.cc ---
  size_t CollectSet(std::span<const Extent> extents, size_t overwritten_extents, std::optional<size_t> hot_extents,
                    const StreamQueues& queues, PlannedLaunch* launch);
  Chunk* MarkNamed(Chunk* begin, Chunk* end, PlannedLaunch* launch, uint64_t awaited_in_op, Chunk*** to) const;
  template <bool kNames, bool kUses>
  void NoteSet(const PlannedLaunch& launch, Seq seq);
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_RESIDENCY_H_
