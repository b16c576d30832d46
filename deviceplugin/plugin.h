// The plugin's life: serve, register, follow kubelet's restarts and the configuration, end on a signal.
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
  std::string config_path;  // watched for changes; empty: none
  std::string kubelet_dir;
  std::shared_ptr<NvmlApi> nvml;
  int stop_fd = -1;  // readable: end (a signalfd, an eventfd)
};

// Runs until stop_fd is readable. An error means that it could not start: another instance holds the folder, or the
// metrics address is taken. `*stuck` is set when NVML calls hang: the process must then end without waiting for its
// threads.
absl::Status RunPlugin(PluginOptions options, bool* stuck);

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_PLUGIN_H_
