// The launch that is being planned, as the parts of Residency::Prepare hand it on.
#ifndef SLUICE_HOOKLIB_POLICY_PLANNED_LAUNCH_H_
#define SLUICE_HOOKLIB_POLICY_PLANNED_LAUNCH_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "hooklib/policy/fetch/graph_strategy.h"
#include "hooklib/policy/fetch/launch_classifier.h"
#include "hooklib/policy/memory_names.h"
#include "hooklib/policy/predict/predictor.h"

namespace sluice::policy {

struct PlannedLaunch {
  StreamId stream;
  uint64_t id;
  bool can_queue;
  LaunchHash hash{id};
  uint64_t set_hash = 0;        // hash.sum() once the set is complete
  bool lacks_chunks = false;    // some of its set is not resident, or perhaps not yet
  bool oversize = false;        // its set is larger than the capacity
  bool leaves_residue = false;  // and it is no graph: faults bring the touched pages of its set
  LaunchClassifier::Traits traits{};
  std::optional<GraphStrategy> strategy{};  // of an oversize graph
  bool explores = false;                    // some of its chunks are being tried
  bool exceeds_share = false;               // a graph, by more than samples leave: further chunks will be tried
  uint64_t capacity = 0;                    // bytes that may be resident at all
  uint64_t own_capacity = 0;                // its part of them
  size_t reused_chunks = 0;                 // chunks of reused_after_discard_ that it fetches
  uint64_t remote_bytes = 0;                // bytes of its set that it uses remotely
};

// One extent of the launch's set.
struct Operand {
  uint64_t bytes;
  size_t end;  // in the set; its chunks begin at the end of the operand before
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_PLANNED_LAUNCH_H_
