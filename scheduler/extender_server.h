// The extender over HTTP, on an address that only the scheduler's pod can reach (127.0.0.1).
#ifndef SCHEDULER_EXTENDER_SERVER_H_
#define SCHEDULER_EXTENDER_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "scheduler/extender.h"

namespace sluice::scheduler {

// POST /filter, /prioritize, /bind; GET /healthz, /readyz (200 once the cluster is read), /metrics. Bodies up to 16
// MiB.
class ExtenderServer {
 public:
  // `port` 0: any free one. Error: the address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<ExtenderServer>> Start(const std::string& address, int port, Extender& extender,
                                                               const ClusterState& cluster);
  ~ExtenderServer();  // answers what is in flight
  int port() const;

 private:
  ExtenderServer();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::scheduler

#endif  // SCHEDULER_EXTENDER_SERVER_H_
