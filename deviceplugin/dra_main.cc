// sluice-dra-driver: its flags and signals. dra/driver.cc does the work.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <string>

#include "common/command_line.h"
#include "deviceplugin/dra/driver.h"
#include "deviceplugin/program.h"
#include "sluice/version.h"

namespace {

constexpr char kName[] = "sluice-dra-driver";

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Offers shares of this node's GPUs to Dynamic Resource Allocation as the driver sluice.dev."};
  std::string config_path, kubeconfig;
  sluice::deviceplugin::dra::DriverOptions options;
  options.kubelet_dir = "/var/lib/kubelet/device-plugins";
  options.plugins_dir = "/var/lib/kubelet/plugins";
  options.registry_dir = "/var/lib/kubelet/plugins_registry";
  if (const char* node = std::getenv("NODE_NAME"); node != nullptr) options.node = node;
  bool check = false;
  app.add_option("--config", config_path,
                 "YAML settings, those of sluice-device-plugin; unknown keys are errors; changes apply while running");
  app.add_option("--kubelet-dir", options.kubelet_dir, "kubelet's folder of device plugins")->capture_default_str();
  app.add_option("--plugins-dir", options.plugins_dir, "kubelet's folder of plugins' sockets")->capture_default_str();
  app.add_option("--registry-dir", options.registry_dir, "kubelet's folder of plugins' registrations")
      ->capture_default_str();
  app.add_option("--node-name", options.node, "this node's name in the API; default: $NODE_NAME");
  app.add_option("--kubeconfig", kubeconfig, "credentials for the API server; default: the pod's service account");
  app.add_flag("--check-config", check, "check the settings and exit");
  app.set_version_flag("--version", std::string("sluice-dra-driver ") + SLUICE_VERSION);
  if (const auto ended = sluice::ReadCommandLine(app, kName, argc, argv)) return *ended;

  int ended = 0;
  auto config = sluice::deviceplugin::ReadSettings(kName, config_path, check, &ended);
  if (!config) return ended;
  if (options.node.empty()) {
    const auto missing =
        absl::InvalidArgumentError("--node-name: missing; accepted: this node's name, or set NODE_NAME");
    return sluice::deviceplugin::Fail(kName, missing, 2);
  }
  auto api = kubeconfig.empty() ? sluice::kube::InCluster() : sluice::kube::FromKubeconfig(kubeconfig);
  if (!api.ok()) return sluice::deviceplugin::Fail(kName, api.status(), 2);
  options.stop_fd = sluice::deviceplugin::BeginProgram(kName, *config, options.node);
  options.config = *config;
  options.config_path = config_path;
  options.api = *std::move(api);
  options.nvml = sluice::deviceplugin::MakeDriverNvml(config->nvml_library, config->sys_root);
  bool stuck = false;
  const absl::Status status = RunDriver(std::move(options), &stuck);
  return sluice::deviceplugin::EndProgram(status, stuck);
}
