// `kubectl sluice doctor`: examines webhook, placement, nodes and agents of a cluster.
#ifndef SLUICE_CLI_CLUSTER_DOCTOR_H_
#define SLUICE_CLI_CLUSTER_DOCTOR_H_

#include <string>

#include "cli/cluster_reader.h"

namespace sluice::cli {

// Prints the findings; `node`: of this node's agent alone, empty: of all. False: something is bad.
bool ExamineCluster(ClusterReader& cluster, const std::string& node);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_DOCTOR_H_
