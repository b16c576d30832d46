// A plan: the evictions, fetches and discards that residency decides for one launch, and the order between them. The
// engine executes plans and needs no more of residency than this.
//
// Extents are whole chunks, sorted and joined where they touch. An operation (`*_op`) is one batch of evictions on a
// stream's out queue or of fetches on its in queue, counted from 1. Plain data; its owner says how long it is valid.
#ifndef SLUICE_HOOKLIB_POLICY_PLAN_H_
#define SLUICE_HOOKLIB_POLICY_PLAN_H_

#include <vector>

#include "hooklib/memory/types.h"
#include "hooklib/policy/fetch/graph_strategy.h"
#include "hooklib/policy/fetch/launch_probe.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

// A part of a step's evictions and fetches: `evict` and `fetch` of the step, from the end of the part before on.
struct PlanPiece {
  size_t evict_end = 0, fetch_end = 0;
  uint64_t out_op = 0, in_op = 0;    // 0: none
  uint64_t in_after_out = 0;         // the in queue first waits for this out_op; 0: no wait
  uint64_t fetch_content_bytes = 0;  // bytes of its fetch that have contents
};

// One exchange: evictions on the stream's out queue, and fetches on its in queue into the room that these leave. All
// evictions are queued first.
struct PlanStep {
  std::vector<Extent> drop;       // duplicates that are dropped at once: their advice is withdrawn
  std::vector<Extent> unmap;      // fetched chunks that were mapped remotely and no longer are
  std::vector<Extent> duplicate;  // to be advised read-mostly before they are fetched
  std::vector<Extent> evict;
  std::vector<Extent> fetch;
  std::vector<PlanPiece> pieces;
  Seq out_after = 0;    // the out queue first waits for this position of the application stream; 0: no wait
  uint64_t out_op = 0;  // the last piece's, in the out queue; 0: none
  uint64_t in_op = 0;   // the last piece's, in the in queue; 0: none
  bool empty() const { return out_op == 0 && in_op == 0 && drop.empty(); }
  void Clear();
};

struct Plan {
  bool is_empty = true;  // no action is planned
  // Free chunks without queued work that could touch them: to be discarded at once, on the host's time.
  std::vector<Extent> discard;
  // Free chunks that queued work of this stream alone may have touched: to be discarded in the stream's order, behind
  // all that it holds and before the launch and its fetches.
  std::vector<Extent> stream_discard;
  // Discarded chunks that the launch may write while nothing can be queued: to be populated at once, on the host's
  // time, which moves nothing. On the GPU where the budget has room, else in host memory.
  std::vector<Extent> populate_now;
  std::vector<Extent> populate_on_host;
  // Chunks that the launch uses remotely: to be mapped in host memory before it.
  std::vector<Extent> map_remote;
  std::vector<Extent> unmap_remote;  // chunks that are to fault again instead
  // Chunks that the launch overwrites whole: to be discarded and populated empty, in the stream's order and before the
  // launch (overwrites.cc).
  std::vector<Extent> repopulate;
  uint64_t repopulate_after = 0;  // out_op of the evictions that make its room; 0: none
  LaunchProbe probe;              // id 0: the launch need not be timed
  GraphProbe graph_probe;         // id 0: it is no graph larger than the capacity
  PlanStep now;                   // for this launch
  uint64_t wait_in = 0;           // the launch's stream waits for this in_op; 0: no wait
  PlanStep ahead;                 // for later launches
  // Chunks that did not fit: demand faults or a transient fetch bring them, and they are evicted behind the launch.
  std::vector<Extent> evict_after;
  uint64_t evict_after_op = 0;  // of evict_after, in the out queue
  void Clear();                 // all but `is_empty`
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_PLAN_H_
