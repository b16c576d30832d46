// sluice and kubectl-sluice are one program. Under the second name, top, status, set and doctor are those of a cluster.
#include <CLI/CLI.hpp>
#include <cstring>
#include <string_view>

#include "cli/child.h"
#include "cli/cluster.h"
#include "cli/commands.h"
#include "common/command_line.h"
#include "sluice/version.h"
#ifdef SLUICE_HAVE_ADMIT
#include "webhook/admit_command.h"
#endif
#ifdef SLUICE_HAVE_SIMULATE
#include "scheduler/simulator/simulate_command.h"
#endif
#ifdef SLUICE_HAVE_TRACE
#include "trace/tools/commands.h"
#endif

int main(int argc, char** argv) {
  sluice::cli::KeepChildStatus();
  CLI::App app{"sluice: run programs on fractions of a GPU, with more memory than a fraction holds"};
  app.set_version_flag("--version", SLUICE_VERSION);
  app.require_subcommand(1);
  if (std::string_view(argv[0]).ends_with("kubectl-sluice")) {
    sluice::cli::AddClusterCommands(app);
  } else {
    sluice::cli::AddRunCommand(app);
    sluice::cli::AddTopCommand(app);
    sluice::cli::AddStatusCommand(app);
    sluice::cli::AddSetCommand(app);
    sluice::cli::AddParkCommand(app);
    sluice::cli::AddWakeCommand(app);
    sluice::cli::AddEventsCommand(app);
    sluice::cli::AddDoctorCommand(app);
  }
#ifdef SLUICE_HAVE_TRACE
  SLUICE_HAVE_TRACE(app);
#endif
#ifdef SLUICE_HAVE_ADMIT
  SLUICE_HAVE_ADMIT(app);
#endif
#ifdef SLUICE_HAVE_SIMULATE
  SLUICE_HAVE_SIMULATE(app);
#endif
  if (argc > 1 && std::strcmp(argv[1], "run") == 0) {
    for (int i = 2; i < argc; ++i) {
      if (std::strcmp(argv[i], "--") != 0) continue;
      sluice::cli::ProgramArguments().assign(argv + i + 1, argv + argc);
      argc = i;
    }
  }
  return sluice::ReadCommandLine(app, "sluice", argc, argv).value_or(0);
}
