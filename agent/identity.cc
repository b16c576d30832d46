#include "agent/identity.h"

#include <algorithm>
#include <array>

#include "sluice/names.h"

namespace sluice::agent {
namespace {

// The next part of `text` before `separator`; removes both from `text`.
std::string_view Cut(std::string_view& text, char separator) {
  const std::string_view part = text.substr(0, text.find(separator));
  text.remove_prefix(std::min(text.size(), part.size() + 1));
  return part;
}

bool IsHex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

// A UUID, or a static pod's hash.
bool IsUid(std::string_view text) {
  return (text.size() == 36 || text.size() == 32) &&
         std::ranges::all_of(text, [](char c) { return IsHex(c) || c == '-' || c == '_'; });
}

// "pod<uid>" (cgroupfs), or "kubepods[-burstable|-besteffort]-pod<uid>.slice" (systemd, where '_' stands for '-'), with
// the names of kubelet's own root (--cgroup-root) before it.
std::string PodUid(std::string_view part) {
  if (part.ends_with(".slice")) {
    const size_t kubepods = part.find("kubepods");
    if (kubepods == std::string_view::npos || (kubepods > 0 && part[kubepods - 1] != '-')) return {};
    part.remove_prefix(kubepods);
    const size_t at = part.find("-pod");
    if (at == std::string_view::npos) return {};
    part.remove_suffix(6);
    part.remove_prefix(at + 4);
  } else if (part.starts_with("pod")) {
    part.remove_prefix(3);
  } else {
    return {};
  }
  if (!IsUid(part)) return {};
  std::string uid(part);
  std::ranges::replace(uid, '_', '-');
  return uid;
}

// 64 hexadecimal digits, as all runtimes give; systemd's names are "<runtime>-<id>.scope".
std::string ContainerId(std::string_view part) {
  constexpr size_t kDigits = 64;
  if (part.ends_with(".scope")) {
    part.remove_suffix(6);
    const size_t dash = part.rfind('-');
    if (dash != std::string_view::npos) part.remove_prefix(dash + 1);
  }
  return part.size() == kDigits && std::ranges::all_of(part, IsHex) ? std::string(part) : std::string();
}

// `length`: of the path down to the container's own cgroup.
ContainerKey FromPath(std::string_view path, size_t* length) {
  ContainerKey out;
  const std::string_view whole = path;
  *length = 0;
  while (!path.empty()) {
    const std::string_view part = Cut(path, '/');
    *length = static_cast<size_t>(part.data() - whole.data()) + part.size();
    if (part == "user.slice") return {};  // systemd lets users make any cgroup below it
    if (out.pod_uid.empty()) out.pod_uid = PodUid(part);
    out.id = ContainerId(part);
    if (!out.id.empty()) return out;
    if (!out.pod_uid.empty() && PodUid(part).empty())
      return out;  // below the pod, and named by no runtime that is known
  }
  return out;
}

// The kernel writes space, tab, newline and backslash as octal numbers.
std::string Unescape(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

bool Holds(const std::string& folder, const std::string& path) {
  return path == folder || folder == "/" || (path.starts_with(folder) && path[folder.size()] == '/');
}

}  // namespace

namespace {

ContainerKey Outermost(std::string_view cgroup, std::string_view* path) {
  ContainerKey found;
  // https://man7.org/linux/man-pages/man7/cgroups.7.html: "hierarchy:controllers:path" in each line.
  while (!cgroup.empty()) {
    std::string_view line = Cut(cgroup, '\n');
    Cut(line, ':');
    Cut(line, ':');
    size_t length = 0;
    const ContainerKey key = FromPath(line, &length);
    if (key.empty() || (key.pod_uid.empty() && !found.empty())) continue;
    found = key;
    *path = line.substr(0, length);
    if (!key.pod_uid.empty()) break;
  }
  return found;
}

}  // namespace

ContainerKey ContainerOf(std::string_view cgroup) {
  std::string_view path;
  return Outermost(cgroup, &path);
}

std::string ContainerPathOf(std::string_view cgroup) {
  std::string_view path;
  return Outermost(cgroup, &path).id.empty() ? std::string() : std::string(path);
}

std::vector<Mount> ReadMounts(std::string_view mountinfo) {
  std::vector<Mount> out;
  // https://docs.kernel.org/filesystems/proc.html, 3.5: id, parent, device, root within its file system, mount point,
  // ...
  while (!mountinfo.empty()) {
    std::string_view line = Cut(mountinfo, '\n');
    std::array<std::string_view, 5> fields;
    for (std::string_view& field : fields) field = Cut(line, ' ');
    if (fields[4].empty()) continue;
    out.push_back({{std::string(fields[2]), Unescape(fields[3])}, Unescape(fields[4])});
  }
  return out;
}

std::optional<MountRoot> RootOf(const std::vector<Mount>& own, const std::string& path) {
  const Mount* best = nullptr;
  for (const Mount& m : own) {
    if (Holds(m.point, path) && (best == nullptr || m.point.size() >= best->point.size())) best = &m;
  }
  if (best == nullptr) return std::nullopt;
  const std::string below = best->point == "/" ? path : path.substr(best->point.size());
  std::string root = best->root.second == "/" ? below : best->root.second + (below == "/" ? "" : below);
  if (root.empty()) root = "/";
  return MountRoot{best->root.first, root};
}

void Identities::Add(const std::string& id, AllocationIdentity identity, const std::optional<MountRoot>& folder) {
  allocations_[id] = std::move(identity);
  if (folder) folders_[*folder] = id;
}

// The cgroup goes first: no process changes it. Then the mount of a folder, which only the container runtime can have
// made. Then the ancestors, for programs that share the node's mounts and cgroups.
std::string Identities::OwnOf(const ProcessFacts& process, const std::set<std::string>& mounted) const {
  const ContainerKey& c = process.container;
  std::vector<std::string> of_pod, of_container;
  for (const auto& [id, a] : allocations_) {
    if (!MayUse(c, a.pod_uid)) continue;
    if (!c.id.empty() && a.container_ids.contains(c.id)) of_container.push_back(id);
    if (!c.pod_uid.empty() && a.pod_uid == c.pod_uid) of_pod.push_back(id);
  }
  if (of_container.size() == 1) return of_container.front();  // several: a node that is a container itself
  for (const std::string& id : mounted) {
    if (of_pod.empty() || std::ranges::find(of_pod, id) != of_pod.end()) return id;
  }
  if (of_pod.size() == 1) return of_pod.front();
  for (const int64_t ancestor : process.ancestors) {
    for (const auto& [id, a] : allocations_) {
      if (MayUse(c, a.pod_uid) && (a.pids.contains(ancestor) || a.runner == ancestor)) return id;
    }
  }
  return {};
}

Identities::Finding Identities::Of(const ProcessFacts& process) const {
  Finding out;
  std::set<std::string> mounted;
  const Mount* top = nullptr;
  for (const Mount& m : process.mounts) {
    if (m.point == SLUICE_CONTAINER_RUN_DIR) top = &m;
    const auto folder = folders_.find(m.root);
    if (folder == folders_.end()) continue;
    if (MayUse(process.container, allocations_.at(folder->second).pod_uid)) {
      mounted.insert(folder->second);
    } else {
      out.forged = "it has mounted the folder of another pod's allocation";
    }
  }
  out.allocation = OwnOf(process, mounted);
  if (top == nullptr || folders_.contains(top->root)) return out;
  const std::string& path = top->root.second;
  const std::string name = path.substr(path.rfind('/') + 1);
  if (name != out.allocation && allocations_.contains(name)) {
    out.forged = "it has mounted a folder at " SLUICE_CONTAINER_RUN_DIR " that is called as another's allocation";
  } else if (!out.allocation.empty()) {
    out.forged = "it has hidden its allocation's folder at " SLUICE_CONTAINER_RUN_DIR " by another mount";
  }
  return out;
}

bool Identities::WasGiven(const std::string& allocation, const std::string& pod_uid, const std::string& gpu) const {
  return std::ranges::any_of(allocations_, [&](const auto& entry) {
    const bool own =
        allocation.empty() ? !pod_uid.empty() && entry.second.pod_uid == pod_uid : entry.first == allocation;
    return own && entry.second.gpus.contains(gpu);
  });
}

}  // namespace sluice::agent
