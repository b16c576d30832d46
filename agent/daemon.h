// Puts the agent's parts together.
#ifndef SLUICE_AGENT_DAEMON_H_
#define SLUICE_AGENT_DAEMON_H_

#include <string>

#include "agent/config.h"

namespace sluice::agent {

struct DaemonOptions {
  std::string config_path;
  std::string run_dir = "/run/sluice";
  std::string alloc_dir;  // empty: from the configuration
  int end_with = 0;       // a process id; 0: none
  bool quiet = false;
  std::string nvml;  // empty: from the configuration
};

// Runs until SIGTERM or SIGINT. Returns the exit status.
int RunDaemon(const DaemonOptions& options, Config config);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_DAEMON_H_
