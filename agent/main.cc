// sluice-agent: flags; the work is in Daemon.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "agent/daemon.h"
#include "common/command_line.h"
#include "sluice/names.h"
#include "sluice/version.h"

int main(int argc, char** argv) {
  using sluice::agent::Config;
  using sluice::agent::DaemonOptions;
  CLI::App app{"sluice-agent: the node's books of GPU memory and time"};
  DaemonOptions options;
  bool check = false;
  app.add_option("--config", options.config_path, "configuration, YAML; without it every default holds");
  app.add_option("--run-dir", options.run_dir,
                 "folder of the service's socket, " SLUICE_HOST_AGENT_RUN_DIR " by default");
  app.add_option("--alloc-dir", options.alloc_dir, "folder of the allocations, over alloc_dir of the configuration");
  app.add_option("--nvml", options.nvml, "NVML's library, over nvml of the configuration");
  app.add_option("--end-with", options.end_with, "end when the process with this id has ended")
      ->check(CLI::PositiveNumber);
  app.add_flag("--quiet", options.quiet, "say warnings and errors only");
  app.add_flag("--check-config", check, "check the configuration and end");
  app.set_version_flag("--version", SLUICE_VERSION);
  if (const auto ended = sluice::ReadCommandLine(app, "sluice-agent", argc, argv)) return *ended;
  Config config;
  std::string error;
  if (!sluice::agent::LoadConfig(options.config_path, &config, &error)) {
    std::fprintf(stderr, "sluice-agent: %s\n", error.c_str());
    return 2;
  }
  if (check) {
    std::fprintf(stderr, "sluice-agent: %s is accepted\n",
                 options.config_path.empty() ? "the default" : options.config_path.c_str());
    return 0;
  }
  return sluice::agent::RunDaemon(options, config);
}
