// Lets one of several replicas act: the one that holds a Lease (coordination.k8s.io/v1), taken by optimistic
// concurrency. Never compares clocks of different machines: a Lease is free when it has not changed for its duration,
// by our own steady clock. Not thread-safe.
#ifndef SLUICE_KUBE_LEASE_H_
#define SLUICE_KUBE_LEASE_H_

#include <chrono>
#include <string>

#include "kube/client.h"

namespace sluice::kube {

struct LeaseOptions {
  std::string name_space;
  std::string name;      // created if it is missing and we may create it
  std::string identity;  // unique per replica, such as the pod's name
  std::chrono::seconds duration{15};
};

class Lease {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Lease(Client& client, LeaseOptions options);

  // Takes the Lease if it is free, renews it if we hold it. Call at least every third of `duration`, with the time
  // before the call.
  absl::Status Tick(Time now);
  // Whether this replica may act. Turns false before another replica can take the Lease, also if renewing fails.
  bool Held(Time now) const;
  // Releases the Lease, so that the next replica need not wait.
  void Release();

 private:
  absl::Status Write(Json& lease, Time now);

  Client& client_;
  const LeaseOptions options_;
  std::string version_;  // resourceVersion at the last Tick
  Time changed_{};       // when that version was first seen
  Time renewed_{};
  bool held_ = false;
};

}  // namespace sluice::kube

#endif  // SLUICE_KUBE_LEASE_H_
