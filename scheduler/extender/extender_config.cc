#include "scheduler/extender/extender_config.h"

#include <yaml-cpp/yaml.h>

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/read_file.h"
#include "scheduler/placement/placement_policy.h"

namespace sluice::scheduler {
namespace {

absl::Status Check(const ExtenderConfig& config, const std::string& name) {
  const auto refuse = [&name](const char* key, const std::string& value, const char* example) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", key, " is \"", value, "\", accepted is ADDRESS:PORT, e.g. ", example));
  };
  if (!ParseEndpoint(config.listen)) return refuse("listen", config.listen, "127.0.0.1:8889");
  if (!config.metrics_listen.empty() && !ParseEndpoint(config.metrics_listen)) {
    return refuse("metricsListen", config.metrics_listen, "0.0.0.0:9404");
  }
  if (auto policy = MakePolicy(config.policy, {}, 100); !policy.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", policy.status().message()));
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<Endpoint> ParseEndpoint(const std::string& text) {
  const std::size_t colon = text.rfind(':');
  int port = -1;
  if (colon == std::string::npos || colon == 0 || !absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 0 ||
      port > 65535) {
    return std::nullopt;
  }
  return Endpoint{text.substr(0, colon), port};
}

absl::StatusOr<ExtenderConfig> ParseExtenderConfig(const std::string& yaml, const std::string& name) {
  ExtenderConfig config;
  const std::map<std::string, std::string*> fields = {{"listen", &config.listen},
                                                      {"metricsListen", &config.metrics_listen},
                                                      {"policy", &config.policy},
                                                      {"kubeconfig", &config.kubeconfig}};
  try {
    const YAML::Node root = YAML::Load(yaml);
    if (!root.IsNull() && !root.IsMap()) return absl::InvalidArgumentError(name + ": the file is no YAML mapping");
    for (const auto& entry : root) {
      const auto key = entry.first.as<std::string>();
      const auto field = fields.find(key);
      if (field == fields.end()) {
        std::vector<std::string> known;
        known.reserve(fields.size());
        for (const auto& [known_key, value] : fields) known.push_back(known_key);
        return absl::InvalidArgumentError(absl::StrCat(name, ":", entry.first.Mark().line + 1, ": unknown key \"", key,
                                                       "\"; known are ", absl::StrJoin(known, ", ")));
      }
      if (!entry.second.IsScalar()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", key, " is no text"));
      *field->second = entry.second.as<std::string>();
    }
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(name, ":", error.mark.line + 1, ": ", error.msg));
  }
  if (absl::Status status = Check(config, name); !status.ok()) return status;
  return config;
}

absl::StatusOr<ExtenderConfig> ReadExtenderConfig(const std::string& path) {
  std::string error;
  const auto text = ReadWholeFile(path, error);
  if (!text) return absl::NotFoundError(error);
  return ParseExtenderConfig(*text, path);
}

}  // namespace sluice::scheduler
