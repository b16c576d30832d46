// What a partly used card will still be good for: learned from the mix of requests alone, by playing.
#ifndef SLUICE_SCHEDULER_PLACEMENT_EVENTUAL_USE_H_
#define SLUICE_SCHEDULER_PLACEMENT_EVENTUAL_USE_H_

#include <vector>

#include "scheduler/placement/fragmentation.h"
#include "scheduler/placement/node_model.h"

namespace sluice::scheduler {

// Indexed by a card's free units, 0..units_per_card: how many of them requests of the mix end up using, and how much
// CPU and memory those requests bring along, in expectation.
struct EventualUse {
  std::vector<double> units;
  std::vector<double> cpu_milli;
  std::vector<double> memory_mib;
};

// Plays: a fleet of cards is filled with requests drawn from the mix, each placed where the table of the rounds before
// loses least; how full the cards became is the next table. Deterministic. Some tens of milliseconds. A mix without
// cards gives a table in which everything free will be used.
EventualUse LearnEventualUse(const RequestMix& mix, int units_per_card);

// Units of the node that will be used in expectation, once the request lies on these cards: the cards' sum, cut to what
// the node's free CPU and memory can feed.
double ExpectedUse(const Node& node, const EventualUse& table, const Request& request = {}, const CardSet& cards = {});

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_EVENTUAL_USE_H_
