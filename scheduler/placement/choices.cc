#include "scheduler/placement/choices.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

namespace sluice::scheduler {
namespace {

using Groups = std::vector<CardSet>;

enum class Closeness { kNumaAndNvlink, kNvlink, kNuma };

// Groups of close cards among `from`.
Groups GroupsOf(const Node& node, const CardSet& from, Closeness closeness) {
  std::map<std::pair<int, int>, CardSet> groups;
  for (const int i : from) {
    const Card& card = node.cards[i];
    if (closeness != Closeness::kNuma && card.nvlink < 0) continue;
    groups[{closeness == Closeness::kNvlink ? 0 : card.numa, closeness == Closeness::kNuma ? 0 : card.nvlink}]
        .push_back(i);
  }
  Groups out;
  out.reserve(groups.size());
  for (auto& [key, cards] : groups) out.push_back(std::move(cards));
  return out;
}

bool Holds(const CardSet& group, const CardSet& must) {
  return std::all_of(must.begin(), must.end(), [&](int card) { return std::ranges::find(group, card) != group.end(); });
}

// The groups that can hold the request, of the closest kind that has any; the smallest first.
Groups ClosestGroups(const Node& node, const CardSet& from, const CardSet& must, std::size_t count) {
  for (const Closeness closeness : {Closeness::kNumaAndNvlink, Closeness::kNvlink, Closeness::kNuma}) {
    Groups groups = GroupsOf(node, from, closeness);
    std::erase_if(groups, [&](const CardSet& group) { return group.size() < count || !Holds(group, must); });
    if (groups.empty()) continue;
    std::stable_sort(groups.begin(), groups.end(),
                     [](const CardSet& a, const CardSet& b) { return a.size() < b.size(); });
    return groups;
  }
  return {};
}

// `must`, then the fullest cards of the group, or its emptiest.
CardSet Pick(const Node& node, CardSet group, const CardSet& must, std::size_t count, bool fullest) {
  const auto rank = [&](int card) {
    const bool is_must = std::ranges::find(must, card) != must.end();
    return std::tuple(!is_must, fullest ? node.cards[card].free : -node.cards[card].free, card);
  };
  std::sort(group.begin(), group.end(), [&](int a, int b) { return rank(a) < rank(b); });
  group.resize(count);
  std::sort(group.begin(), group.end());
  return group;
}

// No group has enough. Takes cards one by one: on a NUMA node in use already, then on the smallest that has all missing
// ones, then on the largest.
CardSet Spread(const Node& node, CardSet rest, const CardSet& must, std::size_t count) {
  CardSet chosen = must;
  std::erase_if(rest, [&](int card) { return std::ranges::find(must, card) != must.end(); });
  while (chosen.size() < count) {
    const auto missing = static_cast<int>(count - chosen.size());
    std::map<int, int> per_node;
    for (const int card : rest) ++per_node[node.cards[card].numa];
    const auto rank = [&](int card) {
      const int numa = node.cards[card].numa, here = per_node[numa];
      const bool in_use = std::any_of(chosen.begin(), chosen.end(), [&](int c) { return node.cards[c].numa == numa; });
      const bool enough = here >= missing;
      return std::tuple(!in_use, !enough, enough ? here : -here, numa, node.cards[card].free, card);
    };
    const auto next = std::min_element(rest.begin(), rest.end(), [&](int a, int b) { return rank(a) < rank(b); });
    chosen.push_back(*next);
    rest.erase(next);
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

CardSet CardsWithRoom(const Node& node, const Request& request) {
  CardSet out;
  for (int i = 0; i < static_cast<int>(node.cards.size()); ++i) {
    if (node.cards[i].free >= request.units) out.push_back(i);
  }
  return out;
}

std::vector<CardSet> SeveralCards(const Node& node, const Request& request) {
  const CardSet from = CardsWithRoom(node, request);
  const auto count = static_cast<std::size_t>(request.cards);
  if (from.size() < count) return {};
  const Groups groups = ClosestGroups(node, from, {}, count);
  if (groups.empty()) return {Spread(node, from, {}, count)};
  std::vector<CardSet> out;
  for (const CardSet& group : groups) {
    for (const bool fullest : {true, false}) {
      CardSet cards = Pick(node, group, {}, count, fullest);
      const bool is_known = std::any_of(out.begin(), out.end(), [&](const CardSet& other) {
        return std::ranges::equal(other, cards, [&](int a, int b) { return node.cards[a] == node.cards[b]; });
      });
      if (!is_known) out.push_back(std::move(cards));
    }
    // Whole cards are all alike, and the smallest group keeps the others whole.
    if (request.units >= node.units_per_card) break;
  }
  return out;
}

}  // namespace

bool HostFits(const Node& node, const Request& request) {
  return node.cpu_milli_free >= request.cpu_milli && node.memory_mib_free >= request.memory_mib;
}

std::vector<CardSet> Choices(const Node& node, const Request& request) {
  if (request.cards == 0) return {CardSet{}};
  if (request.cards > 1) return SeveralCards(node, request);
  std::vector<CardSet> choices;
  ForEachChoice(node, request, [&](const CardSet& cards) { choices.push_back(cards); });
  return choices;
}

std::vector<CardSet> AllChoices(const Node& node, const Request& request, std::size_t limit) {
  const CardSet from = CardsWithRoom(node, request);
  const auto count = static_cast<std::size_t>(request.cards);
  std::vector<CardSet> out;
  if (count == 0 || from.size() < count) return out;
  // Positions in `from`, ascending; the next set is the next in lexicographic order.
  std::vector<std::size_t> at(count);
  for (std::size_t i = 0; i < count; ++i) at[i] = i;
  while (out.size() < limit) {
    CardSet cards;
    for (const std::size_t i : at) cards.push_back(from[i]);
    out.push_back(std::move(cards));
    std::size_t i = count;
    while (i > 0 && at[i - 1] == from.size() - count + i - 1) --i;
    if (i == 0) break;
    ++at[i - 1];
    for (; i < count; ++i) at[i] = at[i - 1] + 1;
  }
  return out;
}

CardSet ClosestCards(const Node& node, const CardSet& from, const CardSet& must, int count) {
  const auto wanted = static_cast<std::size_t>(count);
  if (from.size() < wanted || must.size() > wanted || !Holds(from, must)) return {};
  const Groups groups = ClosestGroups(node, from, must, wanted);
  return groups.empty() ? Spread(node, from, must, wanted) : Pick(node, groups.front(), must, wanted, true);
}

}  // namespace sluice::scheduler
