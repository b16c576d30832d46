// The variables, mounts and CDI names that a container gets for its grant. Pure, without gRPC. Kubelet stores the
// response and reuses it for every restart, so it must stay valid: container paths are constant, host paths immutable.
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_RESPONSE_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_RESPONSE_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "deviceplugin/decide/grant.h"

namespace sluice::deviceplugin {

// How the container gets device nodes and driver libraries.
enum class DriverAccess {
  kNvidiaCdi,      // nvidia.com/gpu=<uuid>, from the specs that NVIDIA's toolkit writes
  kNvidiaRuntime,  // NVIDIA_VISIBLE_DEVICES, read by NVIDIA's container runtime
  kOwn,            // sluice.dev/gpu=<uuid>, from our own specs
};
std::string_view ToString(DriverAccess access);

struct Mount {
  std::string container_path;
  std::string host_path;
  bool operator==(const Mount&) const = default;
};

struct ContainerResponse {
  std::map<std::string, std::string> envs;  // the pod's own variables override these
  std::vector<Mount> mounts;                // all read-only
  std::vector<std::string> cdi_names;
};

struct ResponseInput {
  const Grant* grant = nullptr;
  DriverAccess access = DriverAccess::kOwn;
  std::string lib_dir;  // host path: <lib>/<version>-<build id>
  std::string run_dir;  // host path of the allocation's directory
};

inline constexpr std::string_view kNvidiaCdiKind = "nvidia.com/gpu";
inline constexpr std::string_view kOwnCdiKind = "sluice.dev/gpu";

ContainerResponse MakeResponse(const ResponseInput& input);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_RESPONSE_H_
