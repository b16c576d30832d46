// What a container gets for its grant: variables, mounts, CDI names. Pure, and free of gRPC. Kubelet keeps the response
// and uses it for every restart, so nothing in it may stop being true: container paths are constant, host paths are
// immutable.
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_RESPONSE_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_RESPONSE_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "deviceplugin/decide/grant.h"

namespace sluice::deviceplugin {

// How device nodes and driver libraries come into the container.
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
  std::map<std::string, std::string> envs;  // the pod's own variables win over these
  std::vector<Mount> mounts;                // all read-only
  std::vector<std::string> cdi_names;
};

struct ResponseInput {
  const Grant* grant = nullptr;
  DriverAccess access = DriverAccess::kOwn;
  std::string lib_dir;  // host: <lib>/<version>-<build id>
  std::string run_dir;  // host: the allocation's directory
};

inline constexpr std::string_view kNvidiaCdiKind = "nvidia.com/gpu";
inline constexpr std::string_view kOwnCdiKind = "sluice.dev/gpu";

ContainerResponse MakeResponse(const ResponseInput& input);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_RESPONSE_H_
