#include "deviceplugin/host/pre_start.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "deviceplugin/decide/grant.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/host/hook_library.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {
namespace {

// A socket file outlives its agent, so connect to it. The path may be longer than sun_path: go through the folder's fd.
absl::Status CheckSocket(const std::string& dir) {
  const std::string path = StrCat(dir, "/", SLUICE_SOCKET_NAME);
  struct stat st;
  if (stat(path.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode)) {
    return absl::UnavailableError(
        StrCat("the node agent has not made its socket ", path, "; check that sluice-agent runs on this node"));
  }
  const int dir_fd = open(dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (dir_fd < 0) return ErrnoError("open", dir, errno);
  absl::Cleanup close_dir = [dir_fd] { close(dir_fd); };
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string by_fd = StrCat("/proc/self/fd/", dir_fd, "/", SLUICE_SOCKET_NAME);
  std::memcpy(address.sun_path, by_fd.c_str(), by_fd.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return ErrnoError("make a socket for", path, errno);
  absl::Cleanup close_fd = [fd] { close(fd); };
  // EAGAIN: the agent listens and is busy, which suffices.
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 || errno == EAGAIN)
    return absl::OkStatus();
  return absl::UnavailableError(StrCat("the node agent does not answer on its socket ", path, " (", strerror(errno),
                                       "); check that sluice-agent runs on this node"));
}

}  // namespace

absl::StatusOr<std::vector<StartRequirements>> FindStartRequirements(
    std::span<const std::string> device_ids, const absl::StatusOr<std::vector<CheckpointEntry>>& checkpoint,
    const AllocationStore& store, const std::string& current_library) {
  std::vector<std::string> ids(device_ids.begin(), device_ids.end());
  std::sort(ids.begin(), ids.end());
  std::vector<StartRequirements> needs;
  if (checkpoint.ok()) {
    for (const CheckpointEntry& given : *checkpoint) {
      if (given.device_ids == ids) needs.push_back({given.run_dir, given.lib_dir});
    }
    if (!needs.empty()) return needs;
  }
  auto allocations = store.List();
  if (!allocations.ok()) return allocations.status();
  for (auto it = allocations->rbegin(); it != allocations->rend(); ++it) {
    if (it->device_ids == ids) return std::vector<StartRequirements>{{it->directory, current_library}};
  }
  return Refusal("directory", StrCat("no allocation in ", store.root(), " is for the ", ids.size(),
                                     " devices of this container, so it would run without limits; delete the pod, "
                                     "the next one gets a new allocation"));
}

absl::Status CheckStartRequirements(const StartRequirements& needs) {
  if (auto s = CheckHookLibrary(needs.lib_dir); !s.ok()) {
    return Refusal("library", StrCat(s.message(),
                                     "; restart the sluice device plugin on this node, which installs its own "
                                     "version, or delete the pod if it was given another"));
  }
  const std::string file = StrCat(needs.run_dir, "/", SLUICE_ALLOCATION_FILE);
  if (!IsFile(file)) {
    return Refusal("directory",
                   StrCat("the directory of this container's allocation is not complete: ", file,
                          " is missing; restart the sluice device plugin on this node, which makes it again "
                          "from kubelet's checkpoint, or delete the pod"));
  }
  return CheckSocket(needs.run_dir);
}

}  // namespace sluice::deviceplugin
