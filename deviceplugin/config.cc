#include "deviceplugin/config.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "common/config/reader.h"
#include "deviceplugin/decide/device_id.h"

namespace sluice::deviceplugin {
namespace {

config::Table Keys(Config* c) {
  return {
      {"allocDir", config::Path(&c->alloc_dir)},
      {"libDir", config::Path(&c->lib_dir)},
      {"librarySource", config::Path(&c->library_source)},
      {"podsDir", config::Path(&c->pods_dir)},
      {"podResourcesSocket", config::Path(&c->pod_resources_socket)},
      {"nvmlLibrary", config::Name(&c->nvml_library)},
      {"sysRoot", config::Path(&c->sys_root)},
      {"metricsAddress", config::AddressOrNone(&c->metrics_address)},
      {"stateFile", config::Path(&c->state_file)},
      {"nvmlTimeoutMs", config::Number(&c->nvml_timeout, 10, 60'000, "milliseconds")},
      {"reserve", config::QuantityOrZero(&c->reserve)},
      {"slicesAtExit", config::OneOf(&c->slices_removed, {{"keep", false}, {"delete", true}})},
      {"extender", config::Bool(&c->extender)},
      {"reservationFile", config::Path(&c->reservation_file)},
      {"driverAccess", config::Word(&c->driver_access, {"auto", "nvidia-cdi", "nvidia-runtime", "own"})},
      {"driverRoot", config::Path(&c->driver_root)},
      {"deviceRoot", config::Path(&c->device_root)},
      {"cdiDir", config::Path(&c->cdi_dir)},
      {"cdiSearchDirs", config::List(&c->cdi_search_dirs, "a list of absolute paths",
                                     [](const std::string& path) { return path.starts_with('/'); })},
      {"exclude",
       config::Each("a list of GPU uuids",
                    [c](const std::string& uuid) { return IsCardUuid(uuid) && c->exclude.insert(uuid).second; })},
      {"taintEffect", config::Word(&c->taint_effect, {"NoSchedule", "NoExecute"})},
      {"coexist", config::Word(&c->coexist, {"deny", "allow"})},
      {"ignoredXids", config::Each("a list of XID numbers",
                                   [c](const std::string& text) {
                                     uint64_t xid = 0;
                                     return absl::SimpleAtoi(text, &xid) && c->ignored_xids.insert(xid).second;
                                   })},
      {"recoverSeconds", config::Number(&c->recover, 0, 86'400, "seconds")},
      {"pollMs", config::Number(&c->poll, 50, 3'600'000, "milliseconds")},
      {"preStartWaitMs", config::Number(&c->pre_start_wait, 0, 25'000, "milliseconds (kubelet waits 30 s)")},
      {"collectSeconds", config::Number(&c->collect_every, 1, 86'400, "seconds")},
      {"collectGraceSeconds", config::Number(&c->collect_grace, 0, 86'400, "seconds")},
      {"logFormat", config::Format(&c->log_format)},
      {"logLevel", config::Level(&c->log_level)},
  };
}

}  // namespace

absl::StatusOr<Config> ParseConfig(const std::string& yaml, const std::string& name) {
  Config config;
  std::string error;
  if (!config::Parse(yaml, name, config::Section(Keys(&config)), &error)) return absl::InvalidArgumentError(error);
  return config;
}

absl::StatusOr<Config> LoadConfig(const std::string& path) {
  Config config;
  std::string error;
  if (!path.empty() && !config::Load(path, config::Section(Keys(&config)), &error)) {
    return absl::InvalidArgumentError(error);
  }
  return config;
}

}  // namespace sluice::deviceplugin
