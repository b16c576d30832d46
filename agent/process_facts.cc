#include "agent/process_facts.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <sstream>

namespace sluice::agent {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxText = size_t{512} << 10;  // a process may make many mounts; the runtime's come first
constexpr int kMaxAncestors = 64;

std::string FolderOf(int64_t pid) { return "/proc/" + std::to_string(pid); }

// Empty: the process has ended, or the kernel does not tell (errno).
std::string Read(const std::string& path) {
  std::string out;
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
  char state = 0;           // 'Z': it has ended, and its parent or its own threads have not; 0: none
  int64_t parent = 0;       // 0: none
  uint64_t started_ns = 0;  // since boot
};

// https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html. The name in parentheses may hold any character, so the
// fields are counted from its end.
Stat StatOf(const std::string& folder) {
  constexpr int kState = 3, kParent = 4, kStarted = 22;  // fields
  Stat out;
  const std::string stat = Read(folder + "/stat");
  const size_t end = stat.rfind(')');
  if (end == std::string::npos) return out;
  std::istringstream in(stat.substr(end + 1));
  std::string word;
  for (int field = kState; field <= kStarted && in >> word; ++field) {
    if (field == kState) out.state = word[0];
    if (field == kParent) out.parent = std::strtoll(word.c_str(), nullptr, 10);
    if (field == kStarted) {
      static const auto kTick = static_cast<uint64_t>(sysconf(_SC_CLK_TCK));
      out.started_ns = std::strtoull(word.c_str(), nullptr, 10) * (1'000'000'000 / kTick);
    }
  }
  return out;
}

bool HasEnded(const Stat& stat) { return stat.state == 'Z' || stat.state == 'X' || stat.state == 0; }

// The first thread may end while others go on. Of an ended thread the kernel tells no mounts, and with cgroup v1 no
// cgroup. The folder is that of the first thread, or of one that lives.
std::string LivingFolder(int64_t pid, const Stat& stat) {
  std::string folder = FolderOf(pid);
  if (stat.state != 'Z') return folder;
  // A tracer can keep thousands of ended threads: a process whose first ones have all ended counts as one that hides.
  constexpr int kMaxThreads = 64;
  std::error_code ec;
  fs::directory_iterator it(folder + "/task", ec);
  for (int i = 0; !ec && i < kMaxThreads && it != fs::directory_iterator(); it.increment(ec), ++i) {
    if (!HasEnded(StatOf(it->path().string()))) return it->path().string();
  }
  return folder;
}

// Threads that end all the time are asked some times. Empty: the process has ended, or hides its cgroup: the kernel
// writes no path of 4,096 characters or more.
std::string CgroupOf(int64_t pid, std::string* folder) {
  constexpr int kAttempts = 8;
  std::string text;
  for (int i = 0; i < kAttempts && text.empty(); ++i) {
    const Stat stat = StatOf(FolderOf(pid));
    if (stat.state == 0) break;
    *folder = LivingFolder(pid, stat);
    text = Read(*folder + "/cgroup");
    // It may have ended between: then v1 says the root.
    if (stat.state == 'Z' && HasEnded(StatOf(*folder))) text.clear();
  }
  return text;
}

}  // namespace

// Called for each connection: no text is built, and one read is all. The kernel hands out the whole file at once, where
// it fits.
ContainerKey ReadContainer(int64_t pid) {
  if (pid <= 0) return {};
  char path[40], text[4096];
  std::snprintf(path, sizeof(path), "/proc/%lld/cgroup", static_cast<long long>(pid));
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t n = read(fd, text, sizeof(text));
  close(fd);
  if (n == sizeof(text)) return ContainerOf(Read(FolderOf(pid) + "/cgroup"));
  return n > 0 ? ContainerOf({text, static_cast<size_t>(n)}) : ContainerKey{};
}

ContainerKey ReadContainerOfAny(int64_t pid) {
  std::string folder;
  const std::string cgroup = CgroupOf(pid, &folder);
  if (!cgroup.empty()) return ContainerOf(cgroup);
  return {kHiddenPod, ""};
}

void ReadCgroup(int64_t pid, ProcessFacts* facts) {
  std::string folder;
  const std::string cgroup = CgroupOf(pid, &folder);
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
  const Stat stat = StatOf(FolderOf(pid));
  std::string folder = FolderOf(pid);
  const std::string cgroup = CgroupOf(pid, &folder);
  out.started_ns = stat.started_ns;
  // A process without threads that live has ended. One that hides its cgroup is there, and its mounts tell whose it is.
  out.there = stat.started_ns > 0 && (!cgroup.empty() || !HasEnded(StatOf(folder)));
  if (!out.there) return out;
  out.is_young = !WasListed(out.started_ns, listed_ns);
  out.container = ContainerOf(cgroup);
  out.cgroup = ContainerPathOf(cgroup);
  out.mounts = ReadMounts(Read(folder + "/mountinfo"));
  for (int64_t p = stat.parent; p > 1 && out.ancestors.size() < kMaxAncestors; p = StatOf(FolderOf(p)).parent) {
    out.ancestors.push_back(p);
  }
  out.there = StatOf(FolderOf(pid)).started_ns == out.started_ns;  // all of this is one process's
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

std::vector<Mount> OwnMounts() { return ReadMounts(Read(FolderOf(getpid()) + "/mountinfo")); }

}  // namespace sluice::agent
