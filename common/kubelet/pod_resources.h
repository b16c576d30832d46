// Kubelet's pod-resources service (v1). Each call takes at most its time limit, since kubelet may be down.
#ifndef SLUICE_COMMON_KUBELET_POD_RESOURCES_H_
#define SLUICE_COMMON_KUBELET_POD_RESOURCES_H_

#include <chrono>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "podresources.grpc.pb.h"

namespace sluice::kubelet {

using Resources = ::v1::ListPodResourcesResponse;
using Pod = ::v1::PodResources;
using Container = ::v1::ContainerResources;

// Pods with the devices and claims that their containers hold. An error names the socket.
absl::StatusOr<Resources> ListPodResources(const std::string& socket, std::chrono::milliseconds limit);
// The devices that plugins offer.
absl::StatusOr<::v1::AllocatableResourcesResponse> ListAllocatable(const std::string& socket,
                                                                   std::chrono::milliseconds limit);

// Calls `visit` with each device of sluice's own resource that a container holds.
void ForEachOwnDevice(const Resources& resources,
                      const std::function<void(const Pod&, const Container&, const std::string& id)>& visit);

// Whether a resource belongs to one of NVIDIA's plugins.
bool IsNvidiaResource(std::string_view resource);
// The GPU of a device id: "GPU-<uuid>", or with "::<replica>". Empty where the id names none (MIG devices, indices).
std::string_view GpuOf(std::string_view device_id);

}  // namespace sluice::kubelet

#endif  // SLUICE_COMMON_KUBELET_POD_RESOURCES_H_
