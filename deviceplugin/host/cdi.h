// Our own CDI specs: one file per card, kind "sluice.dev/gpu", device name = uuid. MakeCdiSpec and ValidateCdiSpec are
// pure.
#ifndef SLUICE_DEVICEPLUGIN_HOST_CDI_H_
#define SLUICE_DEVICEPLUGIN_HOST_CDI_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "deviceplugin/decide/cards.h"
#include "deviceplugin/decide/response.h"

namespace sluice::deviceplugin {

// The driver's files under the host's driver root.
struct DriverFiles {
  std::vector<std::string> control_nodes;  // host paths of nvidiactl, nvidia-uvm, nvidia-uvm-tools, those that exist
  std::vector<Mount> libraries;            // container path, host path
};

// Looks for libcuda.so.1, libnvidia-ml.so.1, the libraries that they load, and those of the video engines, under their
// sonames, in the usual library folders of `root`, or in `root` itself (the simulated driver's folder). Each library
// gets the mount points where the loaders of Debian and of Red Hat look without a cache.
DriverFiles FindDriverFiles(const std::string& root, const std::string& dev_root);

std::string CdiFileName(std::string_view uuid);  // "sluice.dev-gpu_<uuid>.json"
std::string MakeCdiSpec(const Card& card, const DriverFiles& driver, const std::string& dev_root);

// Checks the rules of the CDI schema (0.6.0) that a spec like ours could break. The message names the member.
absl::Status ValidateCdiSpec(std::string_view json);

// Whether the spec mounts a libcuda into each container. False for text that is no spec.
bool MountsLibcuda(std::string_view json);

// The names "<kind>=<device>" of all specs in these folders. Like the container runtime, skips files that it cannot
// parse.
std::vector<std::string> ListCdiNames(const std::vector<std::string>& dirs);

// Brings the folder up to date: writes new and changed specs, each validated first, and removes our specs of absent
// cards unless `keep` names them. Returns the number of changed files.
absl::StatusOr<int> SyncCdiSpecs(const std::string& dir, const std::vector<Card>& cards, const DriverFiles& driver,
                                 const std::string& dev_root, const std::vector<std::string>& keep, bool may_remove);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_HOST_CDI_H_
