#include "scheduler/simulator/claim_policies.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sluice::scheduler {
namespace {

double UsedShare(std::int64_t capacity, std::int64_t free, std::int64_t requested) {
  return capacity <= 0 ? 0 : static_cast<double>(capacity - free + requested) / static_cast<double>(capacity);
}

// kube-scheduler's plugins score from 0 to 100, in whole numbers.
double Whole(double share) { return std::floor(100 * share); }

class ClaimPolicy : public PlacementPolicy {
 public:
  ClaimPolicy(bool binpack, bool fullest) : binpack_(binpack), fullest_(fullest) {}
  ClaimPolicy(std::unique_ptr<PlacementPolicy> nodes, bool fullest) : nodes_(std::move(nodes)), fullest_(fullest) {}

  NodeWorth WorthOf(const Node& node) const override { return nodes_ ? nodes_->WorthOf(node) : NodeWorth{}; }

  Score Rate(const Node& node, const NodeWorth& before, const Request& request, const CardSet& cards) const override {
    return {nodes_ ? nodes_->Rate(node, before, request, cards).node : ScoreOfHost(node, request), Rank(node, cards)};
  }

 private:
  double ScoreOfHost(const Node& node, const Request& request) const {
    const double cpu = UsedShare(node.cpu_milli, node.cpu_milli_free, request.cpu_milli);
    const double memory = UsedShare(node.memory_mib, node.memory_mib_free, request.memory_mib);
    const double used = (Whole(cpu) + Whole(memory)) / 2;
    // BalancedAllocation: of two shares, the standard deviation is half their difference.
    return (binpack_ ? std::floor(used) : std::floor(100 - used)) + Whole(1 - std::abs(cpu - memory) / 2);
  }

  // Higher for the cards that stand earlier in the slice.
  double Rank(const Node& node, const CardSet& cards) const {
    double rank = 0;
    for (const int card : cards) {
      rank -= fullest_ ? static_cast<double>(node.cards[card].free) : static_cast<double>(card);
    }
    return rank;
  }

  const std::unique_ptr<PlacementPolicy> nodes_;
  const bool binpack_ = false;
  const bool fullest_ = false;
};

}  // namespace

const std::vector<std::string>& ClaimPolicyNames() {
  static const auto& names =
      *new std::vector<std::string>{"claims-spread-fixed",    "claims-spread-fullest",   "claims-binpack-fixed",
                                    "claims-binpack-fullest", "claims-look-ahead-fixed", "claims-look-ahead-fullest"};
  return names;
}

absl::StatusOr<std::unique_ptr<PlacementPolicy>> MakeClaimPolicy(std::string_view name, const RequestMix& mix,
                                                                 int units_per_card) {
  if (std::ranges::find(ClaimPolicyNames(), name) == ClaimPolicyNames().end()) {
    return absl::InvalidArgumentError(absl::StrCat("policy \"", std::string(name), "\" is unknown; known are ",
                                                   absl::StrJoin(ClaimPolicyNames(), ", ")));
  }
  const bool fullest = name.ends_with("-fullest");
  if (!name.starts_with("claims-look-ahead-"))
    return std::make_unique<ClaimPolicy>(name.starts_with("claims-binpack-"), fullest);
  auto nodes = MakePolicy("look-ahead", mix, units_per_card);
  if (!nodes.ok()) return nodes.status();
  return std::make_unique<ClaimPolicy>(*std::move(nodes), fullest);
}

}  // namespace sluice::scheduler
