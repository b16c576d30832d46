// May this container start? Library, directory and agent's socket must be there, or it would run unenforced: containerd
// makes a missing mount source as an empty folder, and the loader ignores a missing preload.
#ifndef SLUICE_DEVICEPLUGIN_HOST_PRE_START_H_
#define SLUICE_DEVICEPLUGIN_HOST_PRE_START_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deviceplugin/host/allocation_store.h"
#include "deviceplugin/host/checkpoint.h"

namespace sluice::deviceplugin {

struct StartNeeds {
  std::string run_dir;
  std::string lib_dir;
};

// What a container with exactly these devices was given. From kubelet's checkpoint where it is readable and knows the
// devices (several containers of a pod may: an init container's units go to the next one), else the newest directory
// made for them.
absl::StatusOr<std::vector<StartNeeds>> FindNeeds(std::span<const std::string> device_ids,
                                                  const absl::StatusOr<std::vector<GivenOut>>& checkpoint,
                                                  const AllocationStore& store, const std::string& current_library);

// OK, or the first thing that is missing. UNAVAILABLE: waiting may help (the agent is not there yet).
absl::Status CheckNeeds(const StartNeeds& needs);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_HOST_PRE_START_H_
