// The gRPC services that kubelet calls, on two Unix sockets: its plugin registration, and DRA in the versions v1 and
// v1beta1 with the health of its devices (health_service.h).
#ifndef SLUICE_DEVICEPLUGIN_DRA_SERVICE_H_
#define SLUICE_DEVICEPLUGIN_DRA_SERVICE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "deviceplugin/dra/preparer.h"
#include "deviceplugin/metrics.h"

namespace sluice::deviceplugin::dra {

struct ServiceOptions {
  std::shared_ptr<Preparer> preparer;
  std::shared_ptr<SnapshotPublisher> snapshots;
  std::shared_ptr<Metrics> metrics;
  std::string pool;
  std::string plugin_socket;        // of the DRA service; kubelet is told this path
  std::string registration_socket;  // in kubelet's folder plugins_registry
};

class DriverServer {
 public:
  // Replaces existing socket files. The destructor lets calls in flight end and removes the sockets.
  static absl::StatusOr<std::unique_ptr<DriverServer>> Start(ServiceOptions options);
  virtual ~DriverServer() = default;
  // Kubelet accepted the registration, and has refused none since.
  virtual bool registered() const = 0;
};

}  // namespace sluice::deviceplugin::dra

#endif  // SLUICE_DEVICEPLUGIN_DRA_SERVICE_H_
