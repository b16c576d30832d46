// Decides what may be deleted. Pure: the caller reads, asks, deletes.
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
  // Nothing: the checkpoint could not be read, and nothing may be deleted.
  std::optional<std::vector<GivenOut>> checkpoint;
  // UIDs with a folder in <kubelet>/pods; nothing: the folder cannot be seen. Kubelet removes a pod's folder when the
  // pod is gone for good, but its checkpoint entry only at the next admission: without this the last pods' directories
  // would stay for as long as no pod comes.
  std::optional<std::set<std::string>> pod_uids;
  // Device ids that pod-resources gives to some container; nothing: no answer.
  std::optional<std::set<std::string>> devices_in_use;
  std::vector<Allocation> allocations;
  std::vector<std::string> libraries;  // host paths
  std::string current_library;
  std::chrono::system_clock::time_point now;
  std::chrono::seconds grace{300};  // between Allocate's answer and kubelet's checkpoint, retries included
};

struct CollectorPlan {
  std::vector<std::string> allocation_ids;
  std::vector<std::string> libraries;
  std::vector<std::string> cdi_names_in_use;
  bool may_remove_cdi = false;
};

// A container of the checkpoint is dead only if its pod's folder is gone AND pod-resources names none of its devices:
// after a restart kubelet's answer is empty for a while, and the folder of a pod is made some time after its
// allocation.
CollectorPlan PlanCollection(const CollectorInput& input);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_COLLECTOR_H_
