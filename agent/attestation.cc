#include "agent/attestation.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "sluice/names.h"

namespace sluice::agent {

namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
// A hook connects when CUDA starts, and tries again at least once a second.
constexpr uint64_t kAttachNs = kSecondNs + kSecondNs / 2;
// Processes of the first second were attached to the agent before this one, perhaps. All of a busy node's come back at
// once.
constexpr uint64_t kAttachAgainNs = 10 * kSecondNs;
// For so long each check has shown a process that is not attached. A hook attaches before its process uses a GPU.
constexpr uint64_t kFollowNs = 10 * kSecondNs;

}  // namespace

GpuSample TakeSample(const Nvml& nvml, const std::vector<std::string>& gpus, const std::string& alloc_dir,
                     const std::vector<std::string>& allocations, const std::set<int64_t>& attached) {
  GpuSample out;
  std::error_code ec;
  const std::string base = std::filesystem::canonical(alloc_dir, ec).string();
  const std::vector<Mount> own = OwnMounts();
  std::set<MountRoot> roots;
  for (const std::string& id : allocations) {
    const auto root = ec ? std::nullopt : RootOf(own, base + "/" + id);
    if (!root) continue;
    out.folders[id] = *root;
    roots.insert(*root);
  }
  for (const std::string& gpu : gpus) {
    const uint64_t listed_ns = BootNs();
    const auto processes = nvml.Processes(gpu);
    if (!processes) continue;
    out.processes[gpu] = *processes;
    for (const GpuProcess& p : *processes) {
      if (out.facts.contains(p.pid)) continue;
      ProcessFacts& facts = out.facts[p.pid];
      if (attached.contains(p.pid)) {
        facts.there = true;
        ReadCgroup(p.pid, &facts);
        continue;
      }
      facts = ReadFacts(p.pid, listed_ns);
      std::erase_if(facts.mounts,
                    [&](const Mount& m) { return m.point != SLUICE_CONTAINER_RUN_DIR && !roots.contains(m.root); });
    }
  }
  return out;
}

std::vector<RefusedLimit> SetDriverLimits(const Nvml& nvml, const std::vector<DriverLimit>& limits,
                                          const std::string& root) {
  std::vector<RefusedLimit> out;
  for (const DriverLimit& limit : limits) {
    if (!nvml.CanLimitMemory()) break;  // an older driver
    const std::string folder = CgroupFolder(root, limit.cgroup);
    bool supported = true;
    if (!folder.empty() && nvml.SetMemoryLimit(limit.gpu, folder, limit.bytes, &supported)) continue;
    if (!supported) break;
    out.push_back({limit, "GPU " + limit.gpu + ": the driver did not take a memory limit for " +
                              (folder.empty() ? "a container whose cgroup is not below attestation.cgroup_root"
                                              : "the cgroup " + folder)});
  }
  return out;
}

void Attestation::Report(const Process& process, const Identities::Finding& finding) {
  if (finding.forged.empty() || !forged_.insert(process).second) return;
  node_->Forged(finding.allocation, "pid " + std::to_string(process.first) + " uses a GPU, and " + finding.forged);
}

bool Attestation::HadTimeToAttach(const Process& process) {
  const uint64_t patience = now_ns_ - started_ns_ < kSecondNs ? kAttachAgainNs : kAttachNs;
  return now_ns_ >= attach_before_.try_emplace(process, now_ns_ + patience).first->second;
}

bool Attestation::FollowEachOther(const std::string& allocation) {
  const auto known = unattached_.try_emplace(allocation, now_ns_, now_ns_).first;
  known->second.second = now_ns_;
  return now_ns_ - known->second.first >= kFollowNs && now_ns_ - started_ns_ >= kAttachAgainNs;
}

bool Attestation::Apply(std::shared_ptr<const GpuSample> sample, const std::vector<std::string>& exempt, bool kubelet,
                        uint64_t now_ns) {
  sample_ = std::move(sample);
  exempt_ = {exempt.begin(), exempt.end()};
  kubelet_ = kubelet;
  now_ns_ = now_ns;
  Check();
  CheckForeign();
  PlanLimits();
  return waits_;
}

// A container is known from its processes: attached ones, and those that the driver shows on a GPU.
void Attestation::PlanLimits() {
  std::map<int64_t, std::string> attached;
  const Identities identities = Known(&attached);
  std::map<std::string, std::string> cgroups;  // of allocations
  for (const auto& [pid, facts] : sample_->facts) {
    if (facts.cgroup.empty()) continue;
    const auto own = attached.find(pid);
    const std::string id = own != attached.end() ? own->second : identities.Of(facts).allocation;
    if (!id.empty()) cgroups.emplace(id, facts.cgroup);
  }
  std::vector<DriverLimit> wanted;
  for (const auto& [id, cgroup] : cgroups) {
    for (const auto& [gpu, bytes] : node_->UnmanagedLimits(id)) wanted.push_back({gpu, cgroup, bytes});
  }
  limits_due_ = limits_.Plan(wanted);
}

void Attestation::SetOthers(OtherOwners others, uint64_t asked_ns) {
  others_ = std::move(others);
  others_ns_ = asked_ns;
  if (waits_) CheckForeign();
}

