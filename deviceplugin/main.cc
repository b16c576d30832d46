// sluice-device-plugin: offers shares of the node's GPUs to kubelet.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>
#include <vector>

#include "common/command_line.h"
#include "deviceplugin/host/hook_library.h"
#include "deviceplugin/plugin.h"
#include "deviceplugin/program.h"
#include "sluice/version.h"

namespace {

constexpr char kName[] = "sluice-device-plugin";

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
  if (const auto ended = sluice::ReadCommandLine(app, kName, argc, argv)) return *ended;

  if (!install.empty()) {
    auto path = sluice::deviceplugin::InstallHookLibrary(install[0], install[1]);
    if (!path.ok()) return sluice::deviceplugin::Fail(kName, path.status(), 1);
    std::printf("%s\n", path->c_str());
    return 0;
  }
  int ended = 0;
  auto config = sluice::deviceplugin::ReadSettings(kName, config_path, check, &ended);
  if (!config) return ended;
  const int stop = sluice::deviceplugin::BeginProgram(kName, *config, kubelet_dir);
  sluice::deviceplugin::PluginOptions options{
      *config, config_path, kubelet_dir, sluice::deviceplugin::MakeDriverNvml(config->nvml_library, config->sys_root),
      stop};
  bool stuck = false;
  const absl::Status status = RunPlugin(std::move(options), &stuck);
  return sluice::deviceplugin::EndProgram(status, stuck);
}
