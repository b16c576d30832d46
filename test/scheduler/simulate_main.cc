// The simulator as a program of its own, for tests and for the figure in docs/; users have it as a subcommand of
// sluice.
#include <CLI/CLI.hpp>

#include "common/command_line.h"
#include "scheduler/simulator/simulate_command.h"

int main(int argc, char** argv) {
  CLI::App app("placement simulator");
  app.require_subcommand(1);
  AddSimulateCommand(app);
  return sluice::ReadCommandLine(app, "simulate_cluster", argc, argv).value_or(0);
}
