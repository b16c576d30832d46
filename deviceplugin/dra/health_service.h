// Kubelet's DRAResourceHealth service in the versions v1 and v1alpha1: streams the cards' health, which kubelet shows
// in the status of the pods that hold them (allocatedResourcesStatus).
#ifndef SLUICE_DEVICEPLUGIN_DRA_HEALTH_SERVICE_H_
#define SLUICE_DEVICEPLUGIN_DRA_HEALTH_SERVICE_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "deviceplugin/node_snapshot.h"

namespace sluice::deviceplugin::dra {

// Thread-safe. A stream holds a thread until the caller cancels it, or Stop.
class HealthService {
 public:
  static std::unique_ptr<HealthService> Make(std::shared_ptr<SnapshotPublisher> snapshots, std::string pool);
  virtual ~HealthService() = default;
  virtual grpc::Service* v1() = 0;
  virtual grpc::Service* v1alpha1() = 0;
  // Ends all streams soon.
  virtual void Stop() = 0;
};

}  // namespace sluice::deviceplugin::dra

#endif  // SLUICE_DEVICEPLUGIN_DRA_HEALTH_SERVICE_H_
