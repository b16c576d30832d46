// Reads kubelet_internal_checkpoint: which container was given which response. Its format is kubelet's own and has no
// version, so anything unexpected makes the whole file unreadable, and with an unreadable file nothing is deleted.
#ifndef SLUICE_DEVICEPLUGIN_HOST_CHECKPOINT_H_
#define SLUICE_DEVICEPLUGIN_HOST_CHECKPOINT_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::deviceplugin {

inline constexpr char kCheckpointName[] = "kubelet_internal_checkpoint";

// One container that holds our resource, with the host paths and names in its response.
struct CheckpointEntry {
  std::string pod_uid;
  std::string container;
  std::vector<std::string> device_ids;  // sorted
  std::string run_dir;                  // host path of the allocation's directory
  std::string lib_dir;                  // host path of the library version
  std::vector<std::string> cdi_names;
};

absl::StatusOr<std::vector<CheckpointEntry>> ParseCheckpoint(std::string_view text);
absl::StatusOr<std::vector<CheckpointEntry>> ReadCheckpoint(const std::string& kubelet_dir);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_HOST_CHECKPOINT_H_
