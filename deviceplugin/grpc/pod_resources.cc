#include "deviceplugin/grpc/pod_resources.h"

#include <chrono>

#include "common/kubelet/pod_resources.h"

namespace sluice::deviceplugin {

absl::StatusOr<PodResources> ListPodResources(const std::string& socket) {
  constexpr std::chrono::seconds kLimit{2};
  const auto offered = kubelet::ListAllocatable(socket, kLimit);
  if (!offered.ok()) return offered.status();
  const auto held = kubelet::ListPodResources(socket, kLimit);
  if (!held.ok()) return held.status();
  PodResources out;
  for (const auto& devices : offered->devices()) {
    if (!kubelet::IsNvidiaResource(devices.resource_name())) continue;
    for (const std::string& id : devices.device_ids()) {
      if (const std::string gpu(kubelet::GpuOf(id)); !gpu.empty()) out.offered_by_others[gpu] = devices.resource_name();
    }
  }
  kubelet::ForEachOwnDevice(*held, [&out](const auto&, const auto&, const std::string& id) { out.in_use.insert(id); });
  return out;
}

}  // namespace sluice::deviceplugin
