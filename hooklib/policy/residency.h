// Holds the resident chunks of one device to their capacity, and decides before each launch what to fetch and what to
// send away.
//
// Only decisions: a Plan says what to do, cuda/ does it. Rules (design, "Order, both ways"):
//  - a victim is finished, or was used earlier in the stream that needs the room; no stream is made to wait for
//  another's work;
//  - what is fetched waits for the departures that make its room; the launch waits for the fetch, on the GPU, never on
//  the host;
//  - where nothing may leave, the launch goes over the budget, and that is counted;
//  - contents are discarded only if the application freed them, and either a fence behind that free is done or one
//  stream alone works on the device, which then takes the discard in its order.
// Room is made first by discarding dead chunks: the driver may then take their pages for anybody without a copy, and
// bringing them back moves nothing (H200, driver 580: 4 ms a GiB, where sending away takes 70). Then by sending away
// chunks that make place for what is used more (placement.cc), then those that only streaming launches use
// (launch_classifier.h: they need not come back), then chunks of which no next use is known, least recently used
// first, then those whose predicted next use is farthest (Belady 1966). Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_RESIDENCY_H_
#define SLUICE_HOOKLIB_POLICY_RESIDENCY_H_

#include <algorithm>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/memory/copied_ranges.h"
#include "hooklib/memory/fences.h"
#include "hooklib/policy/evict/candidates.h"
#include "hooklib/policy/evict/fault_residue.h"
#include "hooklib/policy/fetch/graph_strategy.h"
#include "hooklib/policy/fetch/launch_classifier.h"
#include "hooklib/policy/memory_names.h"
#include "hooklib/policy/plan.h"
#include "hooklib/policy/predict/iterations.h"
#include "hooklib/policy/predict/predictor.h"
#include "hooklib/policy/steady/steady_sets.h"

namespace sluice::policy {

enum class Prefetch : uint8_t { kOff, kLaunch, kPredict };

struct ResidencyStats {
  uint64_t hits = 0, misses = 0;  // chunks
  uint64_t bytes_in = 0, bytes_out = 0, bytes_saved = 0;
  uint64_t bytes_dropped = 0;  // duplicates thrown away, which moves nothing
  uint64_t fault_bytes = 0;    // estimated: contents that were left to faults; what no parameter names is not in it
  uint64_t remote_bytes = 0;   // of chunks used in host memory, once a launch
  uint64_t demand_paged_launches = 0;  // launches that were left to faults by choice
  uint64_t over_budget_launches = 0;
  uint64_t over_budget_max = 0;
  uint64_t host_bytes = 0;  // distinct bytes ever evicted: host pages stay with the block
};

// Of a graph larger than the capacity what is not held, and why it cannot be duplicated; bytes.
struct GraphRemainder {
  uint64_t copied = 0;     // it can: copies alone wrote it, or its departure is awaited
  uint64_t freed = 0;      // it has no living byte
  uint64_t written = 0;    // kernels wrote of it, or may have
  uint64_t withdrawn = 0;  // it was written while it was a duplicate
  uint64_t evicting_elsewhere = 0;
  uint64_t disabled = 0;  // switched off, or a peer uses the memory
};

// What was seen of places on the card when the newest window began (placement.cc): for who looks for the reason of what
// lies where.
struct PlacementStats {
  uint64_t iteration = 0, launches = 0;    // its number; how many the one before it had
  uint64_t moved_bytes = 0;                // bytes, in that one
  uint32_t still_iterations = 0;           // windows of one length in a row in which next to nothing moved
  uint64_t cold_bytes = 0, hot_bytes = 0;  // bytes on the card of which little is used, in host memory of which much is
  uint64_t demoted_bytes = 0;              // of the former, that make place for the latter ...
  uint64_t first_used_bytes = 0;           // ... among them such as are used first when the host begins anew
  uint64_t filled_bytes = 0;               // bytes to come into places that stayed free
};

// Living chunks side by side that are alike.
struct PlacementRun {
  Extent range;
  bool resident = false;
  bool long_lived = false;     // alive for a round, and no launch is known to need them on the card
  bool recently_used = false;  // in the window that is over, or in this one
  uint64_t link_bytes = 0;     // what a window's launches use of them
  uint64_t id = 0;             // of the launch that names most of the first of them
};

class Residency {
 public:
  Residency(Timeline* timeline, Fences* fences) : timeline_(timeline), fences_(fences) {}

