// How much of a partly used card later requests will use. Learned from the mix of requests alone, by simulation.
#ifndef SLUICE_SCHEDULER_PLACEMENT_EVENTUAL_USE_H_
#define SLUICE_SCHEDULER_PLACEMENT_EVENTUAL_USE_H_

#include <vector>

#include "scheduler/placement/fragmentation.h"
#include "scheduler/placement/node_model.h"

namespace sluice::scheduler {

// Expected values, indexed by a card's free units (0..units_per_card): how many of these units later requests of the
// mix use, and how much CPU and memory those requests need.
struct EventualUse {
  std::vector<double> units;
  std::vector<double> cpu_milli;
  std::vector<double> memory_mib;
};

// Fills simulated cards with requests drawn from the mix. Each request goes where the table of the previous rounds
// loses least; the resulting use of the cards is the next table. Deterministic; takes some tens of milliseconds. For a
// mix without cards, the table says that every free unit will be used.
EventualUse LearnEventualUse(const RequestMix& mix, int units_per_card);

// Expected units of the node that will be used once the request has taken these cards: the sum over the cards, reduced
// to the part that the node's free CPU and memory can supply.
double ExpectedUse(const Node& node, const EventualUse& table, const Request& request = {}, const CardSet& cards = {});

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_EVENTUAL_USE_H_
