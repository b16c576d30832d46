#include "common/log/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "common/mutex.h"

namespace sluice {
namespace {

struct State {
  Mutex mutex;
  std::shared_ptr<spdlog::logger> logger SLUICE_GUARDED_BY(mutex);  // replaced, never changed
  std::string program SLUICE_GUARDED_BY(mutex) = "sluice";
  LogFormat format SLUICE_GUARDED_BY(mutex) = LogFormat::kText;
  LogLevel level SLUICE_GUARDED_BY(mutex) = LogLevel::kInfo;
};

// Never destroyed: threads may log while the process exits.
State& Shared() {
  static auto* state = new State;
  return *state;
}

std::shared_ptr<spdlog::logger> MakeLogger(LogFormat format) {
  auto logger = std::make_shared<spdlog::logger>("sluice", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  // The rest of the line is made here, by one rule for levels and escapes.
  logger->set_pattern(
      format == LogFormat::kJson ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ",%v})" : "%Y-%m-%dT%H:%M:%S.%eZ %v",
      spdlog::pattern_time_type::utc);
  logger->set_level(spdlog::level::trace);
  logger->flush_on(spdlog::level::trace);
  return logger;
}

const char* Name(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return "error";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kDebug:
      return "debug";
  }
  return "info";
}

std::string Quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = '?';
  }
  return out;
}

// A value with a blank or quote would be read as several.
std::string TextValue(std::string_view text) {
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) > ' ' && c != '"' && c != '=' && c != 127;
  });
  return plain ? std::string(text) : Quoted(text);
}

std::string Lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
  return out;
}

}  // namespace

std::optional<LogLevel> ParseLogLevel(std::string_view text) {
  for (LogLevel level : {LogLevel::kError, LogLevel::kWarn, LogLevel::kInfo, LogLevel::kDebug}) {
    if (Lower(text) == Name(level)) return level;
  }
  return std::nullopt;
}

std::optional<LogFormat> ParseLogFormat(std::string_view text) {
  if (text == "text") return LogFormat::kText;
  if (text == "json") return LogFormat::kJson;
  return std::nullopt;
}

void SetUpLog(std::string_view program, LogFormat format, LogLevel level) {
  State& state = Shared();
  const MutexLock lock(state.mutex);
  if (state.logger == nullptr || state.format != format) state.logger = MakeLogger(format);
  state.program = program;
  state.format = format;
  state.level = level;
}

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  State& state = Shared();
  std::shared_ptr<spdlog::logger> logger;
  std::string program;
  bool json = false;
  {
    const MutexLock lock(state.mutex);
    if (level > state.level) return;
    if (state.logger == nullptr) state.logger = MakeLogger(state.format);
    logger = state.logger;
    program = state.program;
    json = state.format == LogFormat::kJson;
  }
  std::string line;
  if (json) {
    line = std::string(R"("level":")") + Name(level) + R"(","program":)" + Quoted(program) + R"(,"msg":)" +
           Quoted(message);
    for (const auto& [key, value] : fields) line += "," + Quoted(key) + ":" + Quoted(value);
  } else {
    line = std::string(Name(level)) + " " + program + ": " + Printable(message);
    for (const auto& [key, value] : fields) line += " " + std::string(key) + "=" + TextValue(value);
  }
  logger->log(spdlog::level::info, spdlog::string_view_t(line));
}

void LogAnswer(LogLevel level, std::string_view message) {
  State& state = Shared();
  {
    const MutexLock lock(state.mutex);
    if (state.format == LogFormat::kText) {
      std::fprintf(stderr, "%s: %s\n", state.program.c_str(), Printable(message).c_str());
      return;
    }
  }
  Log(level, message);
}

}  // namespace sluice
