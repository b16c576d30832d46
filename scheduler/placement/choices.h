// The distinct sets of cards that one request can take on one node.
#ifndef SLUICE_SCHEDULER_PLACEMENT_CHOICES_H_
#define SLUICE_SCHEDULER_PLACEMENT_CHOICES_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "scheduler/placement/node_model.h"

namespace sluice::scheduler {

// CPU and memory suffice. Ignores the cards.
bool HostFits(const Node& node, const Request& request);

// Every choice that a policy can tell apart. For one card: one card of each (free units, NUMA node, NVLink), the first
// of equals. For several cards: the sets of closest cards, fullest cards first, and of each group of close cards also
// the emptiest. A request without cards has one choice, the empty set. An empty list means that the request does not
// fit. Ignores CPU and memory.
std::vector<CardSet> Choices(const Node& node, const Request& request);

// All sets of cards with room, at most `limit`. For a pod that fits only if a container gives up close cards.
std::vector<CardSet> AllChoices(const Node& node, const Request& request, std::size_t limit);

// Of the cards in `from`, `count` that are close to each other: within one NUMA node and one NVLink group, else within
// one NVLink group, else within one NUMA node, else on as few NUMA nodes as possible. Among equally close groups the
// smallest, so that larger ones stay whole; in a group the fullest cards. `must` (part of `from`) are in the result.
// Empty: `from` has too few.
CardSet ClosestCards(const Node& node, const CardSet& from, const CardSet& must, int count);

// Calls `each` for every choice without building a list: a scheduler asks about a thousand nodes for each pod.
template <class Function>
void ForEachChoice(const Node& node, const Request& request, Function each) {
  if (request.cards != 1) {
    for (const CardSet& cards : Choices(node, request)) each(cards);
    return;
  }
  CardSet choice(1);
  for (auto card = node.cards.begin(); card != node.cards.end(); ++card) {
    if (card->free < request.units || std::find(node.cards.begin(), card, *card) != card) continue;
    choice[0] = static_cast<int>(card - node.cards.begin());
    each(std::as_const(choice));
  }
}

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_CHOICES_H_
