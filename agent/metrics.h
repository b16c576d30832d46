// The node's status over HTTP, where the configuration names an address: Prometheus metrics, and read-only JSON.
#ifndef SLUICE_AGENT_METRICS_H_
#define SLUICE_AGENT_METRICS_H_

#include <functional>
#include <memory>
#include <string>

#include "agent/status.h"

namespace sluice::agent {

// The text of /metrics for one status. Pure.
std::string MetricsText(const NodeStatus& status, const std::string& node);

// The reference of all metrics and counters, in Markdown: a part of docs/operate/metrics.md. Pure.
std::string MetricsPage();

class MetricsServer {
 public:
  // `now` is called on a server thread and may wait for the loop.
  MetricsServer(const std::string& listen, const std::string& node, std::function<NodeStatus()> now);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;
  // False with a sentence.
  bool Start(std::string* error);
  int port() const;  // the one that was taken, where the address has 0

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_METRICS_H_
