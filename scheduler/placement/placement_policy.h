// Where a request should go. A policy is a function that scores a choice of cards on a node.
#ifndef SLUICE_SCHEDULER_PLACEMENT_PLACEMENT_POLICY_H_
#define SLUICE_SCHEDULER_PLACEMENT_PLACEMENT_POLICY_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/fragmentation.h"
#include "scheduler/placement/node_model.h"

namespace sluice::scheduler {

// Higher is better.
struct Score {
  double node = 0;  // compared between nodes; the first of equal nodes wins
  double card = 0;  // compared between choices on one node; the first of equal choices wins
};

// The node's value before anything is placed. A policy compares every choice on the node with it.
struct NodeWorth {
  double fragment = 0;
  double use = 0;
};

// Pure: the same node, request and choice give the same score, so that callers may cache it until the node changes.
class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;
  virtual NodeWorth WorthOf(const Node& node) const;
  // `cards` is one of Choices(node, request), the request's CPU and memory fit, and `before` is WorthOf(node).
  virtual Score Rate(const Node& node, const NodeWorth& before, const Request& request, const CardSet& cards) const = 0;
};

struct Placement {
  CardSet cards;
  double score = 0;
};

// The policy's best choice on this node; nullopt if CPU, memory or cards do not suffice.
std::optional<Placement> Place(const Node& node, const Request& request, const PlacementPolicy& policy);
std::optional<Placement> Place(const Node& node, const NodeWorth& before, const Request& request,
                               const PlacementPolicy& policy);

// The first is the default. scheduler/README.md compares them.
const std::vector<std::string>& PolicyNames();
// `mix`: the requests to expect. The error for an unknown name lists the known ones.
absl::StatusOr<std::unique_ptr<PlacementPolicy>> MakePolicy(std::string_view name, const RequestMix& mix,
                                                            int units_per_card);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_PLACEMENT_POLICY_H_
