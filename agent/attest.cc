#include "agent/attest.h"

#include <fstream>
#include <sstream>

#include "sluice/names.h"

namespace sluice::agent {
namespace {

std::string ReadAll(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

}  // namespace

std::string AllocationByMount(std::string_view mountinfo) {
  std::istringstream lines{std::string(mountinfo)};
  std::string found;
  // https://docs.kernel.org/filesystems/proc.html, 3.5: id, parent, device, root within its file system, mount point,
  // ...
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string id, parent, device, root, point;
    if (!(fields >> id >> parent >> device >> root >> point) || point != SLUICE_CONTAINER_RUN_DIR) continue;
    const size_t slash = root.rfind('/');
    if (slash != std::string::npos) found = root.substr(slash + 1);  // the last mount hides earlier ones
  }
  return found;
}

std::string AllocationByEnvironment(std::string_view environment, std::string_view alloc_dir) {
  constexpr std::string_view kName = SLUICE_ENV_SOCKET "=";
  constexpr std::string_view kEnd = "/" SLUICE_SOCKET_NAME;
  while (!environment.empty()) {
    const std::string_view entry = environment.substr(0, environment.find('\0'));
    environment.remove_prefix(std::min(environment.size(), entry.size() + 1));
    if (!entry.starts_with(kName)) continue;
    std::string_view path = entry.substr(kName.size());
    if (!path.starts_with(alloc_dir) || !path.ends_with(kEnd)) return {};
    path = path.substr(alloc_dir.size(), path.size() - alloc_dir.size() - kEnd.size());
    while (path.starts_with('/')) path.remove_prefix(1);
    return path.find('/') == std::string_view::npos ? std::string(path) : std::string();
  }
  return {};
}

std::string AllocationOfProcess(const std::string& proc, int64_t pid, const std::string& alloc_dir) {
  const std::string folder = proc + "/" + std::to_string(pid);
  std::string id = AllocationByMount(ReadAll(folder + "/mountinfo"));
  return id.empty() ? AllocationByEnvironment(ReadAll(folder + "/environ"), alloc_dir) : id;
}

}  // namespace sluice::agent
