// What placement needs of a pod object, and nothing else: thousands of them are kept.
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
  std::vector<ContainerUnits> containers;  // in kubelet's order; empty where none asks for units
  std::int64_t cpu_milli = 0;
  std::int64_t memory_mib = 0;
  bool ended = false;        // Succeeded, Failed
  bool admitted = false;     // kubelet has acknowledged it
  ContainerCards placement;  // empty: none, or none that can be read

  std::string FullName() const { return name_space + "/" + name; }
};

// Never fails: what is missing or of another type counts as absent, and the API server has checked real pods.
PodFacts ReadPod(const nlohmann::json& pod);

// Kubernetes quantities: "2", "500m", "1.5". Thousandths; 0 for what is none.
std::int64_t ReadMilli(const nlohmann::json& quantity);
std::int64_t ReadMemoryMib(const nlohmann::json& quantity);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_POD_FACTS_H_
