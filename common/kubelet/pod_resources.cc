#include "common/kubelet/pod_resources.h"

#include "absl/strings/str_cat.h"
#include "common/unix_channel.h"
#include "sluice/names.h"

namespace sluice::kubelet {
namespace {

// `method`: of the service's stub.
template <typename Response, typename Request>
absl::StatusOr<Response> Call(const std::string& socket, std::chrono::milliseconds limit,
                              grpc::Status (::v1::PodResourcesLister::Stub::*method)(grpc::ClientContext*,
                                                                                     const Request&, Response*)) {
  const auto stub = ::v1::PodResourcesLister::NewStub(UnixChannel(socket));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + limit);
  Response response;
  const grpc::Status status = (stub.get()->*method)(&context, {}, &response);
  if (status.ok()) return response;
  return absl::UnavailableError(absl::StrCat("kubelet does not answer at ", socket, ": ", status.error_message()));
}

}  // namespace

absl::StatusOr<Resources> ListPodResources(const std::string& socket, std::chrono::milliseconds limit) {
  return Call(socket, limit, &::v1::PodResourcesLister::Stub::List);
}

absl::StatusOr<::v1::AllocatableResourcesResponse> ListAllocatable(const std::string& socket,
                                                                   std::chrono::milliseconds limit) {
  return Call(socket, limit, &::v1::PodResourcesLister::Stub::GetAllocatableResources);
}

void ForEachOwnDevice(const Resources& resources,
                      const std::function<void(const Pod&, const Container&, const std::string& id)>& visit) {
  for (const Pod& pod : resources.pod_resources()) {
    for (const Container& container : pod.containers()) {
      for (const auto& devices : container.devices()) {
        if (devices.resource_name() != SLUICE_RESOURCE) continue;
        for (const std::string& id : devices.device_ids()) visit(pod, container, id);
      }
    }
  }
}

bool IsNvidiaResource(std::string_view resource) { return resource.starts_with("nvidia.com/"); }

std::string_view GpuOf(std::string_view device_id) {
  return device_id.starts_with("GPU-") ? device_id.substr(0, device_id.find(SLUICE_DEVICE_ID_SEPARATOR))
                                       : std::string_view();
}

}  // namespace sluice::kubelet
