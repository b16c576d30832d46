#include "deviceplugin/grpc/pod_resources.h"

#include "absl/status/status.h"
#include "common/unix_channel.h"
#include "deviceplugin/text.h"
#include "podresources.grpc.pb.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {
namespace {

constexpr std::string_view kNvidiaDomain = "nvidia.com/";

void SetDeadline(grpc::ClientContext* context) {
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
}

}  // namespace

absl::StatusOr<PodResources> ListPodResources(const std::string& socket) {
  auto stub = v1::PodResourcesLister::NewStub(UnixChannel(socket));
  PodResources out;
  {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::AllocatableResourcesResponse response;
    const grpc::Status status = stub->GetAllocatableResources(&context, {}, &response);
    if (!status.ok()) return absl::UnavailableError(StrCat("GetAllocatableResources: ", status.error_message()));
    for (const auto& devices : response.devices()) {
      if (!devices.resource_name().starts_with(kNvidiaDomain)) continue;
      for (const std::string& id : devices.device_ids()) {
        // "GPU-x", or "GPU-x::3" if NVIDIA's plugin replicates it.
        out.offered_by_others[id.substr(0, id.find(SLUICE_DEVICE_ID_SEPARATOR))] = devices.resource_name();
      }
    }
  }
  grpc::ClientContext context;
  SetDeadline(&context);
  v1::ListPodResourcesResponse response;
  const grpc::Status status = stub->List(&context, {}, &response);
  if (!status.ok()) return absl::UnavailableError(StrCat("List: ", status.error_message()));
  for (const auto& pod : response.pod_resources()) {
    for (const auto& container : pod.containers()) {
      for (const auto& devices : container.devices()) {
        if (devices.resource_name() != SLUICE_RESOURCE) continue;
        out.in_use.insert(devices.device_ids().begin(), devices.device_ids().end());
      }
    }
  }
  return out;
}

}  // namespace sluice::deviceplugin
