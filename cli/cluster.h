// kubectl sluice: the commands of a cluster's people. They read what the nodes' agents serve as JSON, through the API
// server's proxy, and write nothing but pods' annotations.
#ifndef SLUICE_CLI_CLUSTER_H_
#define SLUICE_CLI_CLUSTER_H_

namespace CLI {
class App;
}

namespace sluice::cli {

// top, status, set and doctor, in place of those of one node.
void AddClusterCommands(CLI::App& app);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_H_
