// The extender's configuration file.
#ifndef SCHEDULER_EXTENDER_CONFIG_H_
#define SCHEDULER_EXTENDER_CONFIG_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sluice::scheduler {

// YAML; unknown keys are errors. `policy` is taken live, the others at the start.
struct ExtenderConfig {
  std::string listen = "127.0.0.1:8889";  // address:port
  std::string policy = "look-ahead";
  std::string kubeconfig;  // file; empty: the pod's service account

  std::string Address() const { return listen.substr(0, listen.rfind(':')); }
  int Port() const { return std::stoi(listen.substr(listen.rfind(':') + 1)); }
};

absl::StatusOr<ExtenderConfig> ParseExtenderConfig(const std::string& yaml, const std::string& name);
absl::StatusOr<ExtenderConfig> ReadExtenderConfig(const std::string& path);

}  // namespace sluice::scheduler

#endif  // SCHEDULER_EXTENDER_CONFIG_H_
