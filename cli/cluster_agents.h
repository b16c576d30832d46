// The agents of a cluster, found by their pods and asked through the API server's proxy.
#ifndef SLUICE_CLI_CLUSTER_AGENTS_H_
#define SLUICE_CLI_CLUSTER_AGENTS_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "agent.pb.h"
#include "cli/cluster_reader.h"
#include "cli/kubectl.h"

namespace sluice::cli {

// The answer of one node's agent, or the reason why there is none.
struct NodeAnswer {
  std::string node, pod, space, error;
  v1::Status status;
};

// The agents of all nodes, or of `node` alone. Fail()s if there are none.
std::vector<NodeAnswer> AskAgents(ClusterReader& cluster, const std::string& node);
// Runs `sluice WORDS` beside the agent of a node, by an exec into its pod, which needs the right to `pods/exec`.
// Fail()s if the node has no agent.
Kubectl::Answer RunAgentTool(ClusterReader& cluster, const std::string& node, const std::vector<std::string>& words);

// The objects of the webhook's registration, one for each installation. The error is kubectl's.
absl::StatusOr<std::vector<nlohmann::json>> FindRegistrations(ClusterReader& cluster);
// The label app.kubernetes.io/name of this installation's pods, which the chart's nameOverride sets.
std::string NameOf(const nlohmann::json& registration);
// The selector of its pods of this component.
std::string PodsOf(const std::string& name, const std::string& component);

// The string at a JSON pointer; empty: there is none.
std::string TextAt(const nlohmann::json& object, const char* pointer);

}  // namespace sluice::cli

#endif  // SLUICE_CLI_CLUSTER_AGENTS_H_
