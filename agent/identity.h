// Finds the container that owns a process, from kernel data alone: its cgroup as the host sees it, its mounts' devices
// and roots, and its ancestors. No path, id or variable that the process itself chooses counts. Pure functions.
#ifndef SLUICE_AGENT_IDENTITY_H_
#define SLUICE_AGENT_IDENTITY_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::agent {

// A container by its cgroup. Both empty: the process runs in no container.
struct ContainerKey {
  std::string pod_uid;  // with '-' between its groups, as the API server writes it; empty: not Kubernetes'
  std::string id;       // of the container runtime; empty: the pod's own cgroup, or an unknown form
  bool empty() const { return pod_uid.empty() && id.empty(); }
  auto operator<=>(const ContainerKey&) const = default;
};

// The uid in place of one that the process hides: it is no pod's.
inline constexpr const char* kHiddenPod = "hidden";

// From the text of /proc/<pid>/cgroup, version 1 or 2, by systemd's or the cgroupfs driver's names. A process may be
// allowed to make cgroups below its own, with any name: the outermost container of the path counts.
ContainerKey ContainerOf(std::string_view cgroup);
// The path of that container's cgroup, as the reader sees it. Empty: the process runs in no container.
std::string ContainerPathOf(std::string_view cgroup);

// The device and the path in its file system of a mount. A bind mount of a folder shows both in every namespace.
using MountRoot = std::pair<std::string, std::string>;

struct Mount {
  MountRoot root;
  std::string point;
};

// From the text of /proc/<pid>/mountinfo, in its order: a later mount hides an earlier one of the same point.
std::vector<Mount> ReadMounts(std::string_view mountinfo);

// The root that a bind mount of `path` shows, by the reader's own mounts. `path` is absolute, without links. No value:
// none of the mounts holds it.
std::optional<MountRoot> RootOf(const std::vector<Mount>& own, const std::string& path);

struct ProcessFacts {
  bool there = false;  // false: the process has ended, or ends
  ContainerKey container;
  std::vector<Mount> mounts;       // those at the run directory of containers, and all of folders of allocations
  std::vector<int64_t> ancestors;  // its parent first
  std::string cgroup;              // of the container
  // The process may have started after the driver reported the pid, which may be another one's: it is not judged yet.
  bool is_young = false;
  uint64_t started_ns = 0;  // since boot, in steps of the kernel's clock ticks; with the pid it tells processes apart
};

// An allocation, as far as processes are told apart by it.
struct AllocationIdentity {
  std::string pod_uid, container;       // of kubelet's checkpoint; empty: not known, or not made by kubelet
  int64_t runner = 0;                   // pid of its `sluice run`; 0: none
  std::set<int64_t> pids;               // attached processes
  std::set<std::string> gpus;           // that it was given
  std::set<std::string> container_ids;  // that the API server or attached processes' cgroups named
};

// All allocations of the node, with the mounts of their folders.
class Identities {
 public:
  void Add(const std::string& id, AllocationIdentity identity, const std::optional<MountRoot>& folder);

  struct Finding {
    std::string allocation;  // the process's own; empty: none
    // A sentence without ids if the process presents another allocation's folder as its own; else empty.
    std::string forged;
  };
  Finding Of(const ProcessFacts& process) const;
  // Whether the allocation, or where it is empty any of the pod's, was given the GPU.
  bool WasGiven(const std::string& allocation, const std::string& pod_uid, const std::string& gpu) const;
  bool IsFolder(const MountRoot& root) const { return folders_.contains(root); }

 private:
  std::string OwnOf(const ProcessFacts& process, const std::set<std::string>& mounted) const;

  std::map<std::string, AllocationIdentity> allocations_;
  std::map<MountRoot, std::string> folders_;
};

// Whether a process of `peer` may use an allocation of the pod `pod_uid`. A process in no pod is the node's own.
inline bool MayUse(const ContainerKey& peer, const std::string& pod_uid) {
  return pod_uid.empty() || peer.pod_uid.empty() || peer.pod_uid == pod_uid;
}

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_IDENTITY_H_