  void set_capacity(uint64_t bytes) {
    if (bytes < capacity_ && !fault_residue_.empty()) fault_residue_.SweepSoon();  // all of that goes now
    capacity_ = bytes;
  }
  void set_prefetch(Prefetch mode) { prefetch_ = mode; }
  // Launches larger than the capacity leave to faults what does not fit: that comes and goes all the time.
  bool has_recent_fault_residue() const { return fault_residue_.IsRecent(now_); }
  // Launches of this id bring nobody knows how much by faults before they have run: a host that is a thousand of them
  // ahead sends it away too late.
  bool ExpectsFaultResidue(uint64_t id) const { return has_recent_fault_residue() && classifier_.LeftToFaults(id); }
  // Whether what faults have scattered is to leave, and is still in use by work of several streams. Launches that
  // scatter more had better wait for that: while they come, at no time is all that names it over. Asks the GPU.
  bool ResidueSweepPending() { return sweep_fence_ && now_ >= sweep_paused_until_ && !IsSweepReady(); }
  // It was in vain: nobody waits for it for so many launches, and longer the next time if nothing has left until then.
  void PauseResidueSweep(uint64_t least = 1024);
  // So many bytes have faults brought in all, where the driver counts them.
  void set_faulted_bytes(uint64_t bytes) { fault_residue_.set_counted_bytes(bytes); }
  // Faults may have brought anything of it: what is not known to be on the card is sent away behind the next launch.
  void NoteFaultResidue(Extent block);
  // Faults of a launch that was not brought what it names were of these pages, in order. What was never written is in
  // no count of bytes.
  void NoteFaultedIn(std::span<const Va> pages) { fault_residue_.NoteFaultedIn(pages); }
  void set_can_discard(bool can) { can_discard_ = can; }
  // Whether what leaves goes at a fraction of the link's rate, so that what cheaper_remote had better stay in host
  // memory.
  void set_slow_write_back(bool slow) { slow_write_back_ = slow; }
  // The capacity is being raised: nothing living leaves for what is only predicted, since room comes by itself.
  void set_budget_rising(bool filling) { budget_rising_ = filling; }
  // Whether what a launch overwrites whole comes back empty. Needs discard.
  void set_repopulates(bool may) { repopulates_ = may; }
  // Whether the stream that Prepare is called for next is the only one of the device that works, and takes a discard in
  // its order: what died on it need not be waited for then.
  void set_in_order(bool in_order) { in_order_ = in_order; }
  // Launches go round, and all that they name has been on the card for two rounds.
  bool in_steady_state() const { return repeating_predictor_ != nullptr; }
  // Otherwise it does not matter.
  bool has_freed_chunks() const { return !freed_resident_.empty() || !freed_on_host_.empty(); }
  // Whether what copies alone wrote may be duplicated. false: what is, is withdrawn.
  void set_read_mostly(bool may);
  // Something is about to write the range, or may: before Prepare, so that nothing is brought as a duplicate for it.
  void NoteWritten(Extent range);
  bool has_copies() const { return !copied_ranges_.empty(); }
  bool has_withdrawn() const { return !withdrawn_.empty(); }
  // It was a copy; behind Prepare.
  void NoteCopied(Extent range);
  // Anything may have been written unseen.
  void ForgetAllCopies();
  // What is no duplicate any more: the advice is to be withdrawn at once, before anything else is done.
  std::vector<Extent> TakeWithdrawn();
  // More is held than the capacity allows, and there are duplicates that leave once what uses them is over: those that
  // a launch larger than the capacity needed, or that could make no room yet.
  bool has_excess_duplicates() const { return !excess_duplicates_.empty() && resident_bytes_ > capacity_; }
  // Drops them as far as they are finished, until the capacity is enough. Only now.drop.
  const Plan& DropExcessDuplicates();
  // Whether launches that stream may leave what they touch in host memory.
  void set_remote_access(bool may) { may_map_remote_ = may; }
  // A launch whose plan asked to be timed ran for so long. True where this settles that such launches are left to
  // faults.
  bool NoteMeasured(const LaunchProbe& probe, uint64_t ns) {
    const bool settles = classifier_.NoteMeasured(probe, ns, now_);
    if (classifier_.TakeLeftRemote()) chunks_.ForAll([](Chunk& chunk) { chunk.remote_uses = 0; });
    return settles;
  }
  // Whether launches like this one take what they miss in host memory, as far as it stays there.
  bool UsesRemoteAccess(const LaunchProbe& probe) {
    return classifier_.ClassOf(probe.id, probe.oversize, now_) == LaunchClassifier::AccessClass::kStreaming;
  }
  // The same, or that it will never be known.
  void NoteAnswered(const LaunchProbe& probe) { classifier_.NoteAnswered(probe); }
  // Launches of this id should wait until those that are timed are done: these decide how the next ones go.
  bool ShouldAwaitProbes(uint64_t id) const { return classifier_.ShouldAwait(id); }
  // They have waited for that, or will not any longer.
  void NoteAwaitedProbes(uint64_t id) { classifier_.NoteAwaited(id); }
  // How graphs larger than the capacity go.
  const GraphStrategies& graph_strategies() const { return graph_strategies_; }
  bool NoteMeasured(const GraphProbe& probe, uint64_t ns) { return graph_strategies_.NoteMeasured(probe, ns); }
  void NoteGapAfter(const GraphProbe& probe, uint64_t gap, uint64_t departing) {
    graph_strategies_.NoteGapAfter(probe, gap, departing);
  }
  // A way of such launches is on trial: they are to begin when what comes before them is done, since what they move is
  // decided by what has arrived and left.
  bool probes_graph_strategy(uint64_t id) const { return graph_strategies_.IsProbing(id); }
  const PlacementStats& placement_stats() const { return placement_stats_; }
  // What is kept for the question who leaves first: no more than a few entries for each chunk that is held.
  size_t ranked_entries() const { return candidates_.size(); }
  // Whether ListPlacement is to name launches.
  void set_names_launches(bool does) { names_launches_ = does; }
  std::vector<PlacementRun> ListPlacement();
  const GraphRemainder& graph_remainder() const { return graph_remainder_; }  // of the last one
  // How many bytes may be fetched before their launch. More than the link moves in the time of a few launches only
  // displaces what is used sooner.
  void set_max_prefetch_bytes(uint64_t bytes) { max_prefetch_bytes_ = bytes; }
  // What the card itself holds of it at most.
  void set_max_resident(uint64_t bytes) { max_resident_bytes_ = bytes; }
  uint64_t capacity() const { return capacity_; }
  uint64_t resident_bytes() const { return resident_bytes_; }
  const ResidencyStats& stats() const { return stats_; }
  const ProbeStats& probe_stats() const { return classifier_.probe_stats(); }
  ChunkTable& chunks() { return chunks_; }
  uint64_t launches() const { return now_; }
  uint64_t named_bytes() const { return set_.size() * kChunkBytes; }  // by the last launch
  // Whether all that it names is on the card, on its way there or mapped in host memory, so that it faults on nothing.
  bool HasAllResident() const {
    return std::all_of(set_.begin(), set_.end(), [this](const Chunk* chunk) {
      return chunk->mapped_remote || (chunk->resident && chunk->demand_paged_at != now_);
    });
  }
  // Live bytes were sent away lately although dead ones would have made the room, had their fence been done: the host
  // runs too far ahead of the GPU.
  bool awaits_freed() const { return freed_awaited_at_ && now_ - freed_awaited_at_ < 2048; }
  uint64_t wrong_predictions() const;

