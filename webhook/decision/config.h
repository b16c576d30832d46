// The webhook's configuration as the decision sees it, and its YAML form.
#ifndef SLUICE_WEBHOOK_DECISION_CONFIG_H_
#define SLUICE_WEBHOOK_DECISION_CONFIG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/log/log.h"

namespace sluice::webhook {

enum class DriverAccess { kCdi, kNvidiaRuntime, kDirect };

// Reactions that an administrator chooses between.
enum class Reaction { kDeny, kWarn, kAllow };

// The defaults of the lists below.
std::vector<std::string> DefaultSidecars();
std::vector<std::string> DefaultHostPaths();
std::vector<std::string> DefaultSandboxedRuntimes();
std::vector<std::string> DefaultWorkloads();
std::vector<std::string> DefaultQueued();

// How a pod's share reaches its node: as units of the device plugin's resource, or as a ResourceClaim for the DRA
// driver.
enum class ShareBy { kUnits, kClaims };

// The settings behind a decision. All of them may change while the webhook runs.
struct Config {
  bool aliases = false;  // read gpu-fraction, gpu-memory, gpu-fraction-container-name (KAI, Run:ai)
  ShareBy share_by = ShareBy::kUnits;
  DriverAccess driver_access = DriverAccess::kCdi;
  std::string runtime_class = "nvidia";        // for pods without one, if driver_access is kNvidiaRuntime
  std::optional<uint64_t> assumed_gpu_memory;  // bytes of the smallest GPU while no node is known
  std::vector<std::string> excluded_namespaces = {"kube-system"};
  // Containers that other projects add to users' pods: NAME, or NAME@PART where the image must contain PART. They do
  // not count when a pod's only container is searched.
  std::vector<std::string> sidecars = DefaultSidecars();
  // Privileged containers, host folders and host namespaces of pods with a share: they reach past the share.
  Reaction privileged = Reaction::kDeny;
  // Host folders and sockets that give access to GPUs, to sluice or to the container runtime. Folders above them count
  // as well. A trailing * stands for any end of the name.
  std::vector<std::string> host_paths = DefaultHostPaths();
  // Sluice's folders on the nodes, as host_paths.
  std::vector<std::string> node_paths = {"/var/lib/sluice", "/run/sluice"};
  // NVIDIA_VISIBLE_DEVICES of pods without a share: NVIDIA's runtime gives them GPUs that others have shares of.
  Reaction visible_devices = Reaction::kWarn;
  // Claims of dynamic resource allocation in a container with a share. The webhook does not see their device class.
  Reaction resource_claims = Reaction::kDeny;
  // Runtime classes or handlers whose sandbox keeps the library out: a word of their names (between - . and _), with a
  // trailing * for any end of the word.
  std::vector<std::string> sandboxed_runtimes = DefaultSandboxedRuntimes();
  // Handlers of runtime classes, where they are known.
  std::map<std::string, std::string, std::less<>> runtime_handlers;
  // GROUP/RESOURCE of workloads of other projects whose pod templates the API server has checked.
  std::vector<std::string> workloads = DefaultWorkloads();
  // GROUP/RESOURCE of workloads whose pod templates get the units, because queues count templates.
  std::vector<std::string> queued = DefaultQueued();
  // Set on pods that request the resource and name no scheduler. Empty: the pods keep the default scheduler.
  std::string scheduler_name;
  // Names of users or groups that may change sluice's own annotations (the marker, the placement) on a pod.
  std::vector<std::string> trusted;
};

// Certificates that the webhook makes itself. The defaults of the lifetimes stand here alone.
struct SelfSigned {
  std::string secret_namespace;
  std::string secret_name;
  std::string service;                  // the certificate's name is <service>.<secret_namespace>.svc
  std::vector<std::string> mutating;    // MutatingWebhookConfigurations that get the caBundle
  std::vector<std::string> validating;  // ValidatingWebhookConfigurations that get the caBundle
  // Days that a new CA is valid, 2 to 3650. Its successor is made when a third of them is left.
  uint32_t ca_days = 730;
  // Days that a new server certificate is valid, 1 to 825 and at most ca_days. It is renewed when a third is left.
  uint32_t leaf_days = 90;
};

// Removal of pods that the device plugin refused: they stay as Failed after a ReplicaSet has replaced them. The replica
// that holds a Lease removes them.
struct RemoveRefused {
  std::string name_space;  // of the Lease
  std::string lease;
  uint32_t after_seconds = 30;  // time for users to read the reason
};

struct File {
  Config decision;
  std::optional<RemoveRefused> remove_refused;
  std::optional<SelfSigned> self_signed;  // absent: --cert and --key are needed
  bool watch_nodes = true;                // read nodes' GPU annotations, for gpu-memory
  LogFormat log_format = LogFormat::kText;
  LogLevel log_level = LogLevel::kInfo;
};

// nullopt: `error` says file, line, key, its value and the accepted ones. `name` is the file's.
std::optional<File> ParseConfig(const std::string& yaml, const std::string& name, std::string& error);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_CONFIG_H_
