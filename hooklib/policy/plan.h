// What residency decides for one launch: which chunks leave, which come, what waits for what. Who only executes plans
// (cuda/) needs no more of residency than this.
//
// Extents are whole chunks, sorted and joined where they touch. Operations (`*_op`) are the departures or arrivals of
// one stream's out or in queue, counted from 1. Plain data, whose owner says how long it is valid.
#ifndef SLUICE_HOOKLIB_POLICY_PLAN_H_
#define SLUICE_HOOKLIB_POLICY_PLAN_H_

#include <vector>

#include "hooklib/memory/types.h"
#include "hooklib/policy/fetch/graph_strategy.h"
#include "hooklib/policy/fetch/launch_classifier.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

// One exchange: departures on the stream's out queue, then arrivals on its in queue.
struct PlanStep {
  std::vector<Extent> drop;       // duplicates that leave the card at once: the advice is withdrawn
  std::vector<Extent> unmap;      // are fetched, were used in host memory before: no longer mapped there
  std::vector<Extent> duplicate;  // to be mapped_remote read-mostly in host memory, before they are fetched
  std::vector<Extent> evict;
  std::vector<Extent> fetch;
  Seq out_after = 0;          // the out queue first waits for this position of the application stream; 0: at once
  uint64_t out_op = 0;        // number of the departures in the out queue; 0: none
  uint64_t in_op = 0;         // number of the arrivals in the in queue; 0: none
  uint64_t in_after_out = 0;  // the in queue first waits for this departure; 0: for none
  uint64_t fetch_content_bytes = 0;  // bytes of `fetch` that hold anything
  bool empty() const { return out_op == 0 && in_op == 0 && drop.empty(); }
  void Clear();
};

// Of one launch.
struct Plan {
  bool is_empty = true;  // there is nothing in it
  // Dead, with nothing queued or under way that could touch it: to be discarded at once, and waited for.
  std::vector<Extent> discard;
  // Dead, but work that may have touched it is still queued, on this stream alone: to be discarded in the stream's
  // order, behind all that it holds and before the launch and its fetches.
  std::vector<Extent> stream_discard;
  // Named by the launch, discarded, and nothing can be queued: to be brought at once, which moves nothing, and waited
  // for.
  std::vector<Extent> populate_now;
  // Used where it lies, in host memory: the GPU is to be told to map it there, before the launch.
  std::vector<Extent> map_remote;
  std::vector<Extent> unmap_remote;  // is to fault again instead
  // The launch overwrites it whole: to be discarded and brought back empty, on the GPU behind all that the stream holds
  // and before the launch (overwrites.cc).
  std::vector<Extent> repopulate;
  uint64_t repopulate_after = 0;    // number of the departures on the out queue that make its room; 0: none
  LaunchProbe probe;                // id 0: the launch need not be timed
  GraphProbe graph_probe;           // id 0: it is no graph larger than all that may be resident
  PlanStep now;                     // what the launch needs
  uint64_t wait_in = 0;             // the launch's stream waits for this arrival; 0: all is there
  PlanStep ahead;                   // for launches to come
  std::vector<Extent> evict_after;  // did not fit: faults bring it, and it leaves behind the launch
  uint64_t evict_after_op = 0;      // number of evict_after in the out queue
  void Clear();                     // all but `is_empty`
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_PLAN_H_
