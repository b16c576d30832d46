// Places all chains of one pod on one node at once.
#ifndef SLUICE_SCHEDULER_PLACEMENT_POD_PACKING_H_
#define SLUICE_SCHEDULER_PLACEMENT_POD_PACKING_H_

#include <span>
#include <string>
#include <variant>
#include <vector>

#include "scheduler/placement/chains.h"
#include "scheduler/placement/node_model.h"
#include "scheduler/placement/placement_policy.h"

namespace sluice::scheduler {

struct PodPacking {
  std::vector<CardSet> cards;  // one per chain
  double score = 0;            // the policy's, summed
};

// Why the pod does not fit, in numbers. The caller makes the message, and may merge the reasons of many nodes.
struct PackingFailure {
  int units = 0;              // of the chain that fits nowhere, on all its cards; of all chains if `only_jointly`
  int cards = 1;              // of that chain
  int largest_free = 0;       // units on one card
  int cards_with_room = 0;    // for the chain's units on one card
  int sum_free = 0;           // units of all cards
  bool only_jointly = false;  // each chain fits alone, but not all of them at once
};

// Tries the chains largest first, each in the policy's order of preference, and backtracks where a later chain does not
// fit. Only cards decide, because the scheduler has already checked CPU and memory; `host` counts for the score.
std::variant<PodPacking, PackingFailure> PackPod(const Node& node, std::span<const Chain> chains, const Request& host,
                                                 const PlacementPolicy& policy);
// The same, for callers that cache the node's worth.
std::variant<PodPacking, PackingFailure> PackPod(const Node& node, const NodeWorth& before,
                                                 std::span<const Chain> chains, const Request& host,
                                                 const PlacementPolicy& policy);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_POD_PACKING_H_
