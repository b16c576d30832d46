#include "deviceplugin/decide/collector.h"

#include <algorithm>

namespace sluice::deviceplugin {
namespace {

bool HasEnded(const CheckpointEntry& entry, const CollectorInput& input) {
  if (!input.pod_uids || !input.devices_in_use || input.pod_uids->contains(entry.pod_uid)) return false;
  return std::none_of(entry.device_ids.begin(), entry.device_ids.end(),
                      [&](const std::string& id) { return input.devices_in_use->contains(id); });
}

}  // namespace

CollectorPlan PlanCollection(const CollectorInput& input) {
  CollectorPlan plan;
  if (!input.checkpoint) return plan;
  std::set<std::string> run_dirs, ended_run_dirs, lib_dirs;
  for (const CheckpointEntry& entry : *input.checkpoint) {
    // Libraries and CDI names of entries that may have ended are kept too: they are few, and disappear with the entry.
    lib_dirs.insert(entry.lib_dir);
    plan.cdi_names_in_use.insert(plan.cdi_names_in_use.end(), entry.cdi_names.begin(), entry.cdi_names.end());
    (HasEnded(entry, input) ? ended_run_dirs : run_dirs).insert(entry.run_dir);
  }
  plan.may_remove_cdi = input.claims_libraries.has_value();
  plan.cdi_names_in_use.insert(plan.cdi_names_in_use.end(), input.claims_cdi_names.begin(),
                               input.claims_cdi_names.end());
  bool young = false;
  for (const Allocation& allocation : input.allocations) {
    const bool is_young = input.now - allocation.modified < input.grace;
    young |= is_young;
    if (!is_young && !run_dirs.contains(allocation.directory)) plan.allocation_ids.push_back(allocation.id);
  }
  // An allocation that kubelet has not checkpointed yet uses the library that was current at its time, so wait.
  if (young || !input.claims_libraries) return plan;
  lib_dirs.insert(input.claims_libraries->begin(), input.claims_libraries->end());
  for (const std::string& library : input.libraries) {
    if (library != input.current_library && !lib_dirs.contains(library)) plan.libraries.push_back(library);
  }
  return plan;
}

}  // namespace sluice::deviceplugin
