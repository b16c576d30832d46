// Reads the cluster for the commands of kubectl-sluice: lists object by object, and pages of many pods at once.
#ifndef SLUICE_CLI_CLUSTER_READER_H_
#define SLUICE_CLI_CLUSTER_READER_H_

#include <absl/status/statusor.h>

#include <memory>
#include <string>
#include <vector>

#include "cli/kubectl.h"
#include "cli/kubectl_proxy.h"
#include "kube/client.h"

namespace sluice::cli {

struct ClusterList {
  std::string path;                  // of the API
  std::vector<std::string> kubectl;  // the same as arguments of `kubectl get`
  std::string selector = {};         // of labels; empty: all objects
};
ClusterList PodList(std::string selector = "");
ClusterList NodeList();
ClusterList WebhookList();
ClusterList SliceList();  // ResourceSlices
ClusterList ClaimList();  // ResourceClaims

// All reads go through one `kubectl proxy`. Where that does not start, each is a kubectl process.
class ClusterReader {
 public:
  explicit ClusterReader(const Kubectl& kubectl) : kubectl_(kubectl) {}

  const Kubectl& kubectl() const { return kubectl_; }
  // Starts the proxy, if it does not run. Call it once before reads that begin at the same time.
  void Open();
  // The error is kubectl's own sentence. Different threads may read at once.
  absl::Status Read(const ClusterList& list, const kube::ListSink& sink) const;
  // The texts at paths of the API, in their order, many at a time. A path that cannot be read has the reason.
  std::vector<absl::StatusOr<std::string>> ReadTexts(const std::vector<std::string>& paths) const;

 private:
  const Kubectl& kubectl_;
  bool is_open_ = false;
  std::unique_ptr<KubectlProxy> proxy_;
};

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_READER_H_
