#include "scheduler/placement/choices.h"

#include <algorithm>
#include <map>

namespace sluice::scheduler {
namespace {

// Whole cards: from the NUMA node that has enough of them and keeps the fewest. If none has enough, from the NUMA nodes
// with the most free cards together.
CardSet WholeCards(const Node& node, const Request& request) {
  std::map<int, CardSet> by_numa;
  int found = 0;
  for (int i = 0; i < static_cast<int>(node.cards.size()); ++i) {
    if (node.cards[i].free < request.units) continue;
    by_numa[node.cards[i].numa].push_back(i);
    ++found;
  }
  if (found < request.cards) return {};
  std::vector<CardSet> groups;
  groups.reserve(by_numa.size());
  for (auto& [numa, cards] : by_numa) groups.push_back(std::move(cards));
  const auto wanted = static_cast<std::size_t>(request.cards);
  std::stable_sort(groups.begin(), groups.end(), [wanted](const CardSet& a, const CardSet& b) {
    const bool a_enough = a.size() >= wanted, b_enough = b.size() >= wanted;
    if (a_enough != b_enough) return a_enough;
    return a_enough ? a.size() < b.size() : a.size() > b.size();
  });
  CardSet chosen;
  for (const CardSet& group : groups) {
    for (int card : group) {
      if (chosen.size() == wanted) break;
      chosen.push_back(card);
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

bool HostFits(const Node& node, const Request& request) {
  return node.cpu_milli_free >= request.cpu_milli && node.memory_mib_free >= request.memory_mib;
}

std::vector<CardSet> Choices(const Node& node, const Request& request) {
  if (request.cards == 0) return {CardSet{}};
  if (request.cards > 1) {
    CardSet chosen = WholeCards(node, request);
    if (chosen.empty()) return {};
    return {std::move(chosen)};
  }
  std::vector<CardSet> choices;
  ForEachChoice(node, request, [&](const CardSet& cards) { choices.push_back(cards); });
  return choices;
}

}  // namespace sluice::scheduler
