// Residency holds the resident chunks of one device to their capacity, and plans before each launch what is fetched and
// evicted.
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
// Launch numbers (`now_`) count all launches of the device; `..._at` and `..._until` are such numbers. Not thread-safe:
// the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_RESIDENCY_H_
#define SLUICE_HOOKLIB_POLICY_RESIDENCY_H_

#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hooklib/policy/residency_state.h"

namespace sluice::policy {

class Residency : private ResidencyState {
 public:
  Residency(Timeline* timeline, Fences* fences) : ResidencyState(timeline, fences) {}

  // --- settings ---
  void set_capacity(uint64_t bytes);
  void set_prefetch(Prefetch mode) { prefetch_ = mode; }
  void set_can_discard(bool can) { can_discard_ = can; }
  bool can_discard() const { return can_discard_; }
  // Chunks in host memory keep their contents when they are freed: a discard would save nothing where PopulateDiscarded
  // is called for each allocation.
  void set_discards_on_host(bool may) { discards_on_host_ = may; }
  // The prices of transfers, which those that run correct.
  LinkModel& link() { return link_; }
  // The capacity is being raised: nothing live is evicted for a prefetch, since room comes by itself.
  void set_budget_rising(bool rising) { budget_rising_ = rising; }
  // Whether chunks that a launch overwrites whole are repopulated. Needs discard.
  void set_repopulates(bool may) { repopulates_ = may; }
  // Whether only the stream of the next Prepare works on the device, and takes discards in its order: chunks freed on
  // it need not be waited for then.
  void set_in_order(bool in_order) { in_order_ = in_order; }
  // Whether chunks that copies alone wrote may be duplicated. false: duplicates are withdrawn.
  void set_read_mostly(bool may);
  // Whether streaming launches may leave their chunks in host memory.
  void set_remote_access(bool may) { may_map_remote_ = may; }
  // More than the link moves in the time of a few launches only displaces chunks that are used sooner.
  void set_max_prefetch_bytes(uint64_t bytes) { max_prefetch_bytes_ = bytes; }
  // Bytes that the GPU itself can hold.
  void set_max_resident(uint64_t bytes) { max_resident_bytes_ = bytes; }
  // The part of the capacity that is the container's own; the rest is lent. Graphs beyond it are sampled
  // (touched/touched_chunks.cc).
  void set_share(uint64_t bytes) { share_bytes_ = bytes; }

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
  // All bytes that faults have brought so far, where the driver counts them.
  void NoteCountedFaults(uint64_t bytes);
  // Whether launches fault on memory that none of them names: through pointers that lie on the GPU.
  bool watches_unnamed() const { return now_ < unnamed_.watched_until; }
  // Faults may have brought any page of the block: its non-resident chunks are evicted behind the next launch.
  void NoteFaultResidue(Extent block);
  // Faults of a launch were on these pages, in order. Pages that were never written are in no count of bytes.
  void NoteFaultedIn(std::span<const Va> pages) { fault_residue_.NoteFaultedIn(pages); }

  // --- touched chunks (touched/touched_chunks.cc) ---
  TouchSampler& touched() { return touched_; }
  void MarkTouchesOver();  // asks the GPU which samples' launches are over. Then their faults are collected:
  void ConcludeTouches(std::span<const Va> pages, bool lost);  // `lost`: there were others, too
  void ForgetTouches();                                        // no faults are known

  // --- read duplication (read_mostly.cc) ---
  // Something writes the range, or may. To be called before Prepare, so that nothing of it is fetched as a duplicate.
  void NoteWritten(Extent range);
  // A copy wrote the range. Behind Prepare.
  void NoteCopied(Extent range);
  // Anything may have been written unseen.
  void ForgetAllCopies();
  bool has_copies() const { return !copied_ranges_.empty(); }
  bool has_withdrawn() const { return !withdrawn_.empty(); }
  // Former duplicates: their advice is to be withdrawn at once, before anything else is done.
  std::vector<Extent> TakeWithdrawn();
  // More is resident than the capacity allows, and duplicates are to be dropped once their users are over.
  bool has_excess_duplicates() const { return !excess_duplicates_.empty() && resident_bytes_ > capacity_; }
  // Drops the unused ones of these, down to the capacity. Of the plan only now.drop is used.
  const Plan& DropExcessDuplicates();

