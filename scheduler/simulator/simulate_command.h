// `sluice simulate-cluster NODES.csv PODS.csv`
#ifndef SLUICE_SCHEDULER_SIMULATOR_SIMULATE_COMMAND_H_
#define SLUICE_SCHEDULER_SIMULATOR_SIMULATE_COMMAND_H_

namespace CLI {
class App;
}

// Adds the subcommand. Its callback throws CLI::RuntimeError with the exit status: 1 where an input cannot be used, 2
// where none is named.
void AddSimulateCommand(CLI::App& app);

#endif  // SLUICE_SCHEDULER_SIMULATOR_SIMULATE_COMMAND_H_
