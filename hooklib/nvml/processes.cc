#include "hooklib/nvml/processes.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

namespace sluice {
namespace {

// The bytes read into `out`; -1: this pid namespace has no such process.
int ReadCgroup(unsigned pid, char* out, int capacity) {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%u/cgroup", pid);
  const int fd = open(path.data(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  const auto bytes = read(fd, out, static_cast<std::size_t>(capacity));
  close(fd);
  return static_cast<int>(bytes);
}

}  // namespace

Container::Container()
    : self_(static_cast<unsigned>(getpid())),
      cgroup_bytes_(ReadCgroup(self_, cgroup_.data(), static_cast<int>(cgroup_.size()))) {}

bool Container::Holds(unsigned pid) const {
  std::array<char, 512> other{};
  const int bytes = ReadCgroup(pid, other.data(), static_cast<int>(other.size()));
  if (bytes < 0) return false;
  return cgroup_bytes_ < 0 || (bytes == cgroup_bytes_ && std::memcmp(other.data(), cgroup_.data(), bytes) == 0);
}

}  // namespace sluice
