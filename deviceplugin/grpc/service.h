// The gRPC service that kubelet calls, on a Unix socket. Holds no state but the snapshots, so a plugin that was killed
// at any point simply starts again.
#ifndef SLUICE_DEVICEPLUGIN_GRPC_SERVICE_H_
#define SLUICE_DEVICEPLUGIN_GRPC_SERVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "deviceplugin/decide/grown_shares.h"
#include "deviceplugin/decide/reservations.h"
#include "deviceplugin/decide/waiting_requests.h"
#include "deviceplugin/host/allocation_store.h"
#include "deviceplugin/metrics.h"
#include "deviceplugin/node_snapshot.h"

namespace sluice::deviceplugin {

struct ServiceOptions {
  std::shared_ptr<SnapshotPublisher> snapshots;
  std::shared_ptr<Metrics> metrics;
  AllocationStore store;
  std::shared_ptr<Reservations> reservations;  // nullptr: no extender is configured
  std::string kubelet_dir;                     // holds the checkpoint
  std::shared_ptr<GrownShares> grown;
  std::shared_ptr<WaitingRequests> waiting;
};

class PluginServer {
 public:
  // Serves on the socket, replacing an existing file. The destructor ends all streams and removes the socket.
  static absl::StatusOr<std::unique_ptr<PluginServer>> Start(const std::string& socket, ServiceOptions options);
  virtual ~PluginServer() = default;
  virtual int watchers() const = 0;  // open ListAndWatch streams
};

// Calls kubelet's Registration service for our endpoint and resource. Bounded to 5 s.
absl::Status RegisterWithKubelet(const std::string& kubelet_socket, const std::string& endpoint);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_GRPC_SERVICE_H_
