// The agent's events in the log (common/log). Any thread.
#ifndef SLUICE_AGENT_LOG_H_
#define SLUICE_AGENT_LOG_H_

#include "agent/config.h"
#include "agent/status.h"

namespace sluice::agent {

// Again with another configuration: it holds from then on.
void SetUpLog(const Config& config);

void LogEvent(const Event& event);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_LOG_H_
