// The directories of allocations: <alloc>/<id>/allocation.json, mounted into the container; the agent makes its socket
// there.
//
// Nothing here is synced. Kubelet syncs its checkpoint before it starts the container, and the checkpoint holds the
// directory's content, so Restore can make the directory again after a power cut. A sync of our own would cost every
// pod a disk commit (12 ms where it was measured) and add no guarantee.
#ifndef SLUICE_DEVICEPLUGIN_HOST_ALLOCATION_STORE_H_
#define SLUICE_DEVICEPLUGIN_HOST_ALLOCATION_STORE_H_

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/selinux/container_label.h"
#include "deviceplugin/decide/grant.h"

namespace sluice::deviceplugin {

struct Allocation {
  std::string id;
  std::string directory;
  std::vector<std::string> device_ids;  // sorted; empty: unreadable
  std::chrono::system_clock::time_point modified;
};

// Thread-safe: every call works on the file system alone.
class AllocationStore {
 public:
  // `label`: what SELinux lets containers use; each directory gets it, with its file and the agent's socket.
  explicit AllocationStore(std::string root, std::string label = ContainerLabel())
      : root_(std::move(root)), label_(std::move(label)) {}

  absl::Status Prepare() const;

  // Makes a fresh directory. It is not named by its units, because the same units are given out again later. Leaves
  // nothing behind on failure.
  absl::StatusOr<Allocation> Create(const Grant& grant) const;

  // Makes a directory of ours again that the checkpoint names for these devices, if it is missing or incomplete, and
  // labels one that was made without SELinux or by an older plugin. True: it was missing or incomplete.
  absl::StatusOr<bool> Restore(const std::string& directory, std::span<const std::string> device_ids) const;

  // Removes allocation.json first: from then on the agent no longer serves the directory.
  absl::Status Remove(std::string_view id) const;

  // The directories that this plugin made, oldest first. (Others in the folder, such as those of `sluice run`, are not
  // ours.)
  absl::StatusOr<std::vector<Allocation>> List() const;

  const std::string& root() const { return root_; }

 private:
  absl::Status Label(const std::string& directory) const;

  std::string root_, label_;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_HOST_ALLOCATION_STORE_H_
