// allocation.json: the GPUs and settings of one container (proto/sluice/names.h). Written by the device plugin, or here
// for `sluice run`.
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
  std::string claim;                 // name of the ResourceClaim, in `ns`; empty: the device plugin made it
  std::vector<std::string> devices;  // kubelet's ids; empty: not made by kubelet
  // Made for the `sluice run` with process id `owner`. An agent that finds the folder at its start removes it once that
  // process has ended and no process is attached.
  bool tied = false;
  int64_t owner = 0;
};

// Ignores unknown members, which a newer plugin may write. False with a sentence for a wrong value of a known one.
bool ParseAllocation(const std::string& text, AllocationSpec* spec, std::string* error);
// The content of a regular file of at most 256 KiB; no link is followed, and nothing is waited for.
bool ReadRegularFile(const std::string& path, std::string* text, std::string* error);
bool ReadAllocation(const std::string& path, AllocationSpec* spec, std::string* error);
std::string WriteAllocation(const AllocationSpec& spec);

// Ids are folder names: 1 to 63 letters, digits, '-', '_' and '.', not beginning with '.'.
bool IsAllocationId(const std::string& id);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_ALLOCATION_FILE_H_
