// The node's state as the reconciler found it, and the object through which the gRPC service reads it.
#ifndef SLUICE_DEVICEPLUGIN_NODE_SNAPSHOT_H_
#define SLUICE_DEVICEPLUGIN_NODE_SNAPSHOT_H_

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "deviceplugin/config.h"
#include "deviceplugin/decide/cards.h"
#include "deviceplugin/decide/response.h"

namespace sluice::deviceplugin {

struct NodeSnapshot {
  Inventory inventory;
  DriverAccess access = DriverAccess::kOwn;
  std::set<std::string> cdi_names;  // names that the container runtime can resolve now
  std::string lib_dir;              // hook library version for new allocations
  std::string lib_problem;          // why lib_dir is not usable; empty: it is
  Config config;
  bool operator==(const NodeSnapshot&) const = delete;
};

// Hands the latest snapshot from the reconciler to its readers. A published snapshot never changes. Thread-safe.
class SnapshotPublisher {
 public:
  using Clock = std::chrono::steady_clock;

  void Publish(std::shared_ptr<const NodeSnapshot> snapshot) {
    std::lock_guard lock(mutex_);
    snapshot_ = std::move(snapshot);
    ++generation_;
    changed_.notify_all();
  }

  // nullptr before the first Publish.
  std::shared_ptr<const NodeSnapshot> Latest() const {
    std::lock_guard lock(mutex_);
    return snapshot_;
  }

  // Waits until a generation other than `*generation` is published, `timeout` is over, or `stop` is set and Wake
  // called. True: a newer one was published, and `*generation` is updated.
  bool WaitForNewer(uint64_t* generation, Clock::duration timeout, const std::atomic<bool>& stop) const {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, timeout, [&] { return stop || generation_ != *generation; });
    return std::exchange(*generation, generation_) != generation_;
  }

  void Wake() {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::shared_ptr<const NodeSnapshot> snapshot_;
  uint64_t generation_ = 0;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_NODE_SNAPSHOT_H_
