// The agent's configuration file: YAML. Unknown keys and wrong values are refused with a sentence that names the line.
#ifndef SLUICE_AGENT_CONFIG_H_
#define SLUICE_AGENT_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "agent/ledger.h"
#include "common/log/log.h"
#include "common/settings/settings.h"

namespace sluice::agent {

// One row of `clients`: settings that override those of the allocations that it names, also while they run.
struct ClientRule {
  std::string id;               // allocation id, or "<namespace>/<pod>/<container>"; "*" matches any run of characters
  settings::Settings settings;  // the settable ones of proto/settings.def
};

// For agent/kubernetes.
struct KubernetesConfig {
  bool enabled = false;
  std::string kubeconfig;  // empty: the pod's service account
  std::string kubelet_dir =
      "/var/lib/kubelet/device-plugins";  // of kubelet's checkpoint: containers and their allocations
  bool aliases = false;                   // as in the webhook: gpu-memory is also read without prefix
  bool operator==(const KubernetesConfig&) const = default;
};

struct Config {
  std::string node;                                 // for logs and metrics; default: the host's name
  std::string alloc_dir = "/var/lib/sluice/alloc";  // overridden by --alloc-dir
  std::string nvml = "libnvidia-ml.so.1";
  Bytes reserve = 0;            // of each GPU, beyond the driver's own reserve
  Bytes host_memory_bytes = 0;  // cap of the evicted bytes of all; 0: host_memory_percent of RAM
  uint32_t host_memory_percent = 50;
  Ledger::Policy ledger;
  uint32_t idle_after_s = 10;                              // without a launch for so long, a working set may be lent
  uint32_t reclaim_late_ms = 1000;                         // memory that is overdue for so long is reported
  uint32_t window_ms = 10000;                              // compute shares hold over any such time
  uint32_t quantum_min_us = 1000, quantum_max_us = 50000;  // shares are judged over a tenth of the window
  uint32_t lease_factor = 4;                               // wall time of a lease in quanta, plus 100 ms
  uint32_t pressure_window_ms = 30000;  // replaces window_ms while working sets exceed a GPU's memory
  uint32_t startup_s = 300;             // work of a container that does not count for its working set's peak
  bool link_metered = false;
  Bytes link_bytes_per_s = 0;                    // of managed memory, both directions together; 0: by the link's kind
  std::string metrics_listen;                    // "ADDR:PORT"; empty: none
  std::string metrics_authentication = "none";   // none: no ids; kubernetes: TLS, and the API server decides
  std::string metrics_certificate, metrics_key;  // files, PEM; empty: the agent makes a certificate
  bool driver_limits = true;                     // where the driver can limit a cgroup's unmanaged memory
  std::string cgroup_root = "/sys/fs/cgroup";    // of the host
  uint32_t attest_interval_s = 1;                // 0: never
  std::string on_not_hooked = "report";          // report, evict; also for pods on GPUs that they were not given
  std::vector<std::string> exempt_namespaces = {"kube-system"};  // their pods may use any GPU
  LogFormat log_format = LogFormat::kText;
  LogLevel log_level = LogLevel::kInfo;
  std::string pod_resources;  // kubelet's pod-resources socket; empty: not used
  KubernetesConfig kubernetes;
  uint32_t max_processes = 1024;    // of one allocation
  uint32_t max_connections = 3072;  // of all: each takes up to 32 KiB of the agent's memory, and its kernel memory
  std::vector<ClientRule> clients;
};

// Empty `path`: the defaults. On refusal returns false and fills `error` with "FILE:LINE: key: ...".
bool LoadConfig(const std::string& path, Config* config, std::string* error);
bool ParseConfig(const std::string& text, const std::string& name, Config* config, std::string* error);

// '*' in `pattern` stands for any run of characters.
bool Matches(const std::string& pattern, const std::string& text);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_CONFIG_H_
