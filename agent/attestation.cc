#include "agent/attestation.h"

#include <map>
#include <utility>
#include <vector>

#include "agent/attest.h"

namespace sluice::agent {

void Attestation::Check(const Nvml& nvml) {
  std::map<std::string, std::vector<int64_t>> unhooked;
  std::set<int64_t> hooked, seen;
  for (const auto& [id, pids] : node_->AttachedPids()) {
    unhooked[id];
    hooked.insert(pids.begin(), pids.end());
  }
  for (const CardStatus& card : node_->Status().cards) {
    const std::vector<GpuProcess> processes = nvml.Processes(card.uuid);
    std::map<int64_t, Bytes> used;
    for (const GpuProcess& p : processes) used[p.pid] += p.bytes;
    node_->SetProcesses(card.uuid, used);
    for (const GpuProcess& p : processes) {
      if (hooked.contains(p.pid) || !seen.insert(p.pid).second) continue;
      const std::string id = AllocationOfProcess("/proc", p.pid, alloc_dir_);
      const auto it = unhooked.find(id);
      if (it != unhooked.end()) {
        it->second.push_back(p.pid);
      } else if (external_.contains(p.pid) && reported_.insert(p.pid).second) {
        // Only at the second check: NVML still lists a process that is ending, whose folder in /proc is gone.
        node_->AddEvent(
            "", "external process",
            "pid " + std::to_string(p.pid) + " uses GPU " + card.uuid + " and is in no container of sluice");
      }
    }
  }
  for (const auto& [id, pids] : unhooked) {
    node_->SetUnhooked(id, pids);
    for (const int64_t pid : pids) seen.erase(pid);
  }
  external_ = std::move(seen);
  std::erase_if(reported_, [this](int64_t pid) { return !external_.contains(pid); });
  node_->Settle();
}

}  // namespace sluice::agent
