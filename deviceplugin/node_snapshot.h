// The node's state as the reconciler found it, and the object through which the gRPC service reads it.
#ifndef SLUICE_DEVICEPLUGIN_NODE_SNAPSHOT_H_
#define SLUICE_DEVICEPLUGIN_NODE_SNAPSHOT_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "common/mutex.h"
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
  std::chrono::system_clock::time_point read_at = std::chrono::system_clock::now();  // when the cards were read
  bool operator==(const NodeSnapshot&) const = delete;
};

// Hands the latest snapshot from the reconciler to its readers. A published snapshot never changes. Thread-safe.
class SnapshotPublisher {
 public:
  using Clock = std::chrono::steady_clock;

  void Publish(std::shared_ptr<const NodeSnapshot> snapshot) {
    MutexLock lock(mutex_);
    snapshot_ = std::move(snapshot);
    ++generation_;
    changed_.NotifyAll();
  }

  // nullptr before the first Publish.
  std::shared_ptr<const NodeSnapshot> Latest() const {
    MutexLock lock(mutex_);
    return snapshot_;
  }

  // Waits until a generation other than `*generation` is published, `timeout` is over, or `stop` is set and Wake
  // called. True: a newer one was published, and `*generation` is updated.
  bool WaitForNewer(uint64_t* generation, Clock::duration timeout, const std::atomic<bool>& stop) const {
    const auto end = Clock::now() + timeout;
    MutexLock lock(mutex_);
    while (!stop && generation_ == *generation && Clock::now() < end) changed_.WaitUntil(mutex_, end);
    return std::exchange(*generation, generation_) != generation_;
  }

  // Wakes the readers: data that they combine with the snapshot has changed.
  void Announce() {
    MutexLock lock(mutex_);
    ++generation_;
    changed_.NotifyAll();
  }

  void Wake() {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
  }

 private:
  mutable Mutex mutex_;
  mutable Condition changed_;
  std::shared_ptr<const NodeSnapshot> snapshot_ SLUICE_GUARDED_BY(mutex_);
  uint64_t generation_ SLUICE_GUARDED_BY(mutex_) = 0;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_NODE_SNAPSHOT_H_
