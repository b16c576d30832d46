// The state of Residency (residency.h), apart from its interface: every file of the policy changes some of it.
#ifndef SLUICE_HOOKLIB_POLICY_RESIDENCY_STATE_H_
#define SLUICE_HOOKLIB_POLICY_RESIDENCY_STATE_H_

#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "hooklib/policy/cost/link_model.h"
#include "hooklib/policy/evict/candidates.h"
#include "hooklib/policy/evict/fault_residue.h"
#include "hooklib/policy/fetch/graph_strategy.h"
#include "hooklib/policy/fetch/launch_classifier.h"
#include "hooklib/policy/fetch/placement_state.h"
#include "hooklib/policy/memory_names.h"
#include "hooklib/policy/plan.h"
#include "hooklib/policy/planned_launch.h"
#include "hooklib/policy/predict/iterations.h"
#include "hooklib/policy/predict/predictor.h"
#include "hooklib/policy/residency_stats.h"
#include "hooklib/policy/steady/steady_sets.h"
#include "hooklib/policy/stream_queues.h"
#include "hooklib/policy/touched/touch_sampler.h"

namespace sluice::policy {

enum class Prefetch : uint8_t { kOff, kLaunch, kPredict };

class ResidencyState {
 protected:
  ResidencyState(Timeline* timeline, Fences* fences) : timeline_(timeline), fences_(fences) {}

  static constexpr uint64_t kSweepPauseLaunches = 16;

  Timeline* timeline_;
  Fences* fences_;
  // Every launch reads these, so they lie side by side: between two launches the driver uses the caches.
  uint64_t now_ = 1;
  uint64_t resident_bytes_ = 0;
  uint64_t capacity_ = kNever;
  uint64_t idle_bytes_ = 0;       // of resident chunks without a live byte
  uint64_t min_slack_bytes_ = 0;  // of the capacity, unused in the whole iteration
  Iterations iterations_;
  uint64_t freed_awaited_at_ = 0;
  std::pair<StreamId, StreamQueues*> last_queues_;  // the newest launch's
  std::span<Chunk*> set_;                           // the newest launch's; in set_storage_ or a steady set
  Prefetch prefetch_ = Prefetch::kPredict;
  bool may_map_remote_ = true;
  bool names_launches_ = false;
  bool seeks_probe_victim_ = false;  // for a launch that may use little of its resident set (MarkProbeVictims)
  SteadySets steady_sets_;
  uint64_t steady_launches_ = 0;              // launches in a row with a steady set
  Predictor* repeating_predictor_ = nullptr;  // of the stream whose launches are only counted
  SteadySets::Set* steady_set_ = nullptr;
  std::vector<Chunk*> missing_;
  FaultResidue fault_residue_;
  Epoch sweep_fence_ = 0;  // behind it the chunks that a sweep found in use may be evicted; 0: none
  uint64_t sweep_paused_until_ = 0, sweep_pause_ = kSweepPauseLaunches;
  uint32_t failed_sweeps_ = 0;         // in a row, behind such a fence
  std::vector<Va> excess_duplicates_;  // fetched beyond the capacity, or in use when room was needed
  std::vector<Extent> withdrawn_;
  ResidencyStats stats_;
  std::unordered_map<StreamId, StreamQueues> queues_;
  Plan plan_;
  ChunkTable chunks_;
  uint64_t evicting_bytes_ = 0;
  std::vector<Chunk*> set_storage_, hot_missing_;
  std::vector<Operand> operands_;       // of the newest launch without a steady set
  std::vector<Chunk*> evicted_behind_;  // the launch that is being planned
  uint64_t last_demand_paged_ = 0;      // the newest launch that left chunks to demand faults by choice
  // Chunks without a live byte: resident, and host-resident.
  std::deque<Chunk*> freed_resident_, freed_on_host_;
  std::vector<Chunk*> reused_after_discard_;  // allocated again
  Candidates candidates_;
  bool freed_unfenced_ = false;       // free chunks were found whose fence is not done
  uint64_t shrink_paused_until_ = 0;  // before it no more is evicted to come down to the capacity
  uint64_t yield_paused_until_ = 0;   // before it no room is looked for that faults need
  bool can_discard_ = true, discards_on_host_ = true, in_order_ = false;
  bool budget_rising_ = false, repopulates_ = true, read_mostly_ = false;
  CopiedRanges copied_ranges_;
  // When launches that are no graphs try chunks: in some iterations that lack bytes.
  struct LaunchSamples {
    uint64_t room = 0;            // chunks that this iteration may still try; 0: none
    uint64_t lacked_bytes = 0;    // by all iterations until now
    uint64_t untouched = 0;       // chunks that were found so until the last tries
    uint32_t alike = 0;           // iterations of one length in a row
    uint32_t pause = 0, gap = 0;  // iterations until the next tries, and between the last two
  };
  // Faults on memory that no launch named (touched/unnamed_faults.cc).
  struct UnnamedFaults {
    uint64_t counted = 0, expected = 0;  // bytes that faults brought until the last look: all, and by named chunks
    int64_t bytes = 0;                   // that nothing explains; below 0: more were expected
    uint64_t watched_until = 0;          // before this launch, faults are recorded
    bool may_map = false;                // a launch is being planned, whose plan maps memory
  };
  LinkModel link_;
  TouchSampler touched_{&link_};
  UnnamedFaults unnamed_;
  std::vector<Va> touched_late_;   // of which faults have brought pages: the rest is to be fetched
  uint32_t explored_replays_ = 0;  // of graphs whose chunks were sampled
  LaunchSamples launch_samples_;
  LaunchClassifier classifier_{&link_};
  GraphStrategies graph_strategies_;
  uint64_t last_graph_at_ = 0, bytes_since_graph_ = 0;  // a graph with a strategy; chunks used since
  GraphRemainder graph_remainder_;
  PlacementState placement_;
  uint64_t reuse_distance_x64_ = 0;  // 64 x the mean of launches from an eviction for room to the next use
  size_t piece_chunks_ = 8;          // half a millisecond
  uint64_t max_resident_bytes_ = kNever, share_bytes_ = kNever, max_prefetch_bytes_ = uint64_t{64} << 20;
  uint64_t far_paused_until_ = 0, far_full_until_ = 0, far_reserve_bytes_ = 0;  // PrefetchFar; that it leaves free
  uint64_t proactive_paused_until_ = 0;                                         // EvictProactively
  uint32_t live_chunks_ = 0;                                                    // chunks with a live byte
  uint64_t counted_launch_ = 0;                                                 // the newest at the last CountUsed
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_RESIDENCY_STATE_H_
