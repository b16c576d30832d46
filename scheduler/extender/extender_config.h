// The extender's configuration file.
#ifndef SLUICE_SCHEDULER_EXTENDER_EXTENDER_CONFIG_H_
#define SLUICE_SCHEDULER_EXTENDER_EXTENDER_CONFIG_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/log/log.h"

namespace sluice::scheduler {

// YAML; unknown keys are errors. A change of `policy` or `log` takes effect while running, the others at the next
// start.
struct ExtenderConfig {
  std::string listen = "127.0.0.1:8889";  // address:port
  std::string policy = "look-ahead";
  std::string metrics_listen;  // address:port for GET only, reachable by others; empty: only `listen` serves GET
  std::string volcano_listen;  // address:port for the calls of Volcano's scheduler; empty: they are not served
  bool claims = false;         // score nodes for pods with ResourceClaims, too; needs resource.k8s.io/v1
  bool other_pods = false;     // score nodes for pods without GPUs, so that these leave CPU and memory to free GPUs
  std::string kubeconfig;      // path; empty: the pod's service account
  LogFormat log_format = LogFormat::kText;
  LogLevel log_level = LogLevel::kInfo;
};

absl::StatusOr<ExtenderConfig> ParseExtenderConfig(const std::string& yaml, const std::string& name);
absl::StatusOr<ExtenderConfig> ReadExtenderConfig(const std::string& path);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_EXTENDER_CONFIG_H_
