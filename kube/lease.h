// One of several replicas acts: the one that holds a Lease (coordination.k8s.io/v1), written by optimistic concurrency.
// No clock is compared with another machine's: a Lease that has not changed for its duration, by our own steady time,
// is free. Not thread-safe.
#ifndef SLUICE_KUBE_LEASE_H_
#define SLUICE_KUBE_LEASE_H_

#include <chrono>
#include <string>

#include "kube/client.h"

namespace sluice::kube {

struct LeaseOptions {
  std::string name_space;
  std::string name;      // made where it is missing, if we may
  std::string identity;  // this replica's: its pod's name, or whatever no other has
  std::chrono::seconds duration{15};
};

class Lease {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Lease(Client& client, LeaseOptions options);

  // One look, at least every third of `duration`: takes the Lease where it is free, renews it where it is ours.
  // `now` is taken before the call.
  absl::Status Tick(Time now);
  // Whether we may act. Ends before another replica can take the Lease, also when renewing fails.
  bool Held(Time now) const;
  // Gives it up, so that the next one need not wait.
  void Release();

 private:
  absl::Status Write(Json& lease, Time now);

  Client& client_;
  const LeaseOptions options_;
  std::string version_;  // resourceVersion at the last look
  Time changed_{};       // when that was first seen
  Time renewed_{};
  bool ours_ = false;
};

}  // namespace sluice::kube

#endif  // SLUICE_KUBE_LEASE_H_
