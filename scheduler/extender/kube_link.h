// Connects the extender to a real API server: watches fill the ClusterState, KubeBinder writes Bindings.
#ifndef SLUICE_SCHEDULER_EXTENDER_KUBE_LINK_H_
#define SLUICE_SCHEDULER_EXTENDER_KUBE_LINK_H_

#include <memory>

#include "kube/client.h"
#include "scheduler/extender/claim_state.h"
#include "scheduler/extender/cluster_state.h"
#include "scheduler/extender/extender.h"

namespace sluice::scheduler {

class KubeBinder : public Binder {
 public:
  explicit KubeBinder(const kube::ClientConfig& config);
  absl::Status Bind(const PodFacts& pod, const std::string& node,
                    const std::map<std::string, std::string>& annotations) override;
  absl::StatusOr<PodFacts> Get(const std::string& name_space, const std::string& name) override;
  absl::StatusOr<ClaimFacts> GetClaim(const std::string& key) override;
  absl::Status Annotate(const PodFacts& pod, const std::string& annotation, const std::string& value) override;

 private:
  kube::Client client_, reader_;
};

// Fills `cluster` until it is destroyed, and `claims` if there are any to fill: then the API server must serve
// resource.k8s.io/v1.
class KubeFeed {
 public:
  KubeFeed(const kube::ClientConfig& config, ClusterState& cluster, ClaimState* claims = nullptr);
  ~KubeFeed();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_KUBE_LINK_H_
