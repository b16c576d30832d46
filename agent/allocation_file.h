// allocation.json: what one container was given (proto/sluice/names.h). Written by the device plugin, or here for
// `sluice run`.
#ifndef SLUICE_AGENT_ALLOCATION_FILE_H_
#define SLUICE_AGENT_ALLOCATION_FILE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/settings/settings.h"

namespace sluice::agent {

struct GpuUnits {
  std::string uuid;
  uint32_t units = 0;  // 1..100
};

struct AllocationSpec {
  std::string id;
  std::vector<GpuUnits> gpus;
  settings::Settings settings;
  std::string pod, ns, container;
  std::vector<std::string> devices;  // kubelet's ids, where it gave them
  // Made for a `sluice run`, whose process id it is: an agent that finds the folder at its start ends it as soon as
  // that process has ended and nobody is attached.
  bool tied = false;
  int64_t owner = 0;
};

// Unknown members are ignored (a newer plugin may write them); a wrong known one is a refusal with a sentence.
bool ParseAllocation(const std::string& text, AllocationSpec* spec, std::string* error);
bool ReadAllocation(const std::string& path, AllocationSpec* spec, std::string* error);
std::string WriteAllocation(const AllocationSpec& spec);

// Ids are folder names: letters, digits, '-', '_' and '.', 1 to 63, not beginning with '.'.
bool IsAllocationId(const std::string& id);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_ALLOCATION_FILE_H_
