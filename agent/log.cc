#include "agent/log.h"

#include "common/log/log.h"

namespace sluice::agent {

void SetUpLog(const Config& config) { sluice::SetUpLog("sluice-agent", config.log_format, config.log_level); }

void LogEvent(const Event& e) {
  const bool bad = e.kind == "refused" || e.kind == "not hooked" || e.kind == "reclaim late" ||
                   e.kind == "external process" || e.kind == "forged identity" || e.kind == "foreign card" ||
                   e.kind == "unproven" || e.kind == "descriptors in flight" || e.kind == "configuration refused" ||
                   e.kind == "metrics";
  const LogLevel level = bad ? LogLevel::kWarn : LogLevel::kInfo;
  if (e.allocation.empty()) return Log(level, e.text, {{"event", e.kind}});
  Log(level, e.text, {{"event", e.kind}, {"allocation", e.allocation}});
}

}  // namespace sluice::agent
