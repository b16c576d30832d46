#include "cli/cluster_agents.h"

#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>

#include "cli/agent_connection.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;

constexpr const char* kChartName = "sluice";
constexpr const char* kAgent = "agent";  // the container of the node's pod
// Agents that are asked one by one, each by a process of kubectl.
constexpr size_t kMaxExecs = 64;

int MetricsPort(const Json& pod) {
  const Json::json_pointer containers("/spec/containers");
  if (!pod.contains(containers)) return 0;
  for (const Json& container : pod[containers]) {
    for (const Json& port : container.value("ports", Json::array())) {
      if (port.value("name", "") == "metrics") return port.value("containerPort", 0);
    }
  }
  return 0;
}

// The agent's flag --run-dir; empty: its default.
std::string RunDir(const Json& pod) {
  const Json::json_pointer containers("/spec/containers");
  if (!pod.contains(containers)) return {};
  for (const Json& container : pod[containers]) {
    const Json args = container.value("args", Json::array());
    for (size_t i = 0; container.value("name", "") == kAgent && i + 1 < args.size(); ++i) {
      if (args[i] == "--run-dir" && args[i + 1].is_string()) return args[i + 1].get<std::string>();
    }
  }
  return {};
}

void ReadStatus(const absl::StatusOr<std::string>& text, NodeAnswer* answer) {
  google::protobuf::util::JsonParseOptions newer;  // an agent of a later version may send more fields
  newer.ignore_unknown_fields = true;
  if (!text.ok()) {
    answer->error = std::string(text.status().message());
  } else if (!google::protobuf::util::JsonStringToMessage(*text, &answer->status, newer).ok()) {
    answer->error = "its answer is not understood: the agent has another version";
  }
}

struct AgentPods {
  std::vector<NodeAnswer> answers;
  std::vector<std::string> paths;     // of their status pages
  std::vector<std::string> run_dirs;  // empty: the default
};

AgentPods FindAgents(ClusterReader& cluster, const std::string& name, const std::string& node) {
  AgentPods found;
  const auto begin = [&] { found = {}; };
  const auto add = [&](const Json& pod) {
    NodeAnswer answer;
    answer.node = TextAt(pod, "/spec/nodeName");
    answer.pod = TextAt(pod, "/metadata/name");
    answer.space = TextAt(pod, "/metadata/namespace");
    if (answer.node.empty() || (!node.empty() && answer.node != node) ||
        pod.contains(Json::json_pointer("/metadata/deletionTimestamp")))
      return;
    found.paths.push_back("/api/v1/namespaces/" + answer.space + "/pods/" + answer.pod + ":" +
                          std::to_string(MetricsPort(pod)) + "/proxy/status.json");
    found.run_dirs.push_back(RunDir(pod));
    found.answers.push_back(std::move(answer));
  };
  const absl::Status status = cluster.Read(PodList(PodsOf(name, "node")), {begin, add});
  if (!status.ok()) Fail(1, std::string(status.message()));
  return found;
}

// The agents of all nodes, or of `node` alone. Fail()s if there are none.
AgentPods NeedAgents(ClusterReader& cluster, const std::string& node) {
  cluster.Open();
  AgentPods found = FindAgents(cluster, kChartName, node);
  if (found.answers.empty()) {
    // The chart's nameOverride gives pods and registration another name. Some users may not read the registration.
    const auto registrations = FindRegistrations(cluster);
    for (const Json& registration : registrations.ok() ? *registrations : std::vector<Json>{}) {
      if (NameOf(registration) == kChartName) continue;
      found = FindAgents(cluster, NameOf(registration), node);
      if (!found.answers.empty()) break;
    }
  }
  if (found.answers.empty()) {
    Fail(1, node.empty() ? "no agent runs in this cluster (pods with " + PodsOf(kChartName, "node") +
                               ", or with the name of a webhook mutate.sluice.dev); is the chart installed?"
                         : "no agent runs on node '" + node + "'");
  }
  return found;
}

// The arguments of kubectl that run the agent's own tool in its container.
std::vector<std::string> ToolOf(const NodeAnswer& agent, const std::string& run_dir,
                                const std::vector<std::string>& words) {
  std::vector<std::string> command = {"exec", "-n", agent.space, agent.pod, "-c", kAgent, "--", "sluice"};
  command.insert(command.end(), words.begin(), words.end());
  if (!run_dir.empty()) command.insert(command.end(), {"--run-dir", run_dir});
  return command;
}

}  // namespace

std::string TextAt(const Json& object, const char* pointer) {
  const Json::json_pointer path(pointer);
  return object.contains(path) && object[path].is_string() ? object[path].get<std::string>() : "";
}

std::string PodsOf(const std::string& name, const std::string& component) {
  return "app.kubernetes.io/name=" + name + ",app.kubernetes.io/component=" + component;
}

absl::StatusOr<std::vector<Json>> FindRegistrations(ClusterReader& cluster) {
  cluster.Open();
  std::vector<Json> found;
  const auto begin = [&] { found.clear(); };
  const auto add = [&](const Json& object) {
    for (const Json& webhook : object.value("webhooks", Json::array())) {
      if (webhook.value("name", "") != "mutate.sluice.dev") continue;
      found.push_back(object);
      return;
    }
  };
  absl::Status status = cluster.Read(WebhookList(), {begin, add});
  if (!status.ok()) return status;
  return found;
}

std::string NameOf(const Json& registration) {
  const std::string label = TextAt(registration, "/metadata/labels/app.kubernetes.io~1name");
  return label.empty() ? TextAt(registration, "/metadata/name") : label;
}

std::vector<NodeAnswer> AskAgents(ClusterReader& cluster, const std::string& node) {
  AgentPods found = NeedAgents(cluster, node);
  std::vector<absl::StatusOr<std::string>> texts = cluster.ReadTexts(found.paths);
  // With metrics.authentication: kubernetes the API server's proxy is refused, since it passes no token on. Then the
  // agent's own tool answers, for users with the right to exec into its pod.
  size_t execs = 0;
  for (size_t i = 0; i < texts.size() && execs < kMaxExecs; ++i) {
    if (texts[i].ok()) continue;
    ++execs;
    Kubectl::Answer own = cluster.kubectl().Run(ToolOf(found.answers[i], found.run_dirs[i], {"status", "-o", "json"}));
    if (own.ok()) texts[i] = std::move(own.out);
  }
  for (size_t i = 0; i < texts.size(); ++i) ReadStatus(texts[i], &found.answers[i]);
  return std::move(found.answers);
}

Kubectl::Answer RunAgentTool(ClusterReader& cluster, const std::string& node, const std::vector<std::string>& words) {
  const AgentPods found = NeedAgents(cluster, node);
  return cluster.kubectl().Run(ToolOf(found.answers.front(), found.run_dirs.front(), words));
}

}  // namespace sluice::cli
