// `sluice simulate-cluster NODES.csv PODS.csv`
#ifndef SLUICE_SCHEDULER_SIMULATOR_SIMULATE_COMMAND_H_
#define SLUICE_SCHEDULER_SIMULATOR_SIMULATE_COMMAND_H_

namespace CLI {
class App;
}

// Adds the subcommand. Its callback throws CLI::RuntimeError with the exit status: 1 if an input cannot be used, 2 if
// none is given.
void AddSimulateCommand(CLI::App& app);

#endif  // SLUICE_SCHEDULER_SIMULATOR_SIMULATE_COMMAND_H_
