#include "scheduler/extender/extender_config.h"

#include "absl/status/status.h"
#include "common/config/reader.h"
#include "scheduler/placement/placement_policy.h"

namespace sluice::scheduler {
namespace {

config::Table Keys(ExtenderConfig* c) {
  return {
      {"listen", config::Address(&c->listen)},
      {"metricsListen", config::AddressOrNone(&c->metrics_listen)},
      {"volcanoListen", config::AddressOrNone(&c->volcano_listen)},
      {"policy", config::Word(&c->policy, PolicyNames())},
      {"claims", config::Bool(&c->claims)},
      {"otherPods", config::Bool(&c->other_pods)},
      {"kubeconfig", config::Text(&c->kubeconfig)},
      {"log", config::Section({{"format", config::Format(&c->log_format)}, {"level", config::Level(&c->log_level)}})}};
}

}  // namespace

absl::StatusOr<ExtenderConfig> ParseExtenderConfig(const std::string& yaml, const std::string& name) {
  ExtenderConfig config;
  std::string error;
  if (!config::Parse(yaml, name, config::Section(Keys(&config)), &error)) return absl::InvalidArgumentError(error);
  return config;
}

absl::StatusOr<ExtenderConfig> ReadExtenderConfig(const std::string& path) {
  ExtenderConfig config;
  std::string error;
  if (!config::Load(path, config::Section(Keys(&config)), &error)) return absl::InvalidArgumentError(error);
  return config;
}

}  // namespace sluice::scheduler