  // `populated`: the backend has made its pages resident already.
  void AddArena(Extent arena, bool populated);
  void RemoveArena(Extent arena);
  // Bytes came to life, or died. `pinned`: they stay "alive" whatever is reported (see LiveMap).
  void AddLive(Extent range);
  // `owner`: the allocation that holds it and lives on, if its application said so itself (PyTorch's report).
  void RemoveLive(Extent range, Extent owner = {});
  // An allocation ended: others may be given its range, and the host may write it, as soon as a fence is done.
  void NoteFreed(Extent range);
  void Pin(Extent range, bool pin);
  // The host has waited until what it had queued was done, and begins anew.
  void NoteHostSync();

  // Plans for work on `stream` at position `seq` that touches `set`. `id`: execution id, 0 for work that is not to be
  // learnt. The plan is valid until the next call.
  // may_move false: nothing can be queued now; what is missing is left to faults.
  // overwritten: so many extents at the end of `set` are proven to be overwritten whole by this work, and read by
  // nobody between what the stream holds already and that.
  // hotter: it is a graph, of which so many extents at the begin of `set` are used more than the others, most used
  // first. Where it cannot be held whole, they are, and whole launches are timed to find how the rest comes
  // (graph_strategy.h).
  const Plan& Prepare(StreamId stream, Seq seq, std::span<const Extent> set, uint64_t id, bool may_move = true,
                      size_t overwritten = 0, std::optional<size_t> hotter = {});
  // The set that the last launch was found to have, where that is all there is to be known of it: its chunks stand on
  // the card, the round repeats itself, nothing had to be done. Null otherwise. While nothing but launches is told, a
  // later one that is the same in all that Prepare is given may be told by PrepareSteady, which says less and costs
  // less.
  SteadySets::Set* steady_set() const { return steady_set_; }
  // False: it has to be told by Prepare. True: it has been, and its plan is empty.
  bool PrepareSteady(StreamId stream, Seq seq, uint64_t id, SteadySets::Set* set);
  void ForgetStream(StreamId stream);

