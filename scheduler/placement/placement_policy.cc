#include "scheduler/placement/placement_policy.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/placement/choices.h"
#include "scheduler/placement/eventual_use.h"

namespace sluice::scheduler {
namespace {

// Free CPU and units are measured against a large machine, so that a full small node ranks above a half-full large one.
constexpr double kLargeCpuMilli = 128000;
constexpr double kLargeCards = 8;

double FreeAfter(const Node& node, const Request& request) {
  const double cpu = static_cast<double>(node.cpu_milli_free - request.cpu_milli) / kLargeCpuMilli;
  const double units =
      static_cast<double>(node.FreeUnits() - request.TotalUnits()) / (kLargeCards * node.units_per_card);
  return 0.5 * cpu + 0.5 * units;
}

int FirstFree(const Node& node, const CardSet& cards) { return cards.empty() ? 0 : node.cards[cards.front()].free; }

// Prefers the node and the card with the least left.
class BestFit : public PlacementPolicy {
 public:
  Score Rate(const Node& node, const NodeWorth&, const Request& request, const CardSet& cards) const override {
    return {-FreeAfter(node, request), -static_cast<double>(FirstFree(node, cards))};
  }
};

// Prefers the node with the greatest free share and its emptiest card: containers on a card disturb each other least.
class Spread : public PlacementPolicy {
 public:
  Score Rate(const Node& node, const NodeWorth&, const Request& request, const CardSet& cards) const override {
    const double capacity = std::max(1, node.CapacityUnits());
    return {static_cast<double>(node.FreeUnits() - request.TotalUnits()) / capacity,
            static_cast<double>(FirstFree(node, cards))};
  }
};

double FragmentGrowth(const FragmentTable& table, const Node& node, const NodeWorth& before, const Request& request,
                      const CardSet& cards) {
  return (table.Expected(node, request, cards) - before.fragment) / node.units_per_card;
}

// As published, rounding included: whole scores of 0..100 tie often, and ties go to the first node. Without rounding it
// packs worse (scheduler/README.md has the figures).
class FragmentationGradientDescent : public PlacementPolicy {
 public:
  FragmentationGradientDescent(const RequestMix& mix, int units_per_card) : fragment_(mix, units_per_card) {}

  NodeWorth WorthOf(const Node& node) const override { return {.fragment = fragment_.Expected(node)}; }

  Score Rate(const Node& node, const NodeWorth& before, const Request& request, const CardSet& cards) const override {
    const double score = std::floor(100 / (1 + std::exp(FragmentGrowth(fragment_, node, before, request, cards))));
    return {score, score};
  }

 private:
  FragmentTable fragment_;
};

// Half the growth of fragmentation (units that the next request cannot use), half the loss of eventual use (units that
// no later request will use, CPU and memory included). The first term covers requests for several cards; the second
// covers the CPU that eight cards' requests need.
class LookAhead : public PlacementPolicy {
 public:
  LookAhead(const RequestMix& mix, int units_per_card)
      : use_(LearnEventualUse(mix, units_per_card)), fragment_(mix, units_per_card) {}

  NodeWorth WorthOf(const Node& node) const override { return {fragment_.Expected(node), ExpectedUse(node, use_)}; }

  Score Rate(const Node& node, const NodeWorth& before, const Request& request, const CardSet& cards) const override {
    const double lost =
        (before.use - ExpectedUse(node, use_, request, cards) - request.TotalUnits()) / node.units_per_card;
    const double score = -0.5 * FragmentGrowth(fragment_, node, before, request, cards) - 0.5 * lost;
    return {score, score};
  }

 private:
  EventualUse use_;
  FragmentTable fragment_;
};

}  // namespace

NodeWorth PlacementPolicy::WorthOf(const Node&) const { return {}; }

std::optional<Placement> Place(const Node& node, const Request& request, const PlacementPolicy& policy) {
  if (!HostFits(node, request)) return std::nullopt;
  return Place(node, policy.WorthOf(node), request, policy);
}

std::optional<Placement> Place(const Node& node, const NodeWorth& before, const Request& request,
                               const PlacementPolicy& policy) {
  if (!HostFits(node, request)) return std::nullopt;
  std::optional<Placement> best;
  double best_card = 0;
  ForEachChoice(node, request, [&](const CardSet& cards) {
    const Score score = policy.Rate(node, before, request, cards);
    if (best && score.card <= best_card) return;
    if (!best) best.emplace();
    best->cards = cards;
    best->score = score.node;
    best_card = score.card;
  });
  return best;
}

const std::vector<std::string>& PolicyNames() {
  static const auto& names = *new std::vector<std::string>{"look-ahead", "fgd", "best-fit", "spread"};
  return names;
}

absl::StatusOr<std::unique_ptr<PlacementPolicy>> MakePolicy(std::string_view name, const RequestMix& mix,
                                                            int units_per_card) {
  if (name == "look-ahead") return std::make_unique<LookAhead>(mix, units_per_card);
  if (name == "fgd") return std::make_unique<FragmentationGradientDescent>(mix, units_per_card);
  if (name == "best-fit") return std::make_unique<BestFit>();
  if (name == "spread") return std::make_unique<Spread>();
  return absl::InvalidArgumentError(
      absl::StrCat("policy \"", std::string(name), "\" is unknown; known are ", absl::StrJoin(PolicyNames(), ", ")));
}

}  // namespace sluice::scheduler
