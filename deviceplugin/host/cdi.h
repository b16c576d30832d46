// Our own CDI specs: one file per card, kind "sluice.dev/gpu", device name = uuid. Making and validating are pure.
#ifndef SLUICE_DEVICEPLUGIN_HOST_CDI_H_
#define SLUICE_DEVICEPLUGIN_HOST_CDI_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "deviceplugin/decide/cards.h"
#include "deviceplugin/decide/response.h"

namespace sluice::deviceplugin {

// What the host's driver root holds.
struct DriverFiles {
  std::vector<std::string> control_nodes;  // host paths: nvidiactl, nvidia-uvm, nvidia-uvm-tools, those that exist
  std::vector<Mount> libraries;            // container path, host path
};

// Looks for libcuda.so.1, libnvidia-ml.so.1 and what they load, under their sonames, in the usual library folders of
// `root` (or in `root` itself: the simulated driver's folder). Each is to be mounted where both Debian's and Red Hat's
// loaders look without a cache.
DriverFiles FindDriverFiles(const std::string& root, const std::string& dev_root);

std::string CdiFileName(std::string_view uuid);  // "sluice.dev-gpu_<uuid>.json"
std::string MakeCdiSpec(const Card& card, const DriverFiles& driver, const std::string& dev_root);

// The rules of the CDI schema (0.6.0) that a spec like ours can break. The message names the member.
absl::Status ValidateCdiSpec(std::string_view json);

// Names "<kind>=<device>" of all specs in these folders; files that cannot be parsed are skipped, like the runtime
// does.
std::vector<std::string> ListCdiNames(const std::vector<std::string>& dirs);

// Brings the folder in line: writes what is new or changed (each spec validated first), removes our specs of cards that
// are not there unless `keep` names them. Returns how many files changed.
absl::StatusOr<int> SyncCdiSpecs(const std::string& dir, const std::vector<Card>& cards, const DriverFiles& driver,
                                 const std::string& dev_root, const std::vector<std::string>& keep, bool may_remove);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_HOST_CDI_H_
