#include "deviceplugin/config.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <functional>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "common/http/listen_address.h"
#include "common/settings/settings.h"
#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {
namespace {

using Setter = std::function<absl::Status(const YAML::Node&, Config*)>;

absl::Status Bad(std::string_view value, std::string_view accepted) {
  return absl::InvalidArgumentError(StrCat("'", value, "' is not accepted; accepted: ", accepted));
}

std::string Text(const YAML::Node& node) { return node.IsScalar() ? node.Scalar() : YAML::Dump(node); }

Setter Path(std::string Config::* field) {
  return [field](const YAML::Node& node, Config* config) -> absl::Status {
    if (!node.IsScalar() || !node.Scalar().starts_with("/")) return Bad(Text(node), "an absolute path");
    config->*field = node.Scalar();
    return absl::OkStatus();
  };
}

Setter OneOf(std::string Config::* field, std::vector<std::string> choices) {
  return [field, choices = std::move(choices)](const YAML::Node& node, Config* config) -> absl::Status {
    if (!node.IsScalar() || std::find(choices.begin(), choices.end(), node.Scalar()) == choices.end()) {
      return Bad(Text(node), StrJoin(choices, ", "));
    }
    config->*field = node.Scalar();
    return absl::OkStatus();
  };
}

template <class D>
Setter Number(D Config::* field, int64_t low, int64_t high, std::string_view unit) {
  return [=](const YAML::Node& node, Config* config) -> absl::Status {
    int64_t value = 0;
    if (!node.IsScalar() || !absl::SimpleAtoi(node.Scalar(), &value) || value < low || value > high) {
      return Bad(Text(node), StrCat("a whole number of ", unit, ", ", low, " to ", high));
    }
    config->*field = D(value);
    return absl::OkStatus();
  };
}

absl::Status Each(const YAML::Node& node, std::string_view accepted,
                  const std::function<bool(const std::string&)>& take) {
  if (!node.IsSequence()) return Bad(Text(node), accepted);
  for (const auto& entry : node) {
    if (!entry.IsScalar() || !take(entry.Scalar())) return Bad(Text(entry), accepted);
  }
  return absl::OkStatus();
}

absl::Status SetExclude(const YAML::Node& node, Config* config) {
  config->exclude.clear();
  return Each(node, "a list of GPU uuids",
              [&](const std::string& uuid) { return IsCardUuid(uuid) && config->exclude.insert(uuid).second; });
}

absl::Status SetXids(const YAML::Node& node, Config* config) {
  config->ignored_xids.clear();
  return Each(node, "a list of XID numbers", [&](const std::string& text) {
    uint64_t xid = 0;
    return absl::SimpleAtoi(text, &xid) && config->ignored_xids.insert(xid).second;
  });
}

absl::Status SetCdiDirs(const YAML::Node& node, Config* config) {
  config->cdi_search_dirs.clear();
  return Each(node, "a list of absolute paths", [&](const std::string& path) {
    config->cdi_search_dirs.push_back(path);
    return path.starts_with("/");
  });
}

absl::Status SetLibrary(const YAML::Node& node, Config* config) {
  if (!node.IsScalar() || node.Scalar().empty()) return Bad(Text(node), "a path or file name of NVML");
  config->nvml_library = node.Scalar();
  return absl::OkStatus();
}

Setter YesNo(bool Config::* field) {
  return [field](const YAML::Node& node, Config* config) -> absl::Status {
    if (!YAML::convert<bool>::decode(node, config->*field)) return Bad(Text(node), "true, false");
    return absl::OkStatus();
  };
}

absl::Status SetReserve(const YAML::Node& node, Config* config) {
  const std::string text = Text(node);
  const auto bytes = text == "0" ? std::optional<uint64_t>(0) : settings::ParseQuantity(text);
  if (!bytes) return Bad(text, "a Kubernetes quantity, such as 512Mi, or 0");
  config->reserve = *bytes;
  return absl::OkStatus();
}

absl::Status SetSlicesAtExit(const YAML::Node& node, Config* config) {
  const std::string text = Text(node);
  if (text != "keep" && text != "delete") return Bad(text, "keep, delete");
  config->slices_removed = text == "delete";
  return absl::OkStatus();
}

absl::Status SetMetricsAddress(const YAML::Node& node, Config* config) {
  const std::string text = Text(node);
  if (!text.empty() && !ParseListenAddress(text)) {
    return Bad(text, StrCat(kListenAddressForms, ", or an empty text to serve none"));
  }
  config->metrics_address = text;
  return absl::OkStatus();
}

absl::Status SetLogFormat(const YAML::Node& node, Config* config) {
  const auto format = ParseLogFormat(Text(node));
  if (!format) return Bad(Text(node), "text, json");
  config->log_format = *format;
  return absl::OkStatus();
}

absl::Status SetLogLevel(const YAML::Node& node, Config* config) {
  const auto level = ParseLogLevel(Text(node));
  if (!level) return Bad(Text(node), "ERROR, WARN, INFO, DEBUG");
  config->log_level = *level;
  return absl::OkStatus();
}

const std::map<std::string, Setter>& Setters() {
  static const auto* setters = new std::map<std::string, Setter>{
      {"allocDir", Path(&Config::alloc_dir)},
      {"libDir", Path(&Config::lib_dir)},
      {"librarySource", Path(&Config::library_source)},
      {"podsDir", Path(&Config::pods_dir)},
      {"podResourcesSocket", Path(&Config::pod_resources_socket)},
      {"nvmlLibrary", SetLibrary},
      {"sysRoot", Path(&Config::sys_root)},
      {"metricsAddress", SetMetricsAddress},
      {"stateFile", Path(&Config::state_file)},
      {"nvmlTimeoutMs", Number(&Config::nvml_timeout, 10, 60'000, "milliseconds")},
      {"reserve", SetReserve},
      {"slicesAtExit", SetSlicesAtExit},
      {"extender", YesNo(&Config::extender)},
      {"reservationFile", Path(&Config::reservation_file)},
      {"driverAccess", OneOf(&Config::driver_access, {"auto", "nvidia-cdi", "nvidia-runtime", "own"})},
      {"driverRoot", Path(&Config::driver_root)},
      {"deviceRoot", Path(&Config::device_root)},
      {"cdiDir", Path(&Config::cdi_dir)},
      {"cdiSearchDirs", SetCdiDirs},
      {"exclude", SetExclude},
      {"taintEffect", OneOf(&Config::taint_effect, {"NoSchedule", "NoExecute"})},
      {"coexist", OneOf(&Config::coexist, {"deny", "allow"})},
      {"ignoredXids", SetXids},
      {"recoverSeconds", Number(&Config::recover, 0, 86'400, "seconds")},
      {"pollMs", Number(&Config::poll, 50, 3'600'000, "milliseconds")},
      {"preStartWaitMs", Number(&Config::pre_start_wait, 0, 25'000, "milliseconds (kubelet waits 30 s)")},
      {"collectSeconds", Number(&Config::collect_every, 1, 86'400, "seconds")},
      {"collectGraceSeconds", Number(&Config::collect_grace, 0, 86'400, "seconds")},
      {"logFormat", SetLogFormat},
      {"logLevel", SetLogLevel},
  };
  return *setters;
}

}  // namespace

absl::StatusOr<Config> ParseConfig(std::string_view yaml) {
  Config config;
  try {
    const YAML::Node root = YAML::Load(std::string(yaml));
    if (root.IsNull()) return config;
    if (!root.IsMap()) return absl::InvalidArgumentError("the configuration is not a mapping of keys to values");
    std::set<std::string> seen;
    for (const auto& pair : root) {
      const std::string key = Text(pair.first);
      const auto setter = Setters().find(key);
      if (setter == Setters().end()) {
        std::vector<std::string> known;
        for (const auto& [name, unused] : Setters()) known.push_back(name);
        return absl::InvalidArgumentError(StrCat("'", key, "' is not a setting; accepted: ", StrJoin(known, ", ")));
      }
      if (!seen.insert(key).second) return absl::InvalidArgumentError(StrCat("'", key, "' is set twice"));
      if (absl::Status s = setter->second(pair.second, &config); !s.ok()) {
        return absl::InvalidArgumentError(StrCat(key, ": ", s.message()));
      }
    }
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(StrCat("not readable as YAML: ", e.what()));
  }
  return config;
}

absl::StatusOr<Config> LoadConfig(const std::string& path) {
  if (path.empty()) return Config();
  auto text = ReadFile(path, 1 << 20);
  if (!text.ok()) return text.status();
  auto config = ParseConfig(*text);
  if (!config.ok()) return absl::InvalidArgumentError(StrCat(path, ": ", config.status().message()));
  return config;
}

}  // namespace sluice::deviceplugin