  // --- probes: launches that are timed ---
  // Whether launches like this one use their missing chunks remotely.
  bool UsesRemoteAccess(const LaunchProbe& probe);
  // The time of a probe. True where this settles that such launches are left to demand faults.
  bool NoteMeasured(const LaunchProbe& probe, uint64_t ns);
  // The time is known, or never will be.
  void NoteAnswered(const LaunchProbe& probe) { classifier_.NoteAnswered(probe); }
  // Launches of this id should wait for the timed ones, which decide about the next.
  bool ShouldAwaitProbes(uint64_t id) const { return classifier_.ShouldAwait(id); }
  // They have waited, or will not any longer.
  void NoteAwaitedProbes(uint64_t id) { classifier_.NoteAwaited(id); }
  // The same for graphs larger than the capacity (graph_strategy.h).
  const GraphStrategies& graph_strategies() const { return graph_strategies_; }
  bool NoteMeasured(const GraphProbe& probe, uint64_t ns) { return graph_strategies_.NoteMeasured(probe, ns); }
  void NoteGapAfter(const GraphProbe& probe, uint64_t gap_ns, uint64_t eviction_ns);
  // Graphs of this id are probed: all work before them is to be over, since finished transfers decide which bytes they
  // move.
  bool probes_graph_strategy(uint64_t id) const { return graph_strategies_.IsProbing(id); }

  // --- figures ---
  uint64_t capacity() const { return capacity_; }
  uint64_t resident_bytes() const { return resident_bytes_; }
  const ResidencyStats& stats() const { return stats_; }
  const ProbeStats& probe_stats() const { return classifier_.probe_stats(); }
  const GraphRemainder& graph_remainder() const { return graph_remainder_; }  // of the newest graph
  const PlacementStats& placement_stats() const { return placement_.stats; }
  // Whether ListPlacement is to name launches.
  void set_names_launches(bool does) { names_launches_ = does; }
  std::vector<PlacementRun> ListPlacement();
  // Entries of the eviction order: no more than a few for each resident chunk.
  size_t ranked_entries() const { return candidates_.size(); }
  ChunkTable& chunks() { return chunks_; }
  uint64_t launches() const { return now_; }
  uint64_t named_bytes() const { return set_.size() * kChunkBytes; }  // by the newest launch
  // Whether its set is resident, in flight or mapped in host memory, so that it faults on nothing.
  bool HasAllResident() const;
  bool in_steady_state() const { return repeating_predictor_ != nullptr; }  // for two periods
  // Whether set_in_order matters.
  bool has_freed_chunks() const { return !freed_resident_.empty() || !freed_on_host_.empty(); }
  // Live bytes were evicted lately while free chunks waited for their fence: the host should be throttled.
  bool awaits_freed() const { return freed_awaited_at_ && now_ - freed_awaited_at_ < 2048; }
  uint64_t wrong_predictions() const;

  // --- memory ---
  // `populated`: the backend has made its pages resident already.
  void AddArena(Extent arena, bool populated);
  void RemoveArena(Extent arena);
  void NotePopulated(Extent range);  // the same of a part, whose chunks were not resident
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
  // The host has waited until all that it had queued was over.
  void NoteHostSync();
  void ForgetStream(StreamId stream);
  // Launches were not looked at until now: any resident chunk may be in use, and may have been written.
  void NoteUnseenUse();
  // The parts of the range that something may have written since it became live.
  std::vector<Extent> WrittenParts(Extent range);
  // The driver refused a plan's fetches: faults bring their contents.
  void NoteNotFetched(const PlanStep& step);
  // Whether a discarded chunk was allocated again, and no launch has fetched it yet.
  bool has_reused_chunks() const { return !reused_after_discard_.empty(); }
  // Plans to populate these chunks before any work may write them; with `fetching` also those whose fetch is queued. Of
  // the plan only `populate_now` and `populate_on_host` are used.
  const Plan& PopulateDiscarded(bool fetching);
  // A plan's `repopulate` chunks were fetched: no stream order was there to discard them in.
  void NoteNotRepopulated(const Plan& plan);

