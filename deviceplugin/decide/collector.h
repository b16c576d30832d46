// Decides which directories may be deleted. Pure: the caller reads the input and deletes.
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_COLLECTOR_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_COLLECTOR_H_

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "deviceplugin/host/allocation_store.h"
#include "deviceplugin/host/checkpoint.h"

namespace sluice::deviceplugin {

struct CollectorInput {
  // nullopt: the checkpoint could not be read, so nothing may be deleted.
  std::optional<std::vector<CheckpointEntry>> checkpoint;
  // UIDs with a folder in <kubelet>/pods; nullopt: the folder cannot be read. Kubelet removes a pod's folder when the
  // pod is gone for good, but removes its checkpoint entry only at the next admission. Without these UIDs the last
  // pods' directories would stay until another pod arrives.
  std::optional<std::set<std::string>> pod_uids;
  // Device ids that pod-resources assigns to some container; nullopt: no answer.
  std::optional<std::set<std::string>> devices_in_use;
  std::vector<Allocation> allocations;
  // Host paths and CDI names that prepared ResourceClaims use; nullopt: not known, so that neither kind is removed.
  std::optional<std::set<std::string>> claims_libraries = std::set<std::string>();
  std::set<std::string> claims_cdi_names;
  std::vector<std::string> libraries;  // host paths
  std::string current_library;
  std::chrono::system_clock::time_point now;
  std::chrono::seconds grace{
      300};  // the longest time between Allocate's answer and kubelet's checkpoint, retries included
};

struct CollectorPlan {
  std::vector<std::string> allocation_ids;
  std::vector<std::string> libraries;
  std::vector<std::string> cdi_names_in_use;
  bool may_remove_cdi = false;
};

// A container of the checkpoint counts as ended only if its pod's folder is gone and pod-resources lists none of its
// devices. Either alone is not enough: after a restart kubelet's answer is empty for a while, and a pod's folder is
// made some time after its allocation.
CollectorPlan PlanCollection(const CollectorInput& input);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_COLLECTOR_H_
