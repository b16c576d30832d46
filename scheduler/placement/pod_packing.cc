#include "scheduler/placement/pod_packing.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "scheduler/placement/choices.h"

namespace sluice::scheduler {
namespace {

// Bounds the backtracking: a pod with more chains than the node has cards counts as not fitting after this many steps.
constexpr int kMaxSearchSteps = 20000;
constexpr std::size_t kMaxSets = 2000;  // of one chain's cards, tried where close cards lead to nothing

Request RequestOf(const Chain& chain) { return {.cards = chain.Cards(), .units = chain.UnitsPerCard()}; }

class Search {
 public:
  Search(const Node& node, std::span<const Chain> chains, const Request& host, const PlacementPolicy& policy)
      : node_(node), chains_(chains), host_(host), policy_(policy), order_(chains.size()) {
    // The scheduler's CPU figures are fresher than ours, so ours must never reject a node that its filter accepted.
    node_.cpu_milli_free = std::max(node_.cpu_milli_free, host.cpu_milli);
    node_.memory_mib_free = std::max(node_.memory_mib_free, host.memory_mib);
    std::iota(order_.begin(), order_.end(), 0);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::size_t a, std::size_t b) { return chains_[a].total > chains_[b].total; });
    packing_.cards.resize(chains.size());
  }

  bool Step(std::size_t at) {
    if (at == order_.size()) return true;
    if (++steps_ > kMaxSearchSteps) return false;
    Request request = RequestOf(chains_[order_[at]]);
    if (at == 0) {
      request.cpu_milli = host_.cpu_milli;
      request.memory_mib = host_.memory_mib;
    }
    struct Option {
      CardSet cards;
      Score score;
    };
    std::vector<Option> options;
    const NodeWorth before_worth = policy_.WorthOf(node_);
    for (CardSet& cards : Choices(node_, request)) {
      const Score score = policy_.Rate(node_, before_worth, request, cards);
      options.push_back({std::move(cards), score});
    }
    std::stable_sort(options.begin(), options.end(),
                     [](const Option& a, const Option& b) { return a.score.card > b.score.card; });
    for (Option& option : options) {
      if (Try(at, request, option.cards)) {
        packing_.score += option.score.node;
        packing_.cards[order_[at]] = std::move(option.cards);
        return true;
      }
    }
    if (request.cards <= 1 || at + 1 == order_.size()) return false;
    for (CardSet& cards : AllChoices(node_, request, kMaxSets)) {
      if (steps_ > kMaxSearchSteps) return false;
      const double score = policy_.Rate(node_, before_worth, request, cards).node;
      if (!Try(at, request, cards)) continue;
      packing_.score += score;
      packing_.cards[order_[at]] = std::move(cards);
      return true;
    }
    return false;
  }

  PodPacking Result() && { return std::move(packing_); }

 private:
  // Whether the chains after `at` fit beside these cards.
  bool Try(std::size_t at, const Request& request, const CardSet& cards) {
    const Node before = node_;
    Take(node_, request, cards);
    if (Step(at + 1)) return true;
    node_ = before;
    return false;
  }

  Node node_;
  std::span<const Chain> chains_;
  const Request& host_;
  const PlacementPolicy& policy_;
  std::vector<std::size_t> order_;
  PodPacking packing_;
  int steps_ = 0;
};

PackingFailure Explain(const Node& node, std::span<const Chain> chains) {
  PackingFailure reason{.sum_free = node.FreeUnits()};
  for (const Card& card : node.cards) {
    reason.largest_free = std::max(reason.largest_free, card.free);
  }
  for (const Chain& chain : chains) {
    bool fits = false;
    ForEachChoice(node, RequestOf(chain), [&fits](const CardSet&) { fits = true; });
    if (fits || chain.total <= reason.units) continue;
    reason.units = chain.total;
    reason.cards = chain.Cards();
    reason.cards_with_room = static_cast<int>(
        std::ranges::count_if(node.cards, [&](const Card& card) { return card.free >= chain.UnitsPerCard(); }));
  }
  if (reason.units == 0) {
    reason.only_jointly = true;
    for (const Chain& chain : chains) reason.units += chain.total;
    reason.cards = 1;
  }
  return reason;
}

}  // namespace

std::variant<PodPacking, PackingFailure> PackPod(const Node& node, std::span<const Chain> chains, const Request& host,
                                                 const PlacementPolicy& policy) {
  return PackPod(node, policy.WorthOf(node), chains, host, policy);
}

std::variant<PodPacking, PackingFailure> PackPod(const Node& node, const NodeWorth& before,
                                                 std::span<const Chain> chains, const Request& host,
                                                 const PlacementPolicy& policy) {
  // The common case, one chain: no search and no copy of the node.
  if (chains.size() == 1 && HostFits(node, host)) {
    Request request = RequestOf(chains.front());
    request.cpu_milli = host.cpu_milli;
    request.memory_mib = host.memory_mib;
    std::optional<Placement> placement = Place(node, before, request, policy);
    if (!placement) return Explain(node, chains);
    return PodPacking{{std::move(placement->cards)}, placement->score};
  }
  Search search(node, chains, host, policy);
  if (search.Step(0)) return std::move(search).Result();
  return Explain(node, chains);
}

}  // namespace sluice::scheduler
