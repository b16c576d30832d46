// The agent's log on stderr: text or JSON, one line a message. Any thread, after SetUpLog().
#ifndef SLUICE_AGENT_LOG_H_
#define SLUICE_AGENT_LOG_H_

#include <string>

#include "agent/config.h"
#include "agent/status.h"

namespace sluice::agent {

// Again with another configuration: it holds from then on.
void SetUpLog(const Config& config);

void LogEvent(const Config& config, const Event& event);
void LogInfo(const Config& config, const std::string& text);
void LogWarning(const Config& config, const std::string& text);
void LogError(const Config& config, const std::string& text);

}  // namespace sluice::agent

#endif  // SLUICE_AGENT_LOG_H_
