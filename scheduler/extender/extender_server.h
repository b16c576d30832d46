// Serves the extender over HTTP, on an address that only the scheduler's pod can reach (127.0.0.1).
#ifndef SLUICE_SCHEDULER_EXTENDER_EXTENDER_SERVER_H_
#define SLUICE_SCHEDULER_EXTENDER_EXTENDER_SERVER_H_

#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "common/http/listen_address.h"
#include "scheduler/extender/extender.h"

namespace sluice::scheduler {

// POST /filter, /prioritize, /bind; GET /healthz, /readyz (200 once the cluster has been read), /metrics. Bodies up to
// 16 MiB. The second address may be reachable by others and answers GET only. The third one answers Volcano's scheduler
// alone: POST /predicate, /allocate, /deallocate, /session-close.
class ExtenderServer {
 public:
  // Error: it cannot listen on an address.
  static absl::StatusOr<std::unique_ptr<ExtenderServer>> Start(const ListenAddress& calls,
                                                               const std::optional<ListenAddress>& metrics,
                                                               Extender& extender, const ClusterState& cluster,
                                                               const std::optional<ListenAddress>& volcano = {});
  ~ExtenderServer();  // answers the calls in flight
  int port() const;
  int metrics_port() const;  // 0: no second address
  int volcano_port() const;  // 0: no third address

 private:
  class Impl;
  explicit ExtenderServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_EXTENDER_SERVER_H_
