// The extender over HTTP, on an address that only the scheduler's pod can reach (127.0.0.1).
#ifndef SLUICE_SCHEDULER_EXTENDER_EXTENDER_SERVER_H_
#define SLUICE_SCHEDULER_EXTENDER_EXTENDER_SERVER_H_

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "scheduler/extender/extender.h"
#include "scheduler/extender/extender_config.h"

namespace sluice::scheduler {

// POST /filter, /prioritize, /bind; GET /healthz, /readyz (200 once the cluster is read), /metrics. Bodies up to 16
// MiB. A second address, which others may reach, answers GETs only.
class ExtenderServer {
 public:
  // Error: an address cannot be listened on.
  static absl::StatusOr<std::unique_ptr<ExtenderServer>> Start(const Endpoint& calls,
                                                               const std::optional<Endpoint>& reading,
                                                               Extender& extender, const ClusterState& cluster);
  ~ExtenderServer();  // answers what is in flight
  int port() const;
  int reading_port() const;  // 0: none

 private:
  ExtenderServer();
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_EXTENDER_SERVER_H_
