// The transfers of one application stream, as residency planned them, and the prediction of its launches. Operations
// are numbered as in plan.h.
#ifndef SLUICE_HOOKLIB_POLICY_STREAM_QUEUES_H_
#define SLUICE_HOOKLIB_POLICY_STREAM_QUEUES_H_

#include <cstdint>
#include <deque>
#include <utility>

#include "hooklib/policy/predict/predictor.h"

namespace sluice::policy {

struct StreamQueues {
  uint64_t in_op = 0, out_op = 0;   // the newest
  uint64_t awaited_in_op = 0;       // the application stream has waited up to here
  uint64_t in_awaited_out_op = 0;   // the in queue has waited up to here
  uint64_t evict_behind_op = 0;     // the newest evictions behind a launch
  uint64_t graph_out_op = 0;        // the evictions behind a graph larger than the capacity
  uint64_t bytes_beside_graph = 0;  // fetched without a wait for those
  // Operations in flight, as the GPU last answered: number, bytes.
  std::deque<std::pair<uint64_t, uint64_t>> evictions;
  std::deque<std::pair<uint64_t, uint64_t>> fetches;
  uint64_t prefetched_bytes = 0;  // for later launches, not used yet
  Predictor predictor;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_STREAM_QUEUES_H_
