#include "scheduler/policy.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/choices.h"
#include "scheduler/eventual_use.h"

namespace sluice::scheduler {
namespace {

// Free CPU and units count as parts of a large machine, so that a small node that is full beats a big one that is half
// full.
constexpr double kLargeCpuMilli = 128000;
constexpr double kLargeCards = 8;

double FreeAfter(const Node& node, const Request& request) {
  const double cpu = static_cast<double>(node.cpu_milli_free - request.cpu_milli) / kLargeCpuMilli;
  const double units =
      static_cast<double>(node.FreeUnits() - request.TotalUnits()) / (kLargeCards * node.units_per_card);
  return 0.5 * cpu + 0.5 * units;
}

int FirstFree(const Node& node, const CardSet& cards) { return cards.empty() ? 0 : node.cards[cards.front()].free; }

// The node and the card with the least left.
class BestFit : public Policy {
 public:
  Score Rate(const Node& node, const Request& request, const CardSet& cards) const override {
    return {-FreeAfter(node, request), -static_cast<double>(FirstFree(node, cards))};
  }
};

// The node with the greatest free part, the emptiest card: neighbours disturb each other least.
class Spread : public Policy {
 public:
  Score Rate(const Node& node, const Request& request, const CardSet& cards) const override {
    const double capacity = std::max(1, node.CapacityUnits());
    return {static_cast<double>(node.FreeUnits() - request.TotalUnits()) / capacity,
            static_cast<double>(FirstFree(node, cards))};
  }
};

double FragmentGrowth(const FragmentTable& table, const Node& node, const Request& request, const CardSet& cards) {
  return (table.Expected(node, request, cards) - table.Expected(node)) / node.units_per_card;
}

// As published, rounding included: whole scores of 0..100 tie often, and ties go to the first node. Unrounded it packs
// worse (the README has the figures).
class FragmentationGradientDescent : public Policy {
 public:
  FragmentationGradientDescent(const RequestMix& mix, int units_per_card) : fragment_(mix, units_per_card) {}

  Score Rate(const Node& node, const Request& request, const CardSet& cards) const override {
    const double score = std::floor(100 / (1 + std::exp(FragmentGrowth(fragment_, node, request, cards))));
    return {score, score};
  }

 private:
  FragmentTable fragment_;
};

// Half the growth of fragmentation (what the *next* request cannot use), half the loss of eventual use (what *no later*
// request will use, CPU and memory included). The first sees requests for several cards, the second sees that eight
// cards need eight requests' CPU.
class LookAhead : public Policy {
 public:
  LookAhead(const RequestMix& mix, int units_per_card)
      : use_(LearnEventualUse(mix, units_per_card)), fragment_(mix, units_per_card) {}

  Score Rate(const Node& node, const Request& request, const CardSet& cards) const override {
    const double lost = (ExpectedUse(node, use_) - ExpectedUse(node, use_, request, cards) - request.TotalUnits()) /
                        node.units_per_card;
    const double score = -0.5 * FragmentGrowth(fragment_, node, request, cards) - 0.5 * lost;
    return {score, score};
  }

 private:
  EventualUse use_;
  FragmentTable fragment_;
};

}  // namespace

std::optional<Placement> Place(const Node& node, const Request& request, const Policy& policy) {
  if (!HostFits(node, request)) return std::nullopt;
  std::optional<Placement> best;
  double best_card = 0;
  for (CardSet& cards : Choices(node, request)) {
    const Score score = policy.Rate(node, request, cards);
    if (best && score.card <= best_card) continue;
    best = Placement{std::move(cards), score.node};
    best_card = score.card;
  }
  return best;
}

const std::vector<std::string>& PolicyNames() {
  static const auto& names = *new std::vector<std::string>{"look-ahead", "fgd", "best-fit", "spread"};
  return names;
}

absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(std::string_view name, const RequestMix& mix, int units_per_card) {
  if (name == "look-ahead") return std::make_unique<LookAhead>(mix, units_per_card);
  if (name == "fgd") return std::make_unique<FragmentationGradientDescent>(mix, units_per_card);
  if (name == "best-fit") return std::make_unique<BestFit>();
  if (name == "spread") return std::make_unique<Spread>();
  return absl::InvalidArgumentError(
      absl::StrCat("policy \"", std::string(name), "\" is unknown; known are ", absl::StrJoin(PolicyNames(), ", ")));
}

}  // namespace sluice::scheduler
