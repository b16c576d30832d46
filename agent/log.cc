#include "agent/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

namespace sluice::agent {
namespace {

// In JSON every message is a JSON value.
void Log(const Config& config, spdlog::level::level_enum level, const std::string& text) {
  spdlog::log(level, "{}", config.log_format == "json" ? nlohmann::json(text).dump() : text);
}

}  // namespace

void SetUpLog(const Config& config) {
  auto logger = std::make_shared<spdlog::logger>("agent", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(config.log_level));
  logger->set_pattern(config.log_format == "json" ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":%v})"
                                                  : "%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  spdlog::set_default_logger(std::move(logger));
}

void LogEvent(const Config& config, const Event& e) {
  const bool bad = e.kind == "refused" || e.kind == "not hooked" || e.kind == "reclaim late" ||
                   e.kind == "external process" || e.kind == "forged identity" || e.kind == "foreign card" ||
                   e.kind == "unproven" || e.kind == "configuration refused" || e.kind == "metrics";
  const auto level = bad ? spdlog::level::warn : spdlog::level::info;
  if (config.log_format == "json") {
    // By nlohmann, since text comes from containers.
    spdlog::log(level, "{}",
                nlohmann::json{{"event", e.kind}, {"allocation", e.allocation}, {"text", e.text}}.dump(
                    -1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    spdlog::log(level, "{}{}{}: {}", e.allocation, e.allocation.empty() ? "" : " ", e.kind, e.text);
  }
}

void LogInfo(const Config& config, const std::string& text) { Log(config, spdlog::level::info, text); }
void LogWarning(const Config& config, const std::string& text) { Log(config, spdlog::level::warn, text); }
void LogError(const Config& config, const std::string& text) { Log(config, spdlog::level::err, text); }

}  // namespace sluice::agent
