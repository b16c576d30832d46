// sluice-device-plugin: offers shares of the node's GPUs to kubelet.
#include <malloc.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "common/command_line.h"
#include "common/log/log.h"
#include "deviceplugin/config.h"
#include "deviceplugin/host/hook_library.h"
#include "deviceplugin/plugin.h"
#include "sluice/version.h"

namespace {

using sluice::Log;
using sluice::LogLevel;

int Fail(const absl::Status& status, int exit_status) {
  std::fprintf(stderr, "sluice-device-plugin: %s\n", std::string(status.message()).c_str());
  return exit_status;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Offers shares of this node's GPUs to kubelet as sluice.dev/gpu-percent."};
  std::string config_path, kubelet_dir = "/var/lib/kubelet/device-plugins";
  std::vector<std::string> install;
  bool check = false;
  app.add_option("--config", config_path, "YAML settings; unknown keys are errors; changes apply while running");
  app.add_option("--kubelet-dir", kubelet_dir, "kubelet's folder of device plugins")->capture_default_str();
  app.add_flag("--check-config", check, "check the settings and exit");
  app.add_option("--install-lib", install,
                 "copy the hook library from SRC into DST/<version>-<build id>, print that path and exit")
      ->expected(2)
      ->type_name("SRC DST");
  app.set_version_flag("--version", std::string("sluice-device-plugin ") + SLUICE_VERSION);
  if (const auto ended = sluice::ReadCommandLine(app, "sluice-device-plugin", argc, argv)) return *ended;

  if (!install.empty()) {
    auto path = sluice::deviceplugin::InstallHookLibrary(install[0], install[1]);
    if (!path.ok()) return Fail(path.status(), 1);
    std::printf("%s\n", path->c_str());
    return 0;
  }
  auto config = sluice::deviceplugin::LoadConfig(config_path);
  if (!config.ok()) return Fail(config.status(), 2);
  if (check) {
    std::printf("%s: ok\n", config_path.empty() ? "defaults" : config_path.c_str());
    return 0;
  }
  // One heap instead of one per thread, which would take a resident megabyte each.
  mallopt(M_ARENA_MAX, 1);
  sluice::SetUpLog("sluice-device-plugin", config->log_format, config->log_level);

  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts, so that all threads inherit it
  signal(SIGPIPE, SIG_IGN);
  const int stop = signalfd(-1, &signals, SFD_CLOEXEC);

  Log(LogLevel::kInfo, "starting", {{"version", SLUICE_VERSION}, {"kubelet-dir", kubelet_dir}});
  sluice::deviceplugin::PluginOptions options{
      *config, config_path, kubelet_dir, sluice::deviceplugin::MakeDriverNvml(config->nvml_library, config->sys_root),
      stop};
  bool stuck = false;
  const absl::Status status = RunPlugin(std::move(options), &stuck);
  if (!status.ok()) Log(LogLevel::kError, "cannot run", {{"why", std::string(status.message())}});
  // Exit handlers would destroy objects that a thread inside a hanging driver call still uses.
  if (stuck) _exit(status.ok() ? 0 : 1);
  return status.ok() ? 0 : 1;
}
