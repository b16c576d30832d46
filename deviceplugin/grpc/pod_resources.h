// Reads kubelet's pod-resources service. Bounded in time, since kubelet may be down.
#ifndef SLUICE_DEVICEPLUGIN_GRPC_POD_RESOURCES_H_
#define SLUICE_DEVICEPLUGIN_GRPC_POD_RESOURCES_H_

#include <map>
#include <set>
#include <string>

#include "absl/status/statusor.h"

namespace sluice::deviceplugin {

struct PodResources {
  std::map<std::string, std::string>
      offered_by_others;         // GPU uuid -> resource nvidia.com/* of the plugin that offers it
  std::set<std::string> in_use;  // our device ids that containers hold
};

absl::StatusOr<PodResources> ListPodResources(const std::string& socket);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_GRPC_POD_RESOURCES_H_
