// sluice-dra-driver: its flags and signals. dra/driver.cc does the work.
#include <malloc.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "common/command_line.h"
#include "common/log/log.h"
#include "deviceplugin/config.h"
#include "deviceplugin/dra/driver.h"
#include "sluice/version.h"

namespace {

using sluice::Log;
using sluice::LogLevel;

int Fail(const absl::Status& status, int exit_status) {
  std::fprintf(stderr, "sluice-dra-driver: %s\n", std::string(status.message()).c_str());
  return exit_status;
}

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
  if (const auto ended = sluice::ReadCommandLine(app, "sluice-dra-driver", argc, argv)) return *ended;

  auto config = sluice::deviceplugin::LoadConfig(config_path);
  if (!config.ok()) return Fail(config.status(), 2);
  if (check) {
    std::printf("%s: ok\n", config_path.empty() ? "defaults" : config_path.c_str());
    return 0;
  }
  if (options.node.empty()) {
    return Fail(absl::InvalidArgumentError("--node-name: missing; accepted: this node's name, or set NODE_NAME"), 2);
  }
  auto api = kubeconfig.empty() ? sluice::kube::InCluster() : sluice::kube::FromKubeconfig(kubeconfig);
  if (!api.ok()) return Fail(api.status(), 2);
  // One heap instead of one per thread, which would take a resident megabyte each.
  mallopt(M_ARENA_MAX, 1);
  sluice::SetUpLog("sluice-dra-driver", config->log_format, config->log_level);

  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts, so that all threads inherit it
  signal(SIGPIPE, SIG_IGN);
  options.stop_fd = signalfd(-1, &signals, SFD_CLOEXEC);
  options.config = *config;
  options.config_path = config_path;
  options.api = *std::move(api);
  options.nvml = sluice::deviceplugin::MakeDriverNvml(config->nvml_library, config->sys_root);

  Log(LogLevel::kInfo, "starting", {{"version", SLUICE_VERSION}, {"node", options.node}});
  bool stuck = false;
  const absl::Status status = RunDriver(std::move(options), &stuck);
  if (!status.ok()) Log(LogLevel::kError, "cannot run", {{"why", std::string(status.message())}});
  // Exit handlers would destroy objects that a thread inside a hanging driver call still uses.
  if (stuck) _exit(status.ok() ? 0 : 1);
  return status.ok() ? 0 : 1;
}
