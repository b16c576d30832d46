// Settings of sluice-device-plugin: a YAML file. Unknown keys are errors, and every value is checked when it is read.
#ifndef SLUICE_DEVICEPLUGIN_CONFIG_H_
#define SLUICE_DEVICEPLUGIN_CONFIG_H_

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/log/log.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {

struct Config {
  // Applied at the start only.
  std::string alloc_dir = SLUICE_HOST_ALLOC_DIR;
  std::string lib_dir = SLUICE_HOST_LIB_DIR;
  std::string library_source;        // folder with shim and engine; empty: ../lib beside the program
  std::string pods_dir;              // kubelet's folder of pods; empty: ../pods beside the kubelet folder
  std::string pod_resources_socket;  // empty: ../pod-resources/kubelet.sock
  std::string nvml_library = "libnvidia-ml.so.1";
  std::string sys_root = "/sys";
  std::string metrics_address;  // "ADDR:PORT" or ":PORT"; empty: no HTTP
  std::string state_file = SLUICE_HOST_AGENT_RUN_DIR "/plugin.json";
  std::chrono::milliseconds nvml_timeout{5000};
  uint64_t reserve = 0;          // DRA: bytes of each card that no claim gets, beside the driver's own reserve
  bool slices_removed = false;   // DRA: the driver deletes the node's ResourceSlice when it ends
  bool extender = false;         // the scheduler extender places this cluster's pods: honour its reservations
  std::string reservation_file;  // empty: beside state_file

  // Applied while running.
  std::string driver_access = "auto";
  std::string driver_root = "/";
  std::string device_root = "/dev";
  std::string cdi_dir = "/var/run/cdi";
  std::vector<std::string> cdi_search_dirs = {"/etc/cdi", "/var/run/cdi"};
  std::set<std::string> exclude;
  std::string taint_effect = "NoSchedule";  // DRA: of an unhealthy card's taint
  std::string coexist = "deny";
  std::set<uint64_t> ignored_xids;  // in addition to the built-in ones
  std::chrono::seconds recover{30};
  std::chrono::milliseconds poll{10'000};
  std::chrono::milliseconds pre_start_wait{10'000};
  std::chrono::seconds collect_every{60};
  std::chrono::seconds collect_grace{300};
  LogFormat log_format = LogFormat::kText;
  LogLevel log_level = LogLevel::kInfo;
};

// INVALID_ARGUMENT names file, line, key, value and the accepted values. `name` is the file's.
absl::StatusOr<Config> ParseConfig(const std::string& yaml, const std::string& name);
// An empty path gives the defaults.
absl::StatusOr<Config> LoadConfig(const std::string& path);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_CONFIG_H_
