// `sluice simulate-cluster NODES.csv PODS.csv`
#ifndef SCHEDULER_SIMULATE_COMMAND_H_
#define SCHEDULER_SIMULATE_COMMAND_H_

namespace CLI {
class App;
}

// Adds the subcommand. Its callback throws CLI::RuntimeError with the exit status: 1 where an input cannot be used, 2
// where none is named.
void AddSimulateCommand(CLI::App& app);

#endif  // SCHEDULER_SIMULATE_COMMAND_H_
