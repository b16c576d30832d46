// The HTTP or HTTPS server of the agent's status, by the configuration. Used by the loop's thread; the server has
// threads of its own, which ask the loop for the status.
#ifndef SLUICE_AGENT_METRICS_ENDPOINT_H_
#define SLUICE_AGENT_METRICS_ENDPOINT_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/config.h"
#include "agent/event_loop.h"
#include "agent/kubernetes/authorizer.h"
#include "agent/metrics_server.h"
#include "agent/node.h"
#include "agent/server.h"
#include "agent/shared_answer.h"
#include "kube/config.h"

namespace sluice::agent {

class MetricsEndpoint {
 public:
  MetricsEndpoint(EventLoop* loop, Node* node, Server* server, std::string run_dir)
      : node_(node),
        server_(server),
        run_dir_(std::move(run_dir)),
        status_(loop, 0, [this] { return Now(); }),
        alive_(loop, 100'000'000, [] { return true; }) {}

  // Listens again if its settings have changed. `api`: nullptr without Kubernetes. Returns the error; empty: none.
  std::string Serve(const Config& config, const std::string& node_name, const kube::ClientConfig* api);
  // Follows the certificate. Call it every some seconds.
  void Refresh();

 private:
  NodeStatus Now();

  Node* const node_;
  Server* const server_;
  const std::string run_dir_;
  std::vector<std::string> settings_ = {"", "none", "", ""};
  SharedAnswer<NodeStatus> status_;
  SharedAnswer<bool> alive_;
  std::unique_ptr<Authorizer> authorizer_;
  std::unique_ptr<MetricsServer> http_;  // last: its threads use the members above
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_METRICS_ENDPOINT_H_
