#include "agent/pod_resources.h"

#include <algorithm>
#include <chrono>

#include "common/kubelet/pod_resources.h"
#include "sluice/names.h"

namespace sluice::agent {

namespace {

void AddOthers(const kubelet::Container& container, const std::string& pod, OtherOwners* out) {
  for (const auto& devices : container.devices()) {
    const bool nvidia = kubelet::IsNvidiaResource(devices.resource_name());
    for (const std::string& id : devices.device_ids()) {
      if (devices.resource_name() == SLUICE_RESOURCE) continue;
      if (const std::string gpu(kubelet::GpuOf(id)); !gpu.empty() || nvidia) (*out)[gpu].insert(pod);
    }
  }
  for (const auto& claim : container.dynamic_resources()) {
    const bool is_own = claim.claim_resources_size() > 0 &&
                        std::ranges::all_of(claim.claim_resources(),
                                            [](const auto& device) { return device.driver_name() == SLUICE_DOMAIN; });
    if (!is_own) (*out)[""].insert(pod);
  }
}

}  // namespace

std::optional<DevicesInUse> ListDevicesInUse(const std::string& socket, int timeout_ms, std::string* error,
                                             OtherOwners* others) {
  const auto resources = kubelet::ListPodResources(socket, std::chrono::milliseconds(timeout_ms));
  if (!resources.ok()) {
    *error = "pod_resources: " + std::string(resources.status().message());
    return std::nullopt;
  }
  for (const kubelet::Pod& pod : resources->pod_resources()) {
    if (others == nullptr) break;
    for (const kubelet::Container& container : pod.containers())
      AddOthers(container, pod.namespace_() + "/" + pod.name(), others);
  }
  DevicesInUse out;
  kubelet::ForEachOwnDevice(*resources, [&out](const auto& pod, const auto& container, const std::string& id) {
    out[id] = {pod.namespace_(), pod.name(), container.name()};
  });
  return out;
}

}  // namespace sluice::agent
