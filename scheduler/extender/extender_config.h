// The extender's configuration file.
#ifndef SLUICE_SCHEDULER_EXTENDER_EXTENDER_CONFIG_H_
#define SLUICE_SCHEDULER_EXTENDER_EXTENDER_CONFIG_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace sluice::scheduler {

// YAML; unknown keys are errors. `policy` is taken live, the others at the start.
struct ExtenderConfig {
  std::string listen = "127.0.0.1:8889";  // address:port
  std::string policy = "look-ahead";
  std::string metrics_listen;  // address:port for reading only; empty: `listen` serves that too, and nobody else does
  std::string kubeconfig;      // file; empty: the pod's service account
};

struct Endpoint {
  std::string address;
  int port = 0;  // 0: any free one
};
// Nothing: not of the form ADDRESS:PORT.
std::optional<Endpoint> ParseEndpoint(const std::string& text);

absl::StatusOr<ExtenderConfig> ParseExtenderConfig(const std::string& yaml, const std::string& name);
absl::StatusOr<ExtenderConfig> ReadExtenderConfig(const std::string& path);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_EXTENDER_CONFIG_H_
