// Prometheus' view of the node, and the same figures as read-only JSON, over HTTP where the configuration names an
// address.
#ifndef SLUICE_AGENT_METRICS_H_
#define SLUICE_AGENT_METRICS_H_

#include <functional>
#include <memory>
#include <string>

#include "agent/status.h"

namespace sluice::agent {

// The text of /metrics for one status. Pure.
std::string MetricsText(const NodeStatus& status, const std::string& node);

class MetricsServer {
 public:
  // `now` is called on a server's thread and may wait for the loop.
  MetricsServer(const std::string& listen, const std::string& node, std::function<NodeStatus()> now);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;
  // False with a sentence.
  bool Start(std::string* error);
  int port() const;  // that was taken, where 0 was asked for

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_METRICS_H_
