#include "agent/process_facts.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <sstream>

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

struct Stat {
  int64_t parent = 0;       // 0: none
  uint64_t started_ns = 0;  // since boot
};

// https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html. The name in parentheses may hold any character, so the
// fields are counted from its end.
Stat StatOf(int64_t pid) {
  constexpr int kParent = 4, kStarted = 22;  // fields
  Stat out;
  const std::string stat = Read(pid, "stat");
  const size_t end = stat.rfind(')');
  if (end == std::string::npos) return out;
  std::istringstream in(stat.substr(end + 1));
  std::string word;
  for (int field = 3; field <= kStarted && in >> word; ++field) {
    if (field == kParent) out.parent = std::strtoll(word.c_str(), nullptr, 10);
    if (field == kStarted) {
      static const auto kTick = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
      out.started_ns = std::strtoull(word.c_str(), nullptr, 10) * (1'000'000'000 / kTick);
    }
  }
  return out;
}

}  // namespace

ContainerKey ReadContainer(int64_t pid) { return pid > 0 ? ContainerOf(Read(pid, "cgroup")) : ContainerKey{}; }

void ReadCgroup(int64_t pid, ProcessFacts* facts) {
  const std::string cgroup = Read(pid, "cgroup");
  facts->container = ContainerOf(cgroup);
  facts->cgroup = ContainerPathOf(cgroup);
}

uint64_t BootNs() {
  timespec t{};
  clock_gettime(CLOCK_BOOTTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

bool WasListed(uint64_t started_ns, uint64_t listed_ns) {
  constexpr uint64_t kStaleNs = 200'000'000;  // NVML still lists a process that ends, and clock ticks are coarse
  return started_ns + kStaleNs <= listed_ns;
}

ProcessFacts ReadFacts(int64_t pid, uint64_t listed_ns) {
  ProcessFacts out;
  const Stat stat = StatOf(pid);
  const std::string cgroup = Read(pid, "cgroup");
  out.started_ns = stat.started_ns;
  out.there = !cgroup.empty() && stat.started_ns > 0;
  if (!out.there) return out;
  out.is_young = !WasListed(out.started_ns, listed_ns);
  out.container = ContainerOf(cgroup);
  out.cgroup = ContainerPathOf(cgroup);
  out.mounts = ReadMounts(Read(pid, "mountinfo"));
  for (int64_t p = stat.parent; p > 1 && out.ancestors.size() < kMaxAncestors; p = StatOf(p).parent) {
    out.ancestors.push_back(p);
  }
  out.there = StatOf(pid).started_ns == out.started_ns;  // all of this is one process's
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
