// The node's status as Prometheus metrics.
#ifndef SLUICE_AGENT_METRICS_H_
#define SLUICE_AGENT_METRICS_H_

#include <string>

#include "agent/status.h"

namespace sluice::agent {

// The text of /metrics for one status. Pure.
std::string MetricsText(const NodeStatus& status, const std::string& node);

// The reference of all metrics and counters, in Markdown: a part of docs/operate/metrics.md. Pure.
std::string MetricsPage();

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_METRICS_H_
