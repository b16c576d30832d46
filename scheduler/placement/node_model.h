// The node and the request as placement sees them. Plain data: simulator, extender and device plugin fill it from their
// own sources, and one set of policies rates it.
#ifndef SLUICE_SCHEDULER_PLACEMENT_NODE_MODEL_H_
#define SLUICE_SCHEDULER_PLACEMENT_NODE_MODEL_H_

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace sluice::scheduler {

// `cards` different cards with `units` free on each. A unit is a part of one card: a hundredth in a cluster, a
// thousandth in the published traces; Node::units_per_card says which.
struct Request {
  int cards = 0;
  int units = 0;
  std::int64_t cpu_milli = 0;
  std::int64_t memory_mib = 0;

  int TotalUnits() const { return cards * units; }
  auto operator<=>(const Request&) const = default;
};

struct Card {
  int free = 0;
  int numa = -1;    // -1: unknown; two cards with an unknown NUMA node count as equal
  int nvlink = -1;  // cards of one number reach each other by NVLink; -1: by none, or unknown
  auto operator<=>(const Card&) const = default;
};

// The NUMA node and NVLink group of a real card.
struct CardPlace {
  int numa = -1;
  int nvlink = -1;
  bool operator==(const CardPlace&) const = default;
};
using CardPlaces = std::map<std::string, CardPlace>;  // by uuid

struct Node {
  std::int64_t cpu_milli_free = 0;
  std::int64_t memory_mib_free = 0;
  int units_per_card = 100;
  std::vector<Card> cards;
  std::string model;  // GPU model, from a node label or annotation
  // Capacities, for policies that score as kube-scheduler does; 0: not known. The simulator alone fills them.
  std::int64_t cpu_milli = 0;
  std::int64_t memory_mib = 0;

  int FreeUnits() const {
    int sum = 0;
    for (const Card& card : cards) sum += card.free;
    return sum;
  }
  int CapacityUnits() const { return static_cast<int>(cards.size()) * units_per_card; }
};

// Indices into Node::cards, ascending. Empty for a request without cards.
using CardSet = std::vector<int>;

inline void Take(Node& node, const Request& request, const CardSet& cards) {
  node.cpu_milli_free -= request.cpu_milli;
  node.memory_mib_free -= request.memory_mib;
  for (int card : cards) node.cards[card].free -= request.units;
}

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_NODE_MODEL_H_
