// The devices in use by kubelet's pod-resources service (v1).
#ifndef SLUICE_AGENT_POD_RESOURCES_H_
#define SLUICE_AGENT_POD_RESOURCES_H_

#include <optional>
#include <string>

#include "agent/node.h"

namespace sluice::agent {

// Waits at most `timeout_ms`. nullopt with a sentence: kubelet does not answer. `others`: filled too, unless nullptr.
std::optional<DevicesInUse> ListDevicesInUse(const std::string& socket, int timeout_ms, std::string* error,
                                             OtherOwners* others = nullptr);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_POD_RESOURCES_H_
