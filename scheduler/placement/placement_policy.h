// Where a request should go: one small interface, a policy is a score.
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

struct Score {
  double node = 0;  // compared between nodes, higher is better; the first of equal nodes wins
  double card = 0;  // compared between choices on one node, higher is better; the first of equal choices wins
};

// What a node is worth before anything is placed: every choice on it is compared with that.
struct Worth {
  double fragment = 0;
  double use = 0;
};

// Pure: the same node, request and choice give the same score, so that callers may cache it until the node changes.
class Policy {
 public:
  virtual ~Policy() = default;
  virtual Worth WorthOf(const Node& node) const;
  // `cards` is one of Choices(node, request), the host part of the request fits, and `before` is the node's worth.
  virtual Score Rate(const Node& node, const Worth& before, const Request& request, const CardSet& cards) const = 0;
};

struct Placement {
  CardSet cards;
  double score = 0;
};

// The policy's choice on this node; nothing if CPU, memory or cards do not suffice.
std::optional<Placement> Place(const Node& node, const Request& request, const Policy& policy);
std::optional<Placement> Place(const Node& node, const Worth& before, const Request& request, const Policy& policy);

// The first is the default (scheduler/README.md says what each is good at).
const std::vector<std::string>& PolicyNames();
// `mix`: the requests to expect. Unknown names are an error that lists the known ones.
absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(std::string_view name, const RequestMix& mix, int units_per_card);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_PLACEMENT_POLICY_H_