  // --- beside the launches (rebalance.cc); `queue` is a stream of the engine's own ---
  // Evicts finished chunks until at most `bytes` are resident, for a budget that shrank. Chunks in use stay. Of the
  // plan only `discard` and `now` are used.
  const Plan& Shrink(StreamId queue, uint64_t bytes);
  // Fetches up to `bytes` of the chunks used since launch number `since`, within the capacity.
  const Plan& RestoreWorkingSet(StreamId queue, uint64_t bytes, uint64_t since);
  // Of work that touches this now: bytes of chunks that are not resident; live bytes that would have to be evicted.
  uint64_t MissingBytes(std::span<const Extent> set), BytesToEvict(std::span<const Extent> set);
  // Bytes of evictions in flight: asks the GPU; and as it last answered.
  uint64_t EvictingBytes();
  uint64_t evicting_bytes() const { return evicting_bytes_; }
  bool HasEvictionsInFlight() const;            // asks the GPU
  uint64_t fetching_bytes() const;              // of fetches in flight, as the GPU last answered
  uint64_t NextTransferBytes(StreamId stream);  // of the stream's first eviction and first fetch in flight

 private:
  static constexpr uint64_t kHorizonLaunches = 256;

  // --- residency.cc ---
  bool IsSteady(const SteadySets::Set& set, const PlannedLaunch& launch) const;
  bool RequiresResidency(const PlannedLaunch& launch) const {
    return launch.id && !(may_map_remote_ && prefetch_ != Prefetch::kOff && launch.traits.streaming);
  }
  // Writes the notes of steady sets to the chunks: before anything but a repeated launch.
  void Settle() { steady_sets_.Settle(iterations_.number()); }
  // Enters the launches that were only counted: before the predictor is asked.
  void CatchUp() {
    if (repeating_predictor_) std::exchange(repeating_predictor_, nullptr)->CatchUp();
  }
  void NoteChange() { steady_sets_.NoteChange(now_); }
  void PlanMoves(PlannedLaunch* launch, StreamQueues* queues, std::optional<size_t> hot_extents, size_t hot_chunks);
  static bool MayPrefetch(const StreamQueues& queues);
  void ChooseStrategy(PlannedLaunch* launch, std::optional<size_t> hot_extents, size_t hot_chunks);
  // Changes the state that makes a chunk idle: resident, but without live bytes.
  template <typename F>
  void ChangeIdle(Chunk* chunk, F change) {
    const auto idle = [chunk] { return chunk->resident && chunk->live_bytes == 0 && chunk->pins == 0; };
    const bool before = idle();
    change();
    idle_bytes_ += (idle() ? kChunkBytes : 0) - (before ? kChunkBytes : 0);
  }
  void SetResident(Chunk* chunk, bool resident) {
    if (chunk->resident == resident) return;
    NoteChange();
    chunk->fetched_whole = false;
    resident_bytes_ += resident ? kChunkBytes : -kChunkBytes;
    ChangeIdle(chunk, [&] { chunk->resident = resident; });
  }
  // --- plan_steps.cc ---
  void ClearPlan() {
    if (!plan_.is_empty) ClearWholePlan();
    plan_.is_empty = false;
  }
  void ClearWholePlan();
  void Merge(std::vector<Extent>* runs) {
    if (runs->size() > 1) MergeRuns(runs);
  }
  void MergeRuns(std::vector<Extent>* runs);
  void FinishStep(StreamId stream, PlanStep* step);
  void NumberEvictAfter(StreamQueues* queues, bool graph);
  void DrainOps(StreamQueues* queues, StreamId stream);
  // --- predict/launch_sets.cc ---
  size_t CollectSet(std::span<const Extent> extents, size_t overwritten_extents, std::optional<size_t> hot_extents,
                    const StreamQueues& queues, PlannedLaunch* launch);
  Chunk* MarkNamed(Chunk* begin, Chunk* end, PlannedLaunch* launch, uint64_t awaited_in_op, Chunk*** to) const;
  template <bool kNames, bool kUses>
  void NoteSet(const PlannedLaunch& launch, Seq seq);
  void NoteUse(Chunk* chunk, Mark mark);
  // --- touched/touched_chunks.cc ---
  bool MayTry(const Chunk& chunk, bool is_graph) const;
  size_t LeaveOutUntouched(std::span<const Extent> extents, std::optional<size_t> hot_extents,
                           const StreamQueues& queues, PlannedLaunch* launch, Seq seq);
  void SampleResident(std::span<const Extent> extents, PlannedLaunch* launch, double touched, size_t* most,
                      bool is_graph, bool sparse);
  void TryResident(Chunk* chunk, Extent operand, StreamId stream);
  void ScheduleSamples();
  void TakeFaultedIn(Chunk* chunk);
  void NoteUnnamedEviction(Chunk* chunk);
  void FetchTouched(StreamId stream);
  // --- fetch/missing.cc ---
  void FindMissing(const StreamQueues& queues, const PlannedLaunch& launch);
  void FaultInMissing(const PlannedLaunch& launch);
  void FetchMissing(const PlannedLaunch& launch, StreamQueues* queues);
  void QueueFetch(const Chunk* chunk, StreamId stream, PlanStep* step);
  void FetchChunk(Chunk* chunk, StreamId stream, PlanStep* step);
  void FetchResident(Chunk* chunk, StreamId stream, PlanStep* step);
  void FetchTransient(Chunk* chunk, StreamId stream);
  void EvictBehind(Chunk* chunk);
  // --- fetch/remote_access.cc ---
  void SelectRemote(StreamId stream, uint64_t id, bool oversize);
  void EndIteration(const StreamQueues& queues);
  bool IsLongLived(const Chunk& chunk, uint64_t id) const { return iterations_.IsLongLived(chunk, id, now_); }
  bool StaysRemote(const Predictor& predictor, const Chunk& chunk, uint64_t id);
  void NoteRequired(Chunk* chunk, uint64_t id, uint64_t iterations);
  void NoteEvicted(Chunk* chunk);
  void NoteSwappedIn(Chunk* chunk);
  bool CheaperRemote(const Chunk& chunk) const;
  bool CheaperSwapped(const Chunk& chunk) const;
  bool IsBeingProbed(const Chunk& chunk);
  std::pair<size_t, size_t> DominantOperand() const;
  void MapRemote(Chunk* chunk);
  void UnmapRemote(Chunk* chunk);
  void UnmapForFetch(Chunk* chunk);
  // --- fetch/placement.cc ---
  void ExchangePlacement(const Predictor& predictor);
  bool ExchangeByPasses(const Predictor& predictor, std::vector<Chunk*>* first, std::vector<Chunk*>* hot,
                        std::vector<Chunk*>* cold);
  void ExchangeByOrder(std::vector<Chunk*>* first, std::vector<Chunk*>* hot, std::vector<Chunk*>* cold);
  std::optional<uint64_t> PositionInHostRun(const Chunk& chunk) const;
  bool KeepsColdRemote(Chunk* chunk, uint64_t id);
  void MarkProbeVictims(uint64_t id);
  void EndPromotion(Chunk* chunk);
  // --- fetch/oversized_graph.cc ---
  void ApplyStrategy(GraphStrategy strategy, StreamId stream, uint64_t id);
  bool IsUsedSinceGraph(const Chunk& chunk) const { return chunk.last_use > last_graph_at_; }
  uint64_t BytesUsedSinceGraph(uint64_t max_bytes) const;
  bool MayOverlapEviction(StreamQueues* queues, StreamId stream, const PlanStep& step);
  uint64_t MaxSmallOperandBytes() const;
  bool SizesDiffer(uint64_t capacity) const;
  void SplitHotCold(StreamId stream, uint64_t fits, uint64_t more, size_t hot_chunks, bool fetches);
  void NoteRemainder(const Chunk& chunk);
  size_t SmallOperandsFirst(uint64_t fits);
  // --- fetch/overwrites.cc ---
  bool MayRepopulate(const Chunk& chunk);
  void Repopulate(Chunk* chunk, uint64_t id);
  bool IsRepopulatedBy(const Chunk& chunk, uint64_t id) const;
  // --- fetch/prefetch.cc ---
  bool PrefetchUpcoming(StreamQueues* queues, StreamId stream);
  void PrefetchNear(StreamQueues* queues, StreamId stream);
  void PrefetchFar(StreamQueues* queues, StreamId stream);
  void EvictProactively(const StreamQueues& queues, StreamId stream);
  bool ShouldPrefetch(Chunk* chunk, uint64_t id, StreamId stream);
  void PrefetchChunk(Chunk* chunk, uint64_t at, StreamQueues* queues, StreamId stream);
  void EndPrefetch(Chunk* chunk);
  // --- evict/victims.cc ---
  uint64_t Rank(const Chunk& chunk) const;
  uint64_t FreedAt(const Chunk& chunk) const;
  uint64_t Room(StreamId stream);
  uint64_t MakeRoom(StreamId stream, uint64_t bytes, uint64_t keep_until, PlanStep* step);
  uint64_t MakeRoomAgain(StreamId stream, uint64_t bytes, uint64_t keep_until, PlanStep* step);
  uint64_t MakeRoomForFaults(StreamId stream, uint64_t bytes);
  uint64_t Evict(StreamId stream, uint64_t bytes, uint64_t keep_until, PlanStep* step);
  void EvictChunk(Chunk* chunk, StreamId stream, PlanStep* step);
  bool MayEvict(const Chunk& chunk, StreamId stream);
  bool IsEvicting(const Chunk& chunk) {
    return chunk.evict_op && !timeline_->OutDone(chunk.evict_stream, chunk.evict_op);
  }
  // Whether a queue other than the newest eviction's may still be evicting it. The flag alone says nothing: it stays
  // after that eviction's end.
  bool IsEvictingElsewhere(const Chunk& chunk) const { return chunk.evicting_elsewhere && HasEvictionsInFlight(); }
  bool IsEvictingElsewhere(Chunk* chunk) {
    return chunk->evicting_elsewhere = IsEvictingElsewhere(std::as_const(*chunk));
  }
  uint64_t DiscardFreed(uint64_t bytes, StreamId stream, PlanStep* step, uint64_t keep_until = 0);
  bool DiscardFreedOnHost(StreamId stream);
  void Discard(Chunk* chunk, bool over);
  uint64_t DiscardableBytes(uint64_t bytes, StreamId stream);
  bool IsReclaimable(const Chunk& chunk);
  bool MayDiscardInStream(const Chunk& chunk, StreamId stream);
  // --- evict/discarded.cc ---
  bool IsDiscarded(Chunk* chunk, StreamId stream);
  size_t FetchReused(StreamId stream);
  void NoteReused(size_t count, Mark mark);
  void PopulateOnHost(Chunk* chunk);
  void PopulateReused();
  // --- evict/residue_sweep.cc ---
  void NoteFaultResidueBytes(uint64_t bytes);
  void SweepFaultResidue(StreamId stream);
  bool IsSweepReady();
  // --- evict/read_mostly.cc ---
  bool IsCopied(const Chunk& chunk) const;
  bool MayDuplicate(const Chunk& chunk);
  void ForgetCopies(Extent range);
  void Withdraw(Chunk* chunk);
  void Drop(Chunk* chunk, PlanStep* step);
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_RESIDENCY_H_
