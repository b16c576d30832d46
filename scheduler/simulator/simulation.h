// Simulates placement: pods arrive one by one, a policy places them, and no pod ends.
#ifndef SLUICE_SCHEDULER_SIMULATOR_SIMULATION_H_
#define SLUICE_SCHEDULER_SIMULATOR_SIMULATION_H_

#include <cstdint>
#include <vector>

#include "scheduler/placement/node_model.h"
#include "scheduler/placement/placement_policy.h"
#include "scheduler/simulator/trace_csv.h"

namespace sluice::scheduler {

// The published protocol: all pods, then pods drawn from them with replacement until their GPU requests sum to `until`
// times the cluster's GPUs (never fewer than all pods), in random order.
std::vector<TracePod> Arrivals(const std::vector<Node>& nodes, const std::vector<TracePod>& pods, double until,
                               std::uint64_t seed);

struct Point {
  double arrived = 0;    // GPU requests so far, as a part of the cluster's GPUs
  double allocated = 0;  // part of the cluster's GPUs
  double fragment = 0;   // expected unusable part of the cluster's GPUs (see fragmentation.h)
};

struct Outcome {
  double allocated_at_full = 0;  // at the arrival with which the requests reach the cluster's GPUs
  double allocated_at_end = 0;
  std::vector<bool> placed;  // by arrival; false: the pod fitted nowhere
  std::vector<Point> curve;  // a point per percent of arrivals
};

struct SimulationOptions {
  bool fragment = false;  // fill Point::fragment, which takes time
};

// `mix` defines Point::fragment; policies hold a mix of their own. Ties between nodes go to the first.
Outcome Simulate(std::vector<Node> nodes, const std::vector<TracePod>& arrivals, const PlacementPolicy& policy,
                 const RequestMix& mix, const SimulationOptions& options = {});

// The same pods for a cluster without fractions: each request for a part of a card becomes one for a whole card.
std::vector<TracePod> WithoutFractions(std::vector<TracePod> pods);

RequestMix MixOfPods(const std::vector<TracePod>& pods);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_SIMULATOR_SIMULATION_H_
