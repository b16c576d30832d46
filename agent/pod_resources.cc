#include "agent/pod_resources.h"

#include <algorithm>
#include <chrono>

#include "common/unix_channel.h"
#include "podresources.grpc.pb.h"
#include "sluice/names.h"

namespace sluice::agent {

namespace {

// The GPU of another plugin's device: "GPU-<uuid>", or with "::<replica>". MIG devices, indices and claims tell none.
std::string GpuOf(const std::string& id) {
  return id.starts_with("GPU-") ? id.substr(0, id.find("::")) : std::string();
}

void AddOthers(const ::v1::ContainerResources& container, const std::string& pod, OtherOwners* out) {
  for (const auto& devices : container.devices()) {
    const bool nvidia = devices.resource_name().starts_with("nvidia.com/");
    for (const std::string& id : devices.device_ids()) {
      if (devices.resource_name() == SLUICE_RESOURCE) continue;
      if (const std::string gpu = GpuOf(id); !gpu.empty() || nvidia) (*out)[gpu].insert(pod);
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
  const auto stub = ::v1::PodResourcesLister::NewStub(UnixChannel(socket));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_ms));
  ::v1::ListPodResourcesResponse response;
  const grpc::Status status = stub->List(&context, {}, &response);
  if (!status.ok()) {
    *error = "pod_resources: kubelet does not answer at " + socket + ": " + status.error_message();
    return std::nullopt;
  }
  DevicesInUse out;
  for (const auto& pod : response.pod_resources()) {
    for (const auto& container : pod.containers()) {
      if (others != nullptr) AddOthers(container, pod.namespace_() + "/" + pod.name(), others);
      for (const auto& devices : container.devices()) {
        if (devices.resource_name() != SLUICE_RESOURCE) continue;
        for (const std::string& id : devices.device_ids()) out[id] = {pod.namespace_(), pod.name(), container.name()};
      }
    }
  }
  return out;
}

}  // namespace sluice::agent
