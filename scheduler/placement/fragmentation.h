// Fragmentation as Weng et al. define it (USENIX ATC 2023, section 3): the expected number of free units on a node that
// a request drawn from the mix could not use.
#ifndef SLUICE_SCHEDULER_PLACEMENT_FRAGMENTATION_H_
#define SLUICE_SCHEDULER_PLACEMENT_FRAGMENTATION_H_

#include <span>
#include <vector>

#include "scheduler/placement/node_model.h"

namespace sluice::scheduler {

struct WeightedRequest {
  Request request;
  double weight = 0;  // share of all requests, 0..1
};

// The requests that a cluster sees, equal ones merged. Weights sum to 1.
using RequestMix = std::vector<WeightedRequest>;

RequestMix MixOf(std::span<const Request> requests);

// Expected units of `node` that a request of the mix cannot use. If the request does not fit, these are all free units;
// else the free units on cards that are too full for it. Requests without cards count all free units, as published:
// they add the same amount on each node and never change the order.
double ExpectedFragment(const Node& node, const RequestMix& mix);

// The same value from tables that are computed once per mix. A policy asks for it some thousand times per pod.
class FragmentTable {
 public:
  FragmentTable(const RequestMix& mix, int units_per_card);
  // The value for the node after the request has taken these cards. The defaults give the value for the node as it is.
  double Expected(const Node& node, const Request& request = {}, const CardSet& cards = {}) const;

 private:
  // The requests for one card that need at most this much CPU. weight_above[free] is the weight of those among them
  // that need more than `free` units.
  struct Level {
    std::int64_t cpu_milli = 0;
    double weight = 0;
    std::vector<double> weight_above;
  };

  double single_weight_ = 0;  // of all requests for one card
  double no_card_weight_ = 0;
  std::int64_t max_memory_mib_ = 0;
  std::vector<Level> levels_;  // ascending
  RequestMix several_;         // requests for several cards
  RequestMix mix_;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_FRAGMENTATION_H_
