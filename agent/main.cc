// sluice-agent: its flags. daemon.cc does the work.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "agent/daemon.h"
#include "agent/metrics.h"
#include "common/command_line.h"
#include "sluice/names.h"
#include "sluice/version.h"

int main(int argc, char** argv) {
  using sluice::agent::Config;
  using sluice::agent::DaemonOptions;
  CLI::App app{"sluice-agent: shares this node's GPU memory and time among containers"};
  DaemonOptions options;
  bool check = false, print_metrics = false;
  app.add_option("--config", options.config_path, "configuration, YAML; default: none, every default value holds");
  app.add_option("--run-dir", options.run_dir, "folder of the service's socket; default: " SLUICE_HOST_AGENT_RUN_DIR);
  app.add_option("--alloc-dir", options.alloc_dir,
                 "folder of the allocations; overrides alloc_dir of the configuration");
  app.add_option("--nvml", options.nvml, "NVML's library; overrides nvml of the configuration");
  app.add_option("--end-with", options.end_with, "end when the process with this id ends")->check(CLI::PositiveNumber);
  app.add_flag("--quiet", options.quiet, "log warnings and errors only");
  app.add_flag("--check-config", check, "check the configuration and end");
  app.add_flag("--print-metrics", print_metrics, "print the reference of metrics and counters and end");
  app.set_version_flag("--version", SLUICE_VERSION);
  if (const auto ended = sluice::ReadCommandLine(app, "sluice-agent", argc, argv)) return *ended;
  if (print_metrics) {
    std::fputs(sluice::agent::MetricsPage().c_str(), stdout);
    return 0;
  }
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
