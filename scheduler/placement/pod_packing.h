// All of a pod's chains on one node at once.
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

struct Packing {
  std::vector<CardSet> cards;  // one a chain
  double score = 0;            // the policy's, summed
};

// Why not, in numbers: the caller has the words (and may merge many nodes' reasons).
struct NoRoom {
  int units = 0;          // of the chain that found no place; above 100: whole cards
  int largest_free = 0;   // on one card
  int whole_free = 0;     // cards
  int sum_free = 0;       // units of all cards
  bool together = false;  // each chain alone has a place, all of them do not
};

// Chains are tried largest first, each in the policy's order of preference, and taken back where a later one then has
// no place. Only cards decide (the scheduler has checked CPU and memory before); `host` counts for the score.
std::variant<Packing, NoRoom> Pack(const Node& node, std::span<const Chain> chains, const Request& host,
                                   const Policy& policy);
// The same, for callers that keep the node's worth.
std::variant<Packing, NoRoom> Pack(const Node& node, const Worth& before, std::span<const Chain> chains,
                                   const Request& host, const Policy& policy);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_POD_PACKING_H_
