// The mix of recent requests in a cluster, and the policy that is made from it.
#ifndef SLUICE_SCHEDULER_EXTENDER_REQUEST_LOG_H_
#define SLUICE_SCHEDULER_EXTENDER_REQUEST_LOG_H_

#include <map>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "scheduler/placement/placement_policy.h"

namespace sluice::scheduler {

// Counts requests by shape. Old requests fade: when the counts reach some thousands, all are halved. Not thread-safe.
class RequestLog {
 public:
  RequestLog();
  void Add(const Request& request);
  RequestMix Mix() const;  // the most frequent shapes; weights sum to 1
  double seen() const { return seen_; }

 private:
  std::map<Request, double> counts_;
  double total_ = 0;
  double seen_ = 0;
};

// Rebuilds the policy when the mix has grown by a quarter. It uses a thread of its own, because learning takes some
// tens of milliseconds, for which no scheduling call should wait. Thread-safe.
class PolicyRefresher {
 public:
  static absl::StatusOr<std::unique_ptr<PolicyRefresher>> Make(const std::string& name);
  ~PolicyRefresher();

  void RecordRequest(const Request& request);
  std::shared_ptr<const PlacementPolicy> policy() const;
  // Switches to another policy. Error: unknown name.
  absl::Status SetName(const std::string& name);
  RequestMix mix() const;

 private:
  PolicyRefresher() = default;
  void Run();
  bool RefreshIsDue() const SLUICE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  Condition wake_;
  bool stop_ SLUICE_GUARDED_BY(mutex_) = false;
  std::string name_ SLUICE_GUARDED_BY(mutex_);
  bool renamed_ SLUICE_GUARDED_BY(mutex_) = false;
  RequestLog log_ SLUICE_GUARDED_BY(mutex_);
  double seen_at_refresh_ SLUICE_GUARDED_BY(mutex_) = 0;
  std::shared_ptr<const PlacementPolicy> policy_ SLUICE_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_REQUEST_LOG_H_
