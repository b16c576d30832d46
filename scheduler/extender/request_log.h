// The mix of requests that a cluster has seen lately, and the policy that is made from it.
#ifndef SLUICE_SCHEDULER_EXTENDER_REQUEST_LOG_H_
#define SLUICE_SCHEDULER_EXTENDER_REQUEST_LOG_H_

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "scheduler/placement/placement_policy.h"

namespace sluice::scheduler {

// Not thread-safe. Old requests fade: each time some thousands are in, all are halved.
class RequestLog {
 public:
  RequestLog();
  void Add(const Request& request);
  RequestMix Mix() const;  // the most frequent shapes, weights summing to 1
  double seen() const { return seen_; }

 private:
  std::map<Request, double> counts_;
  double total_ = 0;
  double seen_ = 0;
};

// Makes the policy anew when the mix has grown by a quarter, in a thread of its own: learning takes some tens of
// milliseconds, and no scheduler should wait for them. Thread-safe.
class PolicyMaker {
 public:
  static absl::StatusOr<std::unique_ptr<PolicyMaker>> Make(const std::string& name);
  ~PolicyMaker();

  void Saw(const Request& request);
  std::shared_ptr<const Policy> policy() const;
  // Another policy from now on. Error: unknown.
  absl::Status SetName(const std::string& name);
  RequestMix mix() const;

 private:
  PolicyMaker() = default;
  void Run();

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::string name_;
  bool renamed_ = false;
  RequestLog log_;
  double made_at_ = 0;
  std::shared_ptr<const Policy> policy_;
  std::thread thread_;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_REQUEST_LOG_H_
