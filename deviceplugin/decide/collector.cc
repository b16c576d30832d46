#include "deviceplugin/decide/collector.h"

#include <algorithm>

namespace sluice::deviceplugin {
namespace {

bool IsDead(const GivenOut& given, const CollectorInput& input) {
  if (!input.pod_uids || !input.devices_in_use || input.pod_uids->contains(given.pod_uid)) return false;
  return std::none_of(given.device_ids.begin(), given.device_ids.end(),
                      [&](const std::string& id) { return input.devices_in_use->contains(id); });
}

}  // namespace

CollectorPlan PlanCollection(const CollectorInput& input) {
  CollectorPlan plan;
  if (!input.checkpoint) return plan;
  std::set<std::string> run_dirs, dead_run_dirs, lib_dirs;
  for (const GivenOut& given : *input.checkpoint) {
    // A library or CDI name is never taken from an entry that might be dead: they are few, and age out with the entry.
    lib_dirs.insert(given.lib_dir);
    plan.cdi_names_in_use.insert(plan.cdi_names_in_use.end(), given.cdi_names.begin(), given.cdi_names.end());
    (IsDead(given, input) ? dead_run_dirs : run_dirs).insert(given.run_dir);
  }
  plan.may_remove_cdi = true;
  bool young = false;
  for (const Allocation& allocation : input.allocations) {
    const bool is_young = input.now - allocation.modified < input.grace;
    young |= is_young;
    if (!is_young && !run_dirs.contains(allocation.directory)) plan.allocation_ids.push_back(allocation.id);
  }
  // An allocation that kubelet has not checkpointed yet refers to the library that was current then: wait.
  if (young) return plan;
  for (const std::string& library : input.libraries) {
    if (library != input.current_library && !lib_dirs.contains(library)) plan.libraries.push_back(library);
  }
  return plan;
}

}  // namespace sluice::deviceplugin