  // --- beside the launches (rebalance.cc); `queue` is a stream of the engine's own ---
  // Sends finished chunks away until resident bytes are at most `bytes`; for a budget that shrank. What may not leave
  // yet stays. Of the plan only `discard` and `now` are used.
  const Plan& Shrink(StreamId queue, uint64_t bytes);
  // Brings back up to `bytes` of what was used since launch number `since`, as far as the capacity goes.
  const Plan& RestoreWorkingSet(StreamId queue, uint64_t bytes, uint64_t since);
  // Living bytes that would have to leave for work that touches this now.
  uint64_t BytesToEvict(std::span<const Extent> set);
  // Live bytes of the chunks that a launch since this one has touched.
  uint64_t TouchedSince(uint64_t launch);
  // Bytes that are being sent away and may still be on the card: asks the GPU; and as it last answered.
  uint64_t EvictingBytes();
  // Of what is queued for this stream, bytes of the two transfers that run or come first.
  uint64_t NextTransferBytes(StreamId stream);
  uint64_t evicting_bytes() const { return evicting_bytes_; }
  uint64_t fetching_bytes() const;  // bytes fetched that may still be on their way, as the GPU last answered
  bool HasEvictionsInFlight();      // whether anything may still be: asks the GPU
  // Until now nobody looked: whatever is resident may be in use by what is queued, and may have been written.
  void NoteUnseenUse();
  // The driver refused to bring what a plan fetches: faults will, as far as there is anything to bring.
  void NoteNotFetched(const PlanStep& step);
  // What a plan renews was fetched like anything else: there was no order to discard it in.
  void NoteNotRepopulated(const Plan& plan);

