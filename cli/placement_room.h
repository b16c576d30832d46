// Finds pods for which a node has free units enough in sum, and no card has. Queues and autoscalers see the sum alone.
#ifndef SLUICE_CLI_PLACEMENT_ROOM_H_
#define SLUICE_CLI_PLACEMENT_ROOM_H_

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "scheduler/extender/node_facts.h"
#include "scheduler/extender/pod_facts.h"
#include "webhook/decision/nodes.h"

namespace sluice::cli {

// The nodes that offer units.
class PlacementRoom {
 public:
  void Add(const nlohmann::json& node);

  struct Entry {
    scheduler::NodeFacts facts;
    webhook::Node labels;
  };
  const std::vector<Entry>& nodes() const { return nodes_; }

 private:
  std::vector<Entry> nodes_;
};

// The pods that ask for units.
class PlacementDemand {
 public:
  void AddPlaced(const nlohmann::json& pod);
  void AddUnplaced(const nlohmann::json& pod);

  // Pods that one answer serves: they ask for the same, of the same nodes.
  struct Group {
    std::vector<scheduler::Chain> chains;
    std::string selection;  // nodeSelector and affinity of the pods' spec, as JSON
    std::vector<std::string> pods;
  };
  const std::map<std::string, Group>& unplaced() const { return unplaced_; }
  const std::vector<scheduler::PodFacts>& placed(const std::string& node) const;

 private:
  std::map<std::string, Group> unplaced_;
  std::map<std::string, std::vector<scheduler::PodFacts>> placed_;  // by node
};

struct SplitRoom {
  std::vector<std::string> pods;  // namespace/name
  int units = 0;                  // of each pod
  std::string node;               // the one with the most free units
  int sum_free = 0;               // its free units
  std::string why;                // why none of its cards will do
};

// Only nodes count that the pod's selector and affinity allow, and that are not cordoned. A pod that some card can hold
// is left out.
std::vector<SplitRoom> FindSplitRoom(const PlacementDemand& demand, const PlacementRoom& room);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_PLACEMENT_ROOM_H_
