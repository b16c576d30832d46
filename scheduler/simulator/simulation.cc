#include "scheduler/simulator/simulation.h"

#include <algorithm>
#include <map>
#include <optional>

#include "scheduler/placement/random.h"

namespace sluice::scheduler {
namespace {

double CapacityOf(const std::vector<Node>& nodes) {
  double sum = 0;
  for (const Node& node : nodes) sum += node.CapacityUnits();
  return sum;
}

bool ModelFits(const Node& node, const TracePod& pod) {
  return pod.models.empty() || std::find(pod.models.begin(), pod.models.end(), node.model) != pod.models.end();
}

// Caches ratings by (shape of pod, node) until the node changes: of a thousand nodes, one changes with each pod.
class Ratings {
 public:
  Ratings(const std::vector<Node>& nodes, std::size_t shapes, const PlacementPolicy& policy)
      : nodes_(nodes), policy_(policy), versions_(nodes.size(), 0) {
    // With tens of thousands of different pods and nodes, the cache would fill the memory: rate afresh each time.
    if (shapes * nodes.size() <= kMaxEntries) entries_.resize(shapes * nodes.size());
  }

  const std::optional<Placement>& Of(std::size_t shape, const TracePod& pod, std::size_t node) {
    Entry& entry = entries_.empty() ? scratch_ : entries_[shape * nodes_.size() + node];
    if (entries_.empty() || entry.version != versions_[node]) {
      entry.version = versions_[node];
      entry.placement = ModelFits(nodes_[node], pod) ? Place(nodes_[node], pod.request, policy_) : std::nullopt;
    }
    return entry.placement;
  }

  void Changed(std::size_t node) { ++versions_[node]; }

 private:
  static constexpr std::size_t kMaxEntries = 8'000'000;
  struct Entry {
    int version = -1;
    std::optional<Placement> placement;
  };

  const std::vector<Node>& nodes_;
  const PlacementPolicy& policy_;
  std::vector<int> versions_;
  std::vector<Entry> entries_;
  Entry scratch_;
};

}  // namespace

std::vector<TracePod> Arrivals(const std::vector<Node>& nodes, const std::vector<TracePod>& pods, double until,
                               std::uint64_t seed) {
  Random random(seed);
  std::vector<TracePod> arrivals = pods;
  double sum = 0;
  for (const TracePod& pod : pods) sum += pod.request.TotalUnits();
  const double wanted = until * CapacityOf(nodes);
  while (sum > 0 && sum < wanted) {
    arrivals.push_back(pods[random.Below(pods.size())]);
    sum += arrivals.back().request.TotalUnits();
  }
  random.Shuffle(arrivals);
  return arrivals;
}

Outcome Simulate(std::vector<Node> nodes, const std::vector<TracePod>& arrivals, const PlacementPolicy& policy,
                 const RequestMix& mix, const SimulationOptions& options) {
  for (Node& node : nodes) {  // idle, so that the free amounts are the capacities
    node.cpu_milli = node.cpu_milli_free;
    node.memory_mib = node.memory_mib_free;
  }
  std::map<TracePod, std::size_t> shapes;
  for (const TracePod& pod : arrivals) shapes.emplace(pod, shapes.size());
  Ratings ratings(nodes, shapes.size(), policy);

  const double capacity = std::max(1.0, CapacityOf(nodes));
  std::vector<double> fragments(nodes.size(), 0);
  double fragment = 0;
  const auto measure = [&](std::size_t node) {
    if (!options.fragment) return;
    fragment -= fragments[node];
    fragments[node] = ExpectedFragment(nodes[node], mix);
    fragment += fragments[node];
  };
  for (std::size_t i = 0; i < nodes.size(); ++i) measure(i);

  Outcome outcome;
  double arrived = 0, allocated = 0, next_point = 0;
  bool full = false;
  for (const TracePod& pod : arrivals) {
    const std::size_t shape = shapes.at(pod);
    std::size_t best = nodes.size();
    std::optional<Placement> chosen;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const std::optional<Placement>& placement = ratings.Of(shape, pod, i);
      if (!placement || (chosen && placement->score <= chosen->score)) continue;
      best = i;
      chosen = placement;
    }
    arrived += pod.request.TotalUnits();
    if (chosen) {
      Take(nodes[best], pod.request, chosen->cards);
      ratings.Changed(best);
      measure(best);
      allocated += pod.request.TotalUnits();
    }
    outcome.placed.push_back(chosen.has_value());
    if (!full && arrived >= capacity) {
      full = true;
      outcome.allocated_at_full = allocated / capacity;
    }
    if (arrived / capacity >= next_point) {
      outcome.curve.push_back({arrived / capacity, allocated / capacity, fragment / capacity});
      next_point = arrived / capacity + 0.01;
    }
  }
  outcome.allocated_at_end = allocated / capacity;
  if (!full) outcome.allocated_at_full = outcome.allocated_at_end;
  return outcome;
}

std::vector<TracePod> WithoutFractions(std::vector<TracePod> pods) {
  for (TracePod& pod : pods) {
    if (pod.request.cards == 1) pod.request.units = kTraceUnitsPerCard;
  }
  return pods;
}

RequestMix MixOfPods(const std::vector<TracePod>& pods) {
  std::vector<Request> requests;
  requests.reserve(pods.size());
  for (const TracePod& pod : pods) requests.push_back(pod.request);
  return MixOf(requests);
}

}  // namespace sluice::scheduler