 private:
  struct StreamQueues {
    uint64_t in_op = 0, out_op = 0;
    uint64_t awaited_in_op = 0;       // the application stream has waited up to here
    uint64_t in_awaited_out_op = 0;   // the in queue has waited up to here
    uint64_t graph_out_op = 0;        // with this op leaves what a graph larger than the capacity left behind it
    uint64_t bytes_beside_graph = 0;  // bytes brought without waiting for that
    std::deque<std::pair<uint64_t, uint64_t>> evictions;  // op, bytes
    std::deque<std::pair<uint64_t, uint64_t>> fetches;
    uint64_t prefetched_bytes = 0;  // fetched for launches to come, not used yet
    Predictor predictor;
  };
  // The launch that is being planned.
  struct PlannedLaunch {
    StreamId stream;
    uint64_t id;
    bool can_queue;
    LaunchHash hash{id};
    uint64_t set_hash = 0;        // hash.sum() in the end
    bool lacks_chunks = false;    // some of its set is not on the card, or perhaps not yet
    bool oversize = false;        // its set is larger than the capacity
    bool leaves_residue = false;  // and it is no graph: faults bring what is touched of it
    LaunchClassifier::Traits traits{};
    std::optional<GraphStrategy> strategy{};  // of a graph that is
    uint64_t capacity = 0;                    // bytes that may be held at all
    uint64_t own_capacity = 0;                // of these, for it
    size_t reused_chunks = 0;                 // chunks of reused_after_discard_ that it brings
    uint64_t remote_bytes = 0;                // bytes of its set that it uses in host memory
  };
  // Whether the set stands, and nothing else has to be done for the launch either.
  bool IsSteady(const SteadySets::Set& set, const PlannedLaunch& launch) const {
    return steady_sets_.IsSteady(set) && set.chunks.size() * kChunkBytes <= launch.capacity &&
           resident_bytes_ <= launch.capacity && fault_residue_.empty();
  }
  // Whether it must have what it names on the card.
  bool RequiresResidency(const PlannedLaunch& launch) const {
    return launch.id && !(may_map_remote_ && prefetch_ != Prefetch::kOff && launch.traits.streaming);
  }
  // Chunks say what was noted of their use: before anything but a launch that is met again.
  void Settle() { steady_sets_.Settle(iterations_.number()); }
  // The order of launches is known up to the last: before it is asked who is used next.
  void CatchUp() {
    if (repeating_predictor_) std::exchange(repeating_predictor_, nullptr)->CatchUp();
  }
  void NoteChange() { steady_sets_.NoteChange(now_); }
  void FindMissing(const StreamQueues& queues, const PlannedLaunch& launch);
  void PlanMoves(PlannedLaunch* launch, StreamQueues* queues, std::optional<size_t> hotter, size_t hotter_chunks);
  void ChooseStrategy(PlannedLaunch* launch, std::optional<size_t> hotter, size_t hotter_chunks);
  void FaultInMissing(const PlannedLaunch& launch);
  void FetchMissing(const PlannedLaunch& launch, StreamQueues* queues);

