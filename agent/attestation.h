// Compares the GPU's own account of processes with the hooks' accounts. Every process that NVML lists is attached, or
// in a container of sluice without a hook, or external.
#ifndef SLUICE_AGENT_ATTESTATION_H_
#define SLUICE_AGENT_ATTESTATION_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/driver_limits.h"
#include "agent/node.h"
#include "agent/nvml_unsafe.h"
#include "agent/process_facts.h"

namespace sluice::agent {

// One reading of NVML and of /proc.
struct GpuSample {
  std::map<std::string, std::vector<GpuProcess>> processes;  // by GPU, of those whose driver lists them
  std::map<int64_t, ProcessFacts> facts;
  std::map<std::string, MountRoot> folders;  // of the allocations, as bind mounts show them
};

// The driver may hold a call of NVML for long, so this runs on a thread beside the loop's. It uses no state of the
// agent.
// Of attached processes it reads the cgroup alone: their sockets say whose they are.
GpuSample TakeSample(const Nvml& nvml, const std::vector<std::string>& gpus, const std::string& alloc_dir,
                     const std::vector<std::string>& allocations, const std::set<int64_t>& attached);

struct RefusedLimit {
  DriverLimit limit;
  std::string why;
};

// Sets them, where the driver can: on the sampler's thread too. `root`: the host's cgroup file system.
std::vector<RefusedLimit> SetDriverLimits(const Nvml& nvml, const std::vector<DriverLimit>& limits,
                                          const std::string& root);

// Used by the loop's thread.
class Attestation {
 public:
  struct PodName {
    std::string ns, name;  // empty: not known
  };
  // `name_of`: the pod of a uid; empty where there is no API server.
  explicit Attestation(Node* node, std::function<PodName(const std::string& uid)> name_of = {})
      : node_(node), name_of_(std::move(name_of)) {}
  // True: kubelet should be asked now who else was given GPUs, and SetOthers() called. `exempt`: namespaces whose pods
  // may use any GPU. `kubelet`: it can be asked.
  bool Apply(std::shared_ptr<const GpuSample> sample, const std::vector<std::string>& exempt, bool kubelet,
             uint64_t now_ns);
  // Kubelet's answer, asked for at `asked_ns`. Applies the last sample again, if that had waited.
  void SetOthers(OtherOwners others, uint64_t asked_ns);
  // The driver's limits of unmanaged memory that the last sample wants changed.
  std::vector<DriverLimit> TakeLimits() { return std::exchange(limits_due_, {}); }
  void LimitFailed(const DriverLimit& limit) { limits_.Failed(limit); }

 private:
  // A pid and when its process started: the pid alone may be another process's at the next check.
  using Process = std::pair<int64_t, uint64_t>;
  void Report(const Process& process, const Identities::Finding& finding);
  bool HadTimeToAttach(const Process& process);
  // Short processes that follow each other are each too young to be reported.
  bool FollowEachOther(const std::string& allocation);
  void Check();
  void CheckForeign();
  void PlanLimits();
  // All allocations, and whose the attached processes are.
  Identities Known(std::map<int64_t, std::string>* attached) const;
  // Keeps the process for the report if it certainly is on a GPU of others.
  void CheckGpu(const Identities& identities, ForeignProcess process);

  Node* const node_;
  const std::function<PodName(const std::string& uid)> name_of_;
  std::shared_ptr<const GpuSample> sample_;
  std::set<std::string> exempt_;
  bool kubelet_ = false, waits_ = false;
  uint64_t now_ns_ = 0;
  OtherOwners others_;
  uint64_t others_ns_ = 0;                                        // when kubelet was asked for them
  std::map<std::pair<int64_t, std::string>, uint64_t> suspects_;  // pid and GPU, and when first seen there
  std::vector<ForeignProcess> foreign_;
  uint64_t started_ns_ = 0;                    // the first check
  std::map<Process, uint64_t> attach_before_;  // processes that are not attached, and when they should be
  // Allocations with such a process, by the first of the checks without a gap, and the last one.
  std::map<std::string, std::pair<uint64_t, uint64_t>> unattached_;
  DriverLimits limits_;
  std::vector<DriverLimit> limits_due_;
  // Processes at the last check, and those of them with an event.
  std::set<Process> external_, reported_, forged_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_ATTESTATION_H_
