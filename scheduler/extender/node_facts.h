// The parts of a node object that placement needs.
#ifndef SLUICE_SCHEDULER_EXTENDER_NODE_FACTS_H_
#define SLUICE_SCHEDULER_EXTENDER_NODE_FACTS_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "scheduler/placement/node_ledger.h"

namespace sluice::scheduler {

struct NodeFacts {
  std::string name;
  std::int64_t cpu_milli = 0, memory_mib = 0;  // allocatable
  std::vector<NodeCard> cards;
  std::string problem;  // why no pod with units may go there; empty: none
};

// Never fails: an unreadable annotation becomes `problem`.
NodeFacts ReadNode(const nlohmann::json& node);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_NODE_FACTS_H_
