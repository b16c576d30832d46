// kubectl sluice: commands for a whole cluster. They read the agents' JSON status through the API server's proxy, and
// write pods' annotations only.
#ifndef SLUICE_CLI_CLUSTER_H_
#define SLUICE_CLI_CLUSTER_H_

namespace CLI {
class App;
}

namespace sluice::cli {

// Adds top, status, set and doctor of a cluster, instead of those of one node.
void AddClusterCommands(CLI::App& app);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_H_
