// Fragmentation as Weng et al. define it (USENIX ATC 2023, section 3): the free units of a node that a request drawn
// from the mix could not use, in expectation.
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

// The requests that a cluster sees, equal ones together. Weights sum to 1.
using RequestMix = std::vector<WeightedRequest>;

RequestMix MixOf(std::span<const Request> requests);

// Expected units of `node` that a request of the mix cannot use: all that is free where the request does not fit, else
// what is free on cards that are too full for it. Requests without cards make all free units count, the same on each
// node: they shift the value and never the order, so they are kept as published.
double ExpectedFragment(const Node& node, const RequestMix& mix);

// The same value from tables made once for a mix: a policy asks for it some thousand times a pod.
class FragmentTable {
 public:
  FragmentTable(const RequestMix& mix, int units_per_card);
  // Of the node as it would be with the request on these cards; an empty request on no cards changes nothing.
  double Expected(const Node& node, const Request& request = {}, const CardSet& cards = {}) const;

 private:
  // Requests for one card that need this much CPU or less: weight_above[free] is the weight of those that need more
  // units than `free`.
  struct Level {
    std::int64_t cpu_milli = 0;
    double weight = 0;
    std::vector<double> weight_above;
  };

  double single_weight_ = 0;  // of all requests for one card
  double no_card_weight_ = 0;
  std::int64_t most_memory_mib_ = 0;
  std::vector<Level> levels_;  // ascending
  RequestMix several_;         // requests for several cards
  RequestMix mix_;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_FRAGMENTATION_H_
