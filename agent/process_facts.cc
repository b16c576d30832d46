#include "agent/process_facts.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>

namespace sluice::agent {
namespace {

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

// 0: none. The name in parentheses may hold any character, so the fields are counted from its end.
int64_t ParentOf(int64_t pid) {
  const std::string stat = Read(pid, "stat");
  const size_t end = stat.rfind(')');
  if (end == std::string::npos || end + 4 >= stat.size()) return 0;
  return std::strtoll(stat.c_str() + end + 4, nullptr, 10);  // ") S <parent>"
}

}  // namespace

ContainerKey ReadContainer(int64_t pid) { return pid > 0 ? ContainerOf(Read(pid, "cgroup")) : ContainerKey{}; }

ProcessFacts ReadFacts(int64_t pid) {
  ProcessFacts out;
  const std::string cgroup = Read(pid, "cgroup");
  out.there = !cgroup.empty();
  if (!out.there) return out;
  out.container = ContainerOf(cgroup);
  out.mounts = ReadMounts(Read(pid, "mountinfo"));
  for (int64_t p = ParentOf(pid); p > 1 && out.ancestors.size() < kMaxAncestors; p = ParentOf(p)) {
    out.ancestors.push_back(p);
  }
  return out;
}

std::vector<Mount> OwnMounts() { return ReadMounts(Read(getpid(), "mountinfo")); }

}  // namespace sluice::agent
