// The parts of a pod object that placement needs. Small, because the extender keeps thousands of them.
#ifndef SLUICE_SCHEDULER_EXTENDER_POD_FACTS_H_
#define SLUICE_SCHEDULER_EXTENDER_POD_FACTS_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "scheduler/placement/chains.h"
#include "scheduler/placement/pod_reservations.h"

namespace sluice::scheduler {

struct PodFacts {
  std::string uid;
  std::string name_space;
  std::string name;
  std::string node;                        // empty: not bound
  std::vector<ContainerUnits> containers;  // in kubelet's order; empty if none requests units
  std::int64_t cpu_milli = 0;
  std::int64_t memory_mib = 0;
  bool ended = false;        // Succeeded, Failed
  bool admitted = false;     // kubelet has admitted it
  ContainerCards placement;  // empty: none, or not readable

  std::string FullName() const { return name_space + "/" + name; }
};

// Never fails: a member that is missing or of another type counts as absent. (The API server has validated real pods.)
PodFacts ReadPod(const nlohmann::json& pod);

// Kubernetes quantities such as "2", "500m", "1.5". ReadMilli returns thousandths. Both return 0 for other text.
std::int64_t ReadMilli(const nlohmann::json& quantity);
std::int64_t ReadMemoryMib(const nlohmann::json& quantity);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_POD_FACTS_H_
