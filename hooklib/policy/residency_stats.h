// Residency's counters, for the exit line, the agent and the tests. Bytes and events since the start.
#ifndef SLUICE_HOOKLIB_POLICY_RESIDENCY_STATS_H_
#define SLUICE_HOOKLIB_POLICY_RESIDENCY_STATS_H_

#include <cstdint>

namespace sluice::policy {

struct ResidencyStats {
  uint64_t hits = 0, misses = 0;  // chunks
  uint64_t bytes_in = 0, bytes_out = 0, bytes_saved = 0;
  uint64_t bytes_dropped = 0;          // duplicates, whose eviction moves nothing
  uint64_t fault_bytes = 0;            // an estimate: named contents that were left to faults
  uint64_t remote_bytes = 0;           // of chunks used remotely, once for each launch
  uint64_t demand_paged_launches = 0;  // left to demand faults by choice
  uint64_t over_budget_launches = 0;
  uint64_t over_budget_max = 0;
  uint64_t host_bytes = 0;  // distinct bytes ever evicted: host pages stay with the block
};

// Bytes of chunks that work used, without those that were found not to be touched.
struct UsedBytes {
  uint64_t since_launch = 0;  // live ones that launches since the given one used
  uint64_t within_minute = 0;
};

// The non-resident bytes of a graph larger than the capacity, by the reason why they cannot be duplicated.
struct GraphRemainder {
  uint64_t copied = 0;     // none: copies alone wrote them, or their eviction is awaited
  uint64_t freed = 0;      // no byte of the chunk is live
  uint64_t written = 0;    // kernels wrote of the chunk, or may have
  uint64_t withdrawn = 0;  // written while it was a duplicate
  uint64_t evicting_elsewhere = 0;
  uint64_t disabled = 0;  // switched off, or a peer uses the memory
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_RESIDENCY_STATS_H_
