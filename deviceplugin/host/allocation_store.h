// The directories of allocations: <alloc>/<id>/allocation.json, mounted into the container; the agent puts its socket
// there.
//
// Nothing here is synced. What must outlive a power cut is what kubelet's checkpoint names, and that file, which
// kubelet syncs before it starts the container, holds all that a directory says: Restore makes it anew from there. A
// sync of our own would cost every pod the disk's commit (12 ms where this was measured) and guarantee nothing more.
#ifndef SLUICE_DEVICEPLUGIN_HOST_ALLOCATION_STORE_H_
#define SLUICE_DEVICEPLUGIN_HOST_ALLOCATION_STORE_H_

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
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
  explicit AllocationStore(std::string root) : root_(std::move(root)) {}

  absl::Status Prepare() const;

  // A fresh directory, never named by its units (the same units come again). On failure nothing is left.
  absl::StatusOr<Allocation> Create(const Grant& grant) const;

  // Makes what the checkpoint names and the disk has lost or holds in part: a directory of ours, for these devices.
  // True: something was missing.
  absl::StatusOr<bool> Restore(const std::string& directory, std::span<const std::string> device_ids) const;

  // allocation.json goes first: from then on the agent serves the directory no more.
  absl::Status Remove(std::string_view id) const;

  // Directories that this plugin made (others in the folder, such as those of `sluice run`, are not ours), oldest
  // first.
  absl::StatusOr<std::vector<Allocation>> List() const;

  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_HOST_ALLOCATION_STORE_H_
