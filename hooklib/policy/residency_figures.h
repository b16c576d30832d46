// The figures of Residency (residency.h): bytes that are resident, in flight or missing. They decide nothing.
#ifndef SLUICE_HOOKLIB_POLICY_RESIDENCY_FIGURES_H_
#define SLUICE_HOOKLIB_POLICY_RESIDENCY_FIGURES_H_

#include <optional>
#include <span>

#include "hooklib/policy/residency_settings.h"

namespace sluice::policy {

class ResidencyFigures : public ResidencySettings {
 public:
  uint64_t capacity() const { return capacity_; }
  uint64_t resident_bytes() const { return resident_bytes_; }
  const ResidencyStats& stats() const { return stats_; }
  const ProbeStats& probe_stats() const { return classifier_.probe_stats(); }
  const GraphRemainder& graph_remainder() const { return graph_remainder_; }  // of the newest graph
  const PlacementStats& placement_stats() const { return placement_.stats; }
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
  // Of work that touches this now: bytes of chunks that are not resident; live bytes that would have to be evicted.
  uint64_t MissingBytes(std::span<const Extent> set), BytesToEvict(std::span<const Extent> set);
  // Bytes of evictions in flight: asks the GPU; and as it last answered.
  uint64_t EvictingBytes();
  uint64_t evicting_bytes() const { return evicting_bytes_; }
  // Whether evictions are in flight, beside those of the stream's queue. Asks the GPU.
  bool HasEvictionsInFlight(std::optional<StreamId> beside = {}) const;
  // Fetches are in flight, and no eviction brings the container back to its budget. Asks the GPU.
  bool FetchesWithinBudget();
  uint64_t fetching_bytes() const;              // of fetches in flight, as the GPU last answered
  uint64_t NextTransferBytes(StreamId stream);  // of the stream's first eviction and first fetch in flight

 protected:
  using ResidencySettings::ResidencySettings;
  // Takes transfers that are over out of the stream's queues. Asks the GPU.
  void DrainOps(StreamQueues* queues, StreamId stream);
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_RESIDENCY_FIGURES_H_
