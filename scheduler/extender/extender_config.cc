#include "scheduler/extender/extender_config.h"

#include <yaml-cpp/yaml.h>

#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/http/listen_address.h"
#include "common/read_file.h"
#include "scheduler/placement/placement_policy.h"

namespace sluice::scheduler {
namespace {

absl::Status Check(const ExtenderConfig& config, const std::string& name) {
  const auto refuse = [&name](const char* key, const std::string& value) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", key, " is \"", value, "\", accepted is ", kListenAddressForms));
  };
  if (!ParseListenAddress(config.listen)) return refuse("listen", config.listen);
  if (!config.metrics_listen.empty() && !ParseListenAddress(config.metrics_listen)) {
    return refuse("metricsListen", config.metrics_listen);
  }
  if (!config.volcano_listen.empty() && !ParseListenAddress(config.volcano_listen)) {
    return refuse("volcanoListen", config.volcano_listen);
  }
  if (auto policy = MakePolicy(config.policy, {}, 100); !policy.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", policy.status().message()));
  }
  return absl::OkStatus();
}

// log: {format: json, level: info}
absl::Status ReadLog(const YAML::Node& node, const std::string& name, ExtenderConfig& config) {
  const auto refuse = [&](const YAML::Node& at, const std::string& what, const char* accepted) {
    return absl::InvalidArgumentError(absl::StrCat(name, ":", at.Mark().line + 1, ": ", what, ", accepted ", accepted));
  };
  if (!node.IsMap()) return refuse(node, "log is no mapping", "are format, level");
  for (const auto& entry : node) {
    const auto key = entry.first.as<std::string>();
    const auto value = entry.second.IsScalar() ? entry.second.Scalar() : "";
    if (key == "format") {
      const auto format = ParseLogFormat(value);
      if (!format) return refuse(entry.second, "log.format is \"" + value + "\"", "are text, json");
      config.log_format = *format;
    } else if (key == "level") {
      const auto level = ParseLogLevel(value);
      if (!level) return refuse(entry.second, "log.level is \"" + value + "\"", "are error, warn, info, debug");
      config.log_level = *level;
    } else {
      return refuse(entry.first, "unknown key \"log." + key + "\"", "are format, level");
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ExtenderConfig> ParseExtenderConfig(const std::string& yaml, const std::string& name) {
  ExtenderConfig config;
  const std::map<std::string, std::string*> fields = {{"listen", &config.listen},
                                                      {"metricsListen", &config.metrics_listen},
                                                      {"volcanoListen", &config.volcano_listen},
                                                      {"policy", &config.policy},
                                                      {"kubeconfig", &config.kubeconfig}};
  try {
    const YAML::Node root = YAML::Load(yaml);
    if (!root.IsNull() && !root.IsMap()) return absl::InvalidArgumentError(name + ": the file is no YAML mapping");
    for (const auto& entry : root) {
      const auto key = entry.first.as<std::string>();
      const auto field = fields.find(key);
      if (key == "log") {
        if (absl::Status status = ReadLog(entry.second, name, config); !status.ok()) return status;
        continue;
      }
      if (key == "claims" || key == "otherPods") {
        if (!YAML::convert<bool>::decode(entry.second, key == "claims" ? config.claims : config.other_pods)) {
          return absl::InvalidArgumentError(absl::StrCat(name, ":", entry.second.Mark().line + 1, ": ", key, " is \"",
                                                         entry.second.IsScalar() ? entry.second.Scalar() : "",
                                                         "\", accepted are true, false"));
        }
        continue;
      }
      if (field == fields.end()) {
        std::vector<std::string> known = {"claims", "log", "otherPods"};
        known.reserve(fields.size() + known.size());
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
