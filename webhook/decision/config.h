// The webhook's configuration as the decision sees it, and its YAML form.
#ifndef SLUICE_WEBHOOK_DECISION_CONFIG_H_
#define SLUICE_WEBHOOK_DECISION_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::webhook {

enum class DriverAccess { kCdi, kNvidiaRuntime, kDirect };

// What decides about a pod. Everything here may change while the webhook runs.
struct Config {
  bool aliases = false;  // read gpu-fraction, gpu-memory, gpu-fraction-container-name (KAI, Run:ai)
  DriverAccess driver_access = DriverAccess::kCdi;
  std::string runtime_class = "nvidia";        // set where driver_access is kNvidiaRuntime and the pod has none
  std::optional<uint64_t> assumed_gpu_memory;  // bytes of the smallest GPU where no node is known yet
  std::vector<std::string> excluded_namespaces = {"kube-system"};
  // Containers that other webhooks add: they never make a pod's only container ambiguous.
  std::vector<std::string> sidecars = {"istio-proxy",     "linkerd-proxy",       "envoy",        "vault-agent", "daprd",
                                       "cloud-sql-proxy", "gke-gcsfuse-sidecar", "otc-container"};
  // Pods that ask for the resource and name no scheduler of their own go to this one; empty: to nobody else's.
  std::string scheduler_name;
  // Who may change sluice's own annotations (the marker, the placement) on a pod: user names or groups.
  std::vector<std::string> trusted;
};

// Certificates that the webhook makes itself.
struct SelfSigned {
  std::string secret_namespace;
  std::string secret_name;
  std::string service;                // <service>.<secret_namespace>.svc is the certificate's name
  std::vector<std::string> mutating;  // MutatingWebhookConfigurations whose caBundle is kept
  std::vector<std::string> validating;
  uint32_t ca_days = 730;
  uint32_t leaf_days = 90;
};

// Pods that the device plugin refused stay as Failed; a ReplicaSet has made others in their place. One replica, the
// holder of a Lease, removes them.
struct RemoveRefused {
  std::string name_space;  // of the Lease
  std::string lease;
  uint32_t after_seconds = 30;  // so that people can still read the reason
};

struct File {
  Config decision;
  std::optional<RemoveRefused> remove_refused;
  std::optional<SelfSigned> self_signed;  // absent: --cert and --key
  bool watch_nodes = true;                // nodes' GPU annotations, for gpu-memory
};

// YAML to File; `error` says what, where and what is accepted. Unknown keys are errors.
std::optional<File> ParseConfig(std::string_view yaml, std::string& error);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_CONFIG_H_
