// The state of placement (placement.cc): which host-resident chunks take the place of which resident ones. Times are
// iterations (iterations.h) unless they are launch numbers.
#ifndef SLUICE_HOOKLIB_POLICY_FETCH_PLACEMENT_STATE_H_
#define SLUICE_HOOKLIB_POLICY_FETCH_PLACEMENT_STATE_H_

#include <cstdint>
#include <unordered_set>

#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

// Figures as of the newest iteration's begin, for a log that explains the placement. In bytes unless noted.
struct PlacementStats {
  uint64_t iteration = 0, launches = 0;    // its number; launches of the one before it
  uint64_t moved_bytes = 0;                // in the one before it
  uint32_t still_iterations = 0;           // of one length in a row in which next to nothing moved
  uint64_t cold_bytes = 0, hot_bytes = 0;  // resident and little used; host-resident and much used
  uint64_t demoted_bytes = 0;              // cold bytes that make room for hot ones ...
  uint64_t first_used_bytes = 0;           // ... among them those used first after a host synchronization
  uint64_t filled_bytes = 0;               // promoted into room that stayed free
};

// Neighbouring live chunks that are alike.
struct PlacementRun {
  Extent range;
  bool resident = false;
  bool long_lived = false;     // live for an iteration, and no launch is known to require them resident
  bool recently_used = false;  // in the iteration that is over, or in this one
  uint64_t link_bytes = 0;     // used by the launches of an iteration
  uint64_t id = 0;             // of the launch that names most of the first of them
};

struct PlacementState {
  PlacementStats stats;
  uint64_t moved_bytes_before = 0;     // up to the iteration's begin
  uint64_t previous_length = 0;        // launches of the iteration before
  uint32_t still_iterations = 0;       // as in PlacementStats
  uint64_t last_remote_iteration = 0;  // the newest in which a launch used host memory
  // A host run: the launches between two synchronizations of the host. Launch numbers and launches.
  uint64_t host_run_begin = 0;
  uint64_t long_host_run_begin = 0, long_host_run = 0;  // the newest of half an iteration or more
  // Exchanges.
  uint64_t next_exchange = 0;      // before it there is none
  uint32_t exchange_pause = 2;     // behind the next that undoes another
  bool promotions_chosen = false;  // Chunk::promote_iteration names the promoted chunks; false: the first that are used
  // Promotion: room that stayed free in a whole iteration, and room of demoted chunks, is filled in the next one with
  // chunks that would be used remotely.
  uint64_t promote_bytes = 0;
  uint32_t promotion_pause = 0;  // iterations without one, since promoted chunks had to be evicted again
  uint32_t next_promotion_pause = 2;
  // Probe victims: resident chunks that are evicted to time a launch.
  uint64_t victim_bytes = 0;                // in this iteration
  uint64_t next_victim = 0;                 // before it no launch is looked for
  uint32_t victim_pause = 1;                // until the one after it
  std::unordered_set<uint64_t> probed_ids;  // execution ids that had victims
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_FETCH_PLACEMENT_STATE_H_
