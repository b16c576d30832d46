// Decides whether a container may start. Hook library, directory and agent socket must exist, or it would run without
// limits: containerd makes a missing mount source as an empty folder, and the loader ignores a missing preload.
#ifndef SLUICE_DEVICEPLUGIN_HOST_PRE_START_H_
#define SLUICE_DEVICEPLUGIN_HOST_PRE_START_H_

#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "deviceplugin/host/allocation_store.h"
#include "deviceplugin/host/checkpoint.h"

namespace sluice::deviceplugin {

struct StartRequirements {
  std::string run_dir;
  std::string lib_dir;
};

// The directories that a container with exactly these devices was given. From kubelet's checkpoint if it is readable
// and lists the devices; several containers of a pod may match, since an init container's units go to the next one.
// Else the newest directory made for these devices.
absl::StatusOr<std::vector<StartRequirements>> FindStartRequirements(
    std::span<const std::string> device_ids, const absl::StatusOr<std::vector<CheckpointEntry>>& checkpoint,
    const AllocationStore& store, const std::string& current_library);

// OK, or the first thing that is missing. UNAVAILABLE: the agent is not ready yet, and waiting may help.
absl::Status CheckStartRequirements(const StartRequirements& needs);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_HOST_PRE_START_H_
