#include "hooklib/engine/device/host_limits.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>

namespace sluice {

namespace {

std::string ReadFile(const std::string& path) {
  char text[4096];
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t n = read(fd, text, sizeof text);
  close(fd);
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : std::string();
}

uint64_t ReadNumber(const std::string& path, uint64_t otherwise) {
  const std::string text = ReadFile(path);
  if (text.empty() || text[0] < '0' || text[0] > '9') return otherwise;  // "max"
  return std::strtoull(text.c_str(), nullptr, 10);
}

uint64_t Remaining(uint64_t limit, uint64_t used) { return limit > used ? limit - used : 0; }

// "name 123" lines of memory.stat.
uint64_t StatField(const std::string& text, const char* name) {
  const std::string key = std::string(name) + " ";
  for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at + 1)) {
    if (at == 0 || text[at - 1] == '\n') return std::strtoull(text.c_str() + at + key.size(), nullptr, 10);
  }
  return 0;
}

// Paths of this process's cgroups below the mounts: of v2, and of v1's controller of this name. In a container its own
// cgroup is the root of the mount.
struct Cgroups {
  std::string v2, v1;
};
Cgroups OwnCgroups(const char* controller) {
  const std::string groups = ReadFile("/proc/self/cgroup");
  Cgroups own;
  for (size_t at = 0; at < groups.size();) {
    const size_t end = std::min(groups.find('\n', at), groups.size());
    const std::string line = groups.substr(at, end - at);
    if (line.rfind("0::", 0) == 0) own.v2 = line.substr(3);
    // "4:cpu,cpuacct:/path"
    const size_t colon = line.find(':'), path = colon == std::string::npos ? colon : line.find(':', colon + 1);
    if (path != std::string::npos) {
      const std::string names = "," + line.substr(colon + 1, path - colon - 1) + ",";
      if (names.find("," + std::string(controller) + ",") != std::string::npos) own.v1 = line.substr(path + 1);
    }
    at = end + 1;
  }
  return own;
}

uint64_t CgroupLeft() {
  uint64_t left = UINT64_MAX;
  const auto read_limit = [&left](const std::string& folder, const char* limit_name, const char* used_name,
                                  const char* prefix) {
    const uint64_t limit = ReadNumber(folder + limit_name, UINT64_MAX);
    if (limit > UINT64_MAX / 4) return;  // none; v1 writes a huge number
    // Cached file pages are charged too. The kernel reclaims them before it kills, so a job that has read a large
    // dataset is not out of memory.
    const std::string stat = ReadFile(folder + "memory.stat");
    const std::string active = std::string(prefix) + "active_file", inactive = std::string(prefix) + "inactive_file";
    const uint64_t cached = StatField(stat, active.c_str()) + StatField(stat, inactive.c_str());
    left = std::min(left, Remaining(limit, Remaining(ReadNumber(folder + used_name, 0), cached)));
  };
  const Cgroups own = OwnCgroups("memory");
  for (const std::string& path : {std::string("/"), own.v2 + "/"})
    read_limit("/sys/fs/cgroup" + path, "memory.max", "memory.current", "");
  for (const std::string& path : {std::string("/"), own.v1 + "/"}) {
    read_limit("/sys/fs/cgroup/memory" + path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_");
  }
  return left;
}

uint64_t MachineAvailable() {
  const std::string info = ReadFile("/proc/meminfo");
  const size_t at = info.find("MemAvailable:");
  if (at == std::string::npos) return UINT64_MAX;
  return std::strtoull(info.c_str() + at + std::strlen("MemAvailable:"), nullptr, 10) << 10;
}

}  // namespace

cpu_set_t CpuMask() {
  static const cpu_set_t mask = [] {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(getpid(), sizeof set, &set) != 0) CPU_SET(0, &set);
    return set;
  }();
  return mask;
}

int CpusAllowed() {
  const cpu_set_t set = CpuMask();
  uint64_t allowed = static_cast<uint64_t>(CPU_COUNT(&set));
  const auto apply_quota = [&allowed](uint64_t quota, uint64_t period) {
    if (quota && period && quota < UINT64_MAX / 2) allowed = std::min(allowed, (quota + period - 1) / period);
  };
  const Cgroups own = OwnCgroups("cpu");
  for (const std::string& path : {std::string("/"), own.v2 + "/"}) {
    const std::string text = ReadFile("/sys/fs/cgroup" + path + "cpu.max");  // "200000 100000", "max 100000"
    const size_t blank = text.find(' ');
    if (blank != std::string::npos && text[0] >= '0' && text[0] <= '9')
      apply_quota(std::strtoull(text.c_str(), nullptr, 10), std::strtoull(text.c_str() + blank, nullptr, 10));
  }
  for (const std::string& path : {std::string("/"), own.v1 + "/"}) {
    const std::string folder = "/sys/fs/cgroup/cpu" + path;
    apply_quota(ReadNumber(folder + "cpu.cfs_quota_us", 0), ReadNumber(folder + "cpu.cfs_period_us", 0));  // -1: none
  }
  return static_cast<int>(std::max<uint64_t>(1, allowed));
}

uint64_t HostMemoryLeft() {
  constexpr uint64_t kUnknown = UINT64_MAX / 2;
  static std::atomic<uint64_t> value{kUnknown};
  static std::atomic<int64_t> read_at{0};
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  const int64_t now = ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
  if (read_at.load() == 0 || now - read_at.load() > 100) {
    value = std::min({CgroupLeft(), MachineAvailable(), kUnknown});
    read_at = now;
  }
  return value;
}

}  // namespace sluice
