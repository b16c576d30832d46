// The DRA driver's main loop: hold the node, serve kubelet, publish the node's cards, follow the configuration, end on
// a signal.
#ifndef SLUICE_DEVICEPLUGIN_DRA_DRIVER_H_
#define SLUICE_DEVICEPLUGIN_DRA_DRIVER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "deviceplugin/config.h"
#include "deviceplugin/nvml/nvml_api.h"
#include "kube/config.h"

namespace sluice::deviceplugin::dra {

struct DriverOptions {
  Config config;
  std::string config_path;   // watched for changes; empty: no file
  std::string kubelet_dir;   // device-plugins: its lock keeps the device plugin away; its checkpoint is read
  std::string plugins_dir;   // kubelet's folder for sockets of plugins
  std::string registry_dir;  // kubelet's folder in which it looks for plugins
  std::string node;
  kube::ClientConfig api;
  std::shared_ptr<NvmlApi> nvml;
  int stop_fd = -1;  // readable: end (a signalfd or eventfd)
};

// Runs until stop_fd is readable. Error: it could not start. Sets `*stuck` if NVML calls hang: the process must then
// exit without waiting for their threads.
absl::Status RunDriver(DriverOptions options, bool* stuck);

}  // namespace sluice::deviceplugin::dra

#endif  // SLUICE_DEVICEPLUGIN_DRA_DRIVER_H_