  // remote_access.cc: takes out of missing_ what the launch uses in host memory, and marks what is left to faults.
  void SelectRemote(StreamId stream, uint64_t id, bool oversize);
  void AdvanceIteration(const StreamQueues& queues) {
    if (iterations_.NoteLaunch(now_, queues.predictor.period()) &&
        iterations_.IsOver(now_, queues.predictor.confident()))
      EndIteration(queues);
  }
  void EndIteration(const StreamQueues& queues);
  bool IsLongLived(const Chunk& chunk, uint64_t id) const { return iterations_.IsLongLived(chunk, id, now_); }
  bool StaysRemote(const Predictor& predictor, const Chunk& chunk, uint64_t id);
  void NoteRequired(Chunk* chunk, uint64_t id, uint64_t rounds);
  void NoteEvicted(Chunk* chunk);
  bool CheaperRemote(const Chunk& chunk) const;
  bool CheaperSwapped(const Chunk& chunk) const;
  // One of these is brought. Not any more where it has to come for each pass.
  void NoteSwappedIn(Chunk* chunk) {
    if (chunk->swapped_in_at && chunk->swapped_in_at + iterations_.length() / 2 > now_)
      chunk->remote_until = now_ + 32 * iterations_.length();
    chunk->swapped_in_at = now_;
  }
  // placement.cc: which of what streaming launches use is worth its place on the card.
  void ExchangePlacement(const Predictor& predictor);
  bool ExchangeByPasses(const Predictor& predictor, std::vector<Chunk*>* first, std::vector<Chunk*>* hot,
                        std::vector<Chunk*>* cold);
  void ExchangeByOrder(std::vector<Chunk*>* first, std::vector<Chunk*>* hot, std::vector<Chunk*>* cold);
  std::optional<uint64_t> PositionInHostRun(const Chunk& chunk) const;
  bool KeepsColdRemote(Chunk* chunk, uint64_t id);
  void MarkProbeVictims(uint64_t id);
  std::pair<size_t, size_t> DominantOperand() const;
  void MapRemote(Chunk* chunk);
  void UnmapRemote(Chunk* chunk);
  void Withdraw(Chunk* chunk);
  bool IsBeingProbed(const Chunk& chunk);
  // Changes what decides whether a chunk's place is idle: resident, but free to be taken without a copy.
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
  // discarded.cc
  bool IsDiscarded(Chunk* chunk, StreamId stream);
  size_t FetchReused(StreamId stream);
  void NoteReused(size_t count, Mark mark);
  // victims.cc
  bool IsReclaimable(const Chunk& chunk);
  bool MayEvict(const Chunk& chunk, StreamId stream);
  bool IsEvicting(const Chunk& chunk) {
    return chunk.evict_op && !timeline_->OutDone(chunk.evict_stream, chunk.evict_op);
  }
  bool MayDiscardInStream(const Chunk& chunk, StreamId stream);
  uint64_t Rank(const Chunk& chunk) const;
  // Launch number at which what it holds is freed, as predicted, before it is used again; kNever: not known.
  uint64_t FreedAt(const Chunk& chunk) const {
    const uint64_t at = chunk.freed_in ? chunk.last_use + chunk.freed_in : 0;
    return at > now_ ? at : kNever;
  }
  // Frees at least `bytes` for `stream`, sending away nothing that is predicted to be needed before `keep_until`
  // (kNever: that was used in the last round). What it freed.
  uint64_t MakeRoom(StreamId stream, uint64_t bytes, uint64_t keep_until, PlanStep* step) {
    const uint64_t freed = MakeRoomAgain(stream, bytes, keep_until, step);
    candidates_.End();
    return freed;
  }
  // The same again and again for one launch, with one Candidates::End behind the last.
  uint64_t MakeRoomAgain(StreamId stream, uint64_t bytes, uint64_t keep_until, PlanStep* step) {
    Settle();
    CatchUp();
    const uint64_t dead = DiscardFreed(bytes, stream, step);
    return dead + Evict(stream, bytes - std::min(bytes, dead), keep_until, step);
  }
  // Of what lives.
  uint64_t Evict(StreamId stream, uint64_t bytes, uint64_t keep_until, PlanStep* step);
  uint64_t MakeRoomForFaults(StreamId stream, uint64_t bytes);
  // kept_until: not what is predicted to be named before that launch.
  uint64_t DiscardFreed(uint64_t bytes, StreamId stream, PlanStep* step, uint64_t kept_until = 0);
  bool DiscardFreedOnHost(StreamId stream);
  void Discard(Chunk* chunk, bool over);
  uint64_t DiscardableBytes(uint64_t bytes, StreamId stream);
  void EvictChunk(Chunk* chunk, StreamId stream, PlanStep* step);
  void Fetch(const Chunk* chunk, StreamId stream, PlanStep* step);
  void FetchChunk(Chunk* chunk, StreamId stream, PlanStep* step);
  void FetchResident(Chunk* chunk, StreamId stream, PlanStep* step);
  void FetchTransient(Chunk* chunk, StreamId stream);
  // oversized_graph.cc
  void ApplyStrategy(GraphStrategy way, StreamId stream, uint64_t id);
  bool IsUsedSinceGraph(const Chunk& chunk) const { return chunk.last_use > last_graph_at_; }
  uint64_t BytesUsedSinceGraph(uint64_t most) const;
  bool MayOverlapEviction(StreamQueues* queues, StreamId stream, const PlanStep& step);
  void SplitHotCold(StreamId stream, uint64_t fits, uint64_t more, size_t hotter, bool fetches);
  void NoteRemainder(const Chunk& chunk);
  size_t SmallOperandsFirst(uint64_t fits);
  void EvictBehind(Chunk* chunk);
  void NumberEvictAfter(StreamQueues* queues, bool graph);
  // remote_access.cc: of what a launch larger than the capacity leaves to faults nobody knows what has come.
  void NoteFaultResidueBytes(uint64_t bytes);
  void SweepFaultResidue(StreamId stream);
  bool IsSweepReady();
  bool MayRepopulate(const Chunk& chunk);
  void Repopulate(Chunk* chunk, uint64_t id);
  bool IsRepopulatedBy(const Chunk& chunk, uint64_t id) const;
  uint64_t Room(StreamId stream);
  void FinishStep(StreamId stream, PlanStep* step);
  static constexpr uint64_t kHorizonLaunches = 256;    // launches
  static constexpr uint64_t kSweepPauseLaunches = 16;  // launches
  // Whether there may be anything to look at, or to learn of what is under way.
  static bool MayPrefetch(const StreamQueues& queues) {
    return queues.predictor.confident() && !queues.predictor.is_repeating() &&
           (queues.predictor.HasAhead(kHorizonLaunches) || !queues.evictions.empty() || !queues.fetches.empty());
  }
  // prefetch.cc
  bool PrefetchUpcoming(StreamQueues* queues, StreamId stream);
  void PrefetchNear(StreamQueues* queues, StreamId stream);
  void PrefetchFar(StreamQueues* queues, StreamId stream);
  void EvictProactively(const StreamQueues& queues, StreamId stream);
  bool ShouldPrefetch(Chunk* chunk, uint64_t id, StreamId stream);
  void PrefetchChunk(Chunk* chunk, uint64_t at, StreamQueues* queues, StreamId stream);
  void EndPrefetch(Chunk* chunk);
  // launch_sets.cc
  size_t CollectSet(std::span<const Extent> extents, size_t overwritten, std::optional<size_t> hotter,
                    const StreamQueues& queues, PlannedLaunch* launch);
  Chunk* MarkNamed(Chunk* begin, Chunk* end, PlannedLaunch* launch, uint64_t waited_in, Chunk*** to) const;
  template <bool kNames, bool kUses>
  void NoteSet(const PlannedLaunch& launch, Seq seq);
  void NoteUse(Chunk* chunk, Mark mark);
  void DrainOps(StreamQueues* queues, StreamId stream);
  void ClearPlan() {
    if (!plan_.is_empty) ClearWholePlan();
    plan_.is_empty = false;
  }
  void ClearWholePlan();
  void Merge(std::vector<Extent>* runs) {
    if (runs->size() > 1) MergeRuns(runs);
  }
  void MergeRuns(std::vector<Extent>* runs);
  bool IsCopied(const Chunk& chunk) const;
  bool MayDuplicate(const Chunk& chunk);
  void ForgetCopies(Extent range);
  void UnmapForFetch(Chunk* chunk);
  void Drop(Chunk* chunk, PlanStep* step);
  void EndPromotion(Chunk* chunk);

