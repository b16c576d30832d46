// Fragmentation as Weng et al. define it (USENIX ATC 2023, section 3): the free units of a node that a request drawn
// from the mix could not use, in expectation.
#ifndef SCHEDULER_FRAGMENTATION_H_
#define SCHEDULER_FRAGMENTATION_H_

#include <span>
#include <vector>

#include "scheduler/node.h"

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

}  // namespace sluice::scheduler

#endif  // SCHEDULER_FRAGMENTATION_H_
