// The node's status as read-only JSON (v1.Status of proto/agent.proto), for `kubectl sluice` through the API server's
// proxy. It leaves out processes' ids and commands and containers' settings: it shows no more than /metrics.
#ifndef SLUICE_AGENT_STATUS_JSON_H_
#define SLUICE_AGENT_STATUS_JSON_H_

#include <string>

#include "agent/status.h"

namespace sluice::agent {

std::string StatusJson(const NodeStatus& status);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_STATUS_JSON_H_
