#include "agent/process_facts.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

namespace sluice::agent {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxText = size_t{512} << 10;  // a process may make many mounts; the runtime's come first
constexpr int kMaxAncestors = 64;

// Empty: the process has ended.
std::string Read(int64_t pid, const char* name) {
  std::string out;
  const std::string path = "/proc/" + std::to_string(pid) + "/" + name;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return out;
  char buffer[8192];
  ssize_t n = 0;
  while (out.size() < kMaxText && (n = read(fd, buffer, sizeof(buffer))) > 0)
    out.append(buffer, static_cast<size_t>(n));
  close(fd);
  return out;
}

constexpr int kMaxDepth = 6;  // of a container's cgroup below the root: slices of kubepods, the pod, the container

// The folder below `folder` whose path ends with `end`.
std::string Find(const std::string& folder, const std::string& end, int depth) {
  std::error_code ec;
  if (fs::is_directory(folder + end, ec)) return folder + end;
  if (depth == 0) return "";
  for (fs::directory_iterator it(folder, ec); !ec && it != fs::directory_iterator(); it.increment(ec)) {
    if (it->is_symlink(ec) || !it->is_directory(ec)) continue;
    if (std::string found = Find(it->path().string(), end, depth - 1); !found.empty()) return found;
  }
  return "";
}

// 0: none. The name in parentheses may hold any character, so the fields are counted from its end.
int64_t ParentOf(int64_t pid) {
  const std::string stat = Read(pid, "stat");
  const size_t end = stat.rfind(')');
  if (end == std::string::npos || end + 4 >= stat.size()) return 0;
  return std::strtoll(stat.c_str() + end + 4, nullptr, 10);  // ") S <parent>"
}

}  // namespace

ContainerKey ReadContainer(int64_t pid) { return pid > 0 ? ContainerOf(Read(pid, "cgroup")) : ContainerKey{}; }

void ReadCgroup(int64_t pid, ProcessFacts* facts) {
  const std::string cgroup = Read(pid, "cgroup");
  facts->container = ContainerOf(cgroup);
  facts->cgroup = ContainerPathOf(cgroup);
}

ProcessFacts ReadFacts(int64_t pid) {
  ProcessFacts out;
  const std::string cgroup = Read(pid, "cgroup");
  out.there = !cgroup.empty();
  if (!out.there) return out;
  out.container = ContainerOf(cgroup);
  out.cgroup = ContainerPathOf(cgroup);
  out.mounts = ReadMounts(Read(pid, "mountinfo"));
  for (int64_t p = ParentOf(pid); p > 1 && out.ancestors.size() < kMaxAncestors; p = ParentOf(p)) {
    out.ancestors.push_back(p);
  }
  return out;
}

std::string CgroupFolder(const std::string& root, const std::string& cgroup) {
  std::string path = cgroup;
  while (path.starts_with("/..")) path.erase(0, 3);
  if (path.empty() || path == "/" || path.find("/../") != std::string::npos) return "";
  std::error_code ec;
  if (fs::is_directory(root + path, ec)) return root + path;
  return path == cgroup ? "" : Find(root, path, kMaxDepth);
}

std::vector<Mount> OwnMounts() { return ReadMounts(Read(getpid(), "mountinfo")); }

}  // namespace sluice::agent