// Another plugin may have given the GPU since kubelet was asked: a new suspect waits for its next answer, which the
// caller gets at once.
void Attestation::CheckGpu(const Identities& identities, ForeignProcess process) {
  if (process.allocation.empty() && process.pod_uid.empty()) return;  // external: a process of the node itself
  if (identities.WasGiven(process.allocation, process.pod_uid, process.gpu)) return;
  if (name_of_ && !process.pod_uid.empty()) {
    PodName name = name_of_(process.pod_uid);
    if (name.name.empty() && process.allocation.empty()) return;  // the watch shows it in a moment
    process.ns = std::move(name.ns);
    process.pod = std::move(name.name);
  }
  if (exempt_.contains(process.ns)) return;
  const uint64_t since = suspects_.try_emplace({process.pid, process.gpu}, now_ns_).first->second;
  if (kubelet_ && others_ns_ < since) {
    waits_ = true;
    return;
  }
  const std::string pod = process.ns + "/" + process.pod;
  const auto has = [&](const std::string& gpu) {
    const auto owners = others_.find(gpu);
    return owners != others_.end() && owners->second.contains(pod);
  };
  if (has(process.gpu) || (process.allocation.empty() && has(""))) return;
  foreign_.push_back(std::move(process));
}

Identities Attestation::Known(std::map<int64_t, std::string>* attached) const {
  Identities out;
  for (auto& [id, identity] : node_->KnownIdentities()) {
    for (const int64_t pid : identity.pids) (*attached)[pid] = id;
    const auto folder = sample_->folders.find(id);
    out.Add(id, identity, folder == sample_->folders.end() ? std::nullopt : std::optional(folder->second));
  }
  return out;
}

void Attestation::CheckForeign() {
  waits_ = false;
  foreign_.clear();
  std::map<int64_t, std::string> attached;
  const Identities identities = Known(&attached);
  std::set<std::pair<int64_t, std::string>> listed;
  for (const auto& [gpu, processes] : sample_->processes) {
    for (const GpuProcess& p : processes) {
      listed.insert({p.pid, gpu});
      const ProcessFacts& facts = sample_->facts.at(p.pid);
      if (!facts.there || facts.is_young) continue;
      const auto own = attached.find(p.pid);
      ForeignProcess process;
      process.pid = p.pid;
      process.gpu = gpu;
      process.allocation = own != attached.end() ? own->second : identities.Of(facts).allocation;
      process.pod_uid = facts.container.pod_uid;
      CheckGpu(identities, std::move(process));
    }
  }
  std::erase_if(suspects_, [&](const auto& s) { return !listed.contains(s.first); });
  node_->SetForeign(foreign_);
}

void Attestation::Check() {
  GpuUses uses;
  for (const auto& [gpu, processes] : sample_->processes) {
    uses[gpu];
    for (const GpuProcess& p : processes) uses[gpu][p.pid] = {p.bytes, p.busy_percent};
  }
  std::map<std::string, std::vector<int64_t>> unhooked = node_->CheckEvidence(uses, now_ns_);
  std::map<int64_t, std::string> attached;
  const Identities identities = Known(&attached);
  std::set<Process> seen;
  if (started_ns_ == 0) started_ns_ = now_ns_;
  for (const auto& [gpu, processes] : sample_->processes) {
    std::map<int64_t, Bytes> used;
    for (const GpuProcess& p : processes) used[p.pid] += p.bytes;
    node_->SetProcesses(gpu, used);
    for (const GpuProcess& p : processes) {
      const ProcessFacts& facts = sample_->facts.at(p.pid);
      const Process process{p.pid, facts.started_ns};
      if (attached.contains(p.pid) || !seen.insert(process).second) continue;
      const bool had_time = HadTimeToAttach(process);
      if (facts.is_young) continue;
      const Identities::Finding finding = facts.there ? identities.Of(facts) : Identities::Finding{};
      Report(process, finding);
      if (node_->HasAllocation(finding.allocation)) {
        if (FollowEachOther(finding.allocation) || had_time) unhooked[finding.allocation].push_back(p.pid);
      } else if (external_.contains(process) && facts.container.pod_uid.empty() && reported_.insert(process).second) {
        // Only at the second check: NVML still lists a process that is ending, whose folder in /proc is gone.
        node_->AddExternal("pid " + std::to_string(p.pid) + " uses GPU " + gpu + " and is in no container of sluice");
      }
    }
  }
  std::erase_if(forged_, [&](const Process& process) { return !seen.contains(process); });
  std::erase_if(attach_before_, [&](const auto& process) { return !seen.contains(process.first); });
  std::erase_if(unattached_, [this](const auto& known) { return known.second.second != now_ns_; });
  for (const auto& [id, identity] : node_->KnownIdentities()) {
    node_->SetUnhooked(id, unhooked[id]);
    for (const int64_t pid : unhooked[id])
      std::erase_if(seen, [pid](const Process& process) { return process.first == pid; });
  }
  external_ = std::move(seen);
  std::erase_if(reported_, [this](const Process& process) { return !external_.contains(process); });
  node_->Settle();
}

}  // namespace sluice::agent
