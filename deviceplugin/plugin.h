// The plugin's main loop: serve, register, follow kubelet's restarts and configuration changes, end on a signal.
#ifndef SLUICE_DEVICEPLUGIN_PLUGIN_H_
#define SLUICE_DEVICEPLUGIN_PLUGIN_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "deviceplugin/config.h"
#include "deviceplugin/nvml/nvml_api.h"

namespace sluice::deviceplugin {

inline constexpr char kPluginSocketName[] = "sluice.sock";
inline constexpr char kKubeletSocketName[] = "kubelet.sock";

struct PluginOptions {
  Config config;
  std::string config_path;  // watched for changes; empty: no file
  std::string kubelet_dir;
  std::shared_ptr<NvmlApi> nvml;
  int stop_fd = -1;  // readable: end (a signalfd or eventfd)
};

// Runs until stop_fd is readable. Error: it could not start, because another instance holds the folder or the metrics
// address is taken. Sets `*stuck` if NVML calls hang: the process must then exit without waiting for its threads.
absl::Status RunPlugin(PluginOptions options, bool* stuck);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_PLUGIN_H_
