// Where the keeper posts what is true now, and where the service and its streams read it.
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

struct Snapshot {
  Inventory inventory;
  DriverAccess access = DriverAccess::kOwn;
  std::set<std::string> cdi_names;  // that the runtime can resolve now
  std::string lib_dir;              // library version for new allocations
  std::string lib_problem;          // why there is none; empty: it is there
  Config config;
  bool operator==(const Snapshot&) const = delete;
};

// Thread-safe. A snapshot, once posted, never changes.
class Board {
 public:
  using Clock = std::chrono::steady_clock;

  void Post(std::shared_ptr<const Snapshot> snapshot) {
    std::lock_guard lock(mutex_);
    snapshot_ = std::move(snapshot);
    ++generation_;
    changed_.notify_all();
  }

  std::shared_ptr<const Snapshot> Get() const {
    std::lock_guard lock(mutex_);
    return snapshot_;
  }

  // Waits until something newer than `*generation` was posted (true: `*generation` is brought up to date), the time is
  // over, or `stop` is set and Wake called.
  bool WaitNewer(uint64_t* generation, Clock::duration patience, const std::atomic<bool>& stop) const {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return stop || generation_ != *generation; });
    return std::exchange(*generation, generation_) != generation_;
  }

  void Wake() {
    std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::shared_ptr<const Snapshot> snapshot_;
  uint64_t generation_ = 0;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_NODE_SNAPSHOT_H_