  Timeline* timeline_;
  Fences* fences_;
  // What every launch reads lies side by side: between two launches the driver has the caches for itself.
  uint64_t now_ = 1;
  uint64_t resident_bytes_ = 0;
  uint64_t capacity_ = kNever;
  uint64_t idle_bytes_ = 0;  // bytes of resident chunks without a live byte
  uint64_t min_slack_bytes_ = 0;
  // What stayed unused of the capacity in a whole window may be filled, in the next, with chunks that would otherwise
  // be used in host memory.
  Iterations iterations_;
  uint64_t freed_awaited_at_ = 0;                   // launch number
  std::pair<StreamId, StreamQueues*> last_queues_;  // the last launch's
  std::span<Chunk*> set_;  // of the launch that is being planned, or was last; in set_storage_ or standing
  Prefetch prefetch_ = Prefetch::kPredict;
  bool may_map_remote_ = true;
  bool names_launches_ = false;
  bool seeks_probe_victim_ = false;  // a launch is looked for that may use little of what it has on the card (Ask)
  SteadySets steady_sets_;
  uint64_t steady_launches_ = 0;              // launches one after the other whose sets stood
  Predictor* repeating_predictor_ = nullptr;  // of the stream whose launches were only counted of late
  SteadySets::Set* steady_set_ = nullptr;
  std::vector<Chunk*> missing_;
  FaultResidue fault_residue_;
  Epoch sweep_fence_ = 0;  // behind this fence what a sweep found in use may leave; 0: it found nothing so
  uint64_t sweep_paused_until_ = 0, sweep_pause_ = kSweepPauseLaunches;  // launch number; launches
  uint32_t failed_sweeps_ = 0;                                           // one after the other, behind such a fence
  std::vector<Va> excess_duplicates_;  // duplicates that are to leave once they are finished
  std::vector<Extent> withdrawn_;
  ResidencyStats stats_;
  std::unordered_map<StreamId, StreamQueues> queues_;
  Plan plan_;
  ChunkTable chunks_;
  uint64_t evicting_bytes_ = 0;
  std::vector<Chunk*> set_storage_, hot_missing_;
  struct Operand {
    uint64_t bytes;
    size_t end;  // in set_; its chunks begin where those of the one before it end
  };
  std::vector<Operand> operands_;       // of the last launch that did not stand
  std::vector<Chunk*> evicted_behind_;  // leave behind the launch that is being planned
  uint64_t last_demand_paged_ = 0;      // launch number of the last that left something to faults by choice
  // Their last live byte was freed, or they never had one: on the card, and in host memory.
  std::deque<Chunk*> freed_resident_, freed_on_host_;
  std::vector<Chunk*> reused_after_discard_;  // discarded, and alive again
  Candidates candidates_;
  bool freed_unfenced_ = false;       // the last look at what died found some whose fence is not done
  uint64_t shrink_paused_until_ = 0;  // launch number before which more is not sent away to come down to the capacity
  uint64_t yield_paused_until_ =
      0;  // launch number before which nothing is looked for to make place for what faults bring
  bool can_discard_ = true;
  bool slow_write_back_ = true;
  bool in_order_ = false;
  bool budget_rising_ = false;
  bool repopulates_ = true;
  bool read_mostly_ = false;
  CopiedRanges copied_ranges_;
  LaunchClassifier classifier_;
  GraphStrategies graph_strategies_;
  uint64_t last_graph_at_ = 0;      // launch number of the last graph that went one
  uint64_t bytes_since_graph_ = 0;  // bytes of the chunks that were used since
  GraphRemainder graph_remainder_;
  uint64_t moved_before_iteration_ = 0;  // bytes
  uint64_t last_remote_iteration_ = 0;   // the last one in which a launch left something in host memory
  uint64_t previous_length_ = 0;
  PlacementStats placement_stats_;
  uint64_t probe_victim_bytes_ = 0;  // in this window
  uint64_t next_probe_victim_ = 0;   // window before which none is looked for
  uint32_t probe_victim_pause_ = 1;
  std::unordered_set<uint64_t> probed_ids_;  // ids
  bool promotions_chosen_ =
      false;  // those that come into others' places are (Chunk::promote_iteration); false: who comes first
  uint64_t host_run_begin_ = 0;  // launch number when the host began anew last ...
  uint64_t long_host_run_begin_ = 0,
           long_host_run_ = 0;  // ... and the last time that it queued half a window; launches of that
  uint64_t next_exchange_ = 0;  // window before which what is used first leaves no place
  uint32_t exchange_pause_ = 2;
  uint32_t still_iterations_ = 0;  // of one length in a row, in which next to nothing moved
  uint64_t reuse_distance_x64_ =
      0;  // 64 times the launches from when a chunk left for want of room to its next use, in the mean
  uint64_t promote_bytes_ = 0;    // bytes
  uint32_t promotion_pause_ = 0;  // windows, since what was promoted had to leave again
  uint32_t next_promotion_pause_ = 2;
  uint64_t max_resident_bytes_ = kNever;
  uint64_t max_prefetch_bytes_ = uint64_t{64} << 20;
  uint64_t far_paused_until_ = 0, far_full_until_ = 0;  // launch numbers
  uint64_t far_reserve_bytes_ = 0;                      // bytes that are to stay free of what PrefetchFar fills
  uint64_t proactive_paused_until_ = 0;                 // launch number
  uint32_t live_chunks_ = 0;                            // chunks that hold a live byte
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_RESIDENCY_H_
