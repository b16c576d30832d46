#include "deviceplugin/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <nlohmann/json.hpp>

namespace sluice::deviceplugin {
namespace {

spdlog::logger& Logger() {
  static spdlog::logger* logger = [] {
    auto* made = new spdlog::logger("plugin", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    // The message is the rest of the object: Log escapes it.
    made->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})", spdlog::pattern_time_type::utc);
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

spdlog::level::level_enum ToSpdlog(Level level) {
  switch (level) {
    case Level::kError:
      return spdlog::level::err;
    case Level::kWarn:
      return spdlog::level::warn;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kDebug:
      return spdlog::level::debug;
  }
  return spdlog::level::info;
}

std::string Quoted(std::string_view text) {
  // Text from outside may not be valid UTF-8.
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void Log(Level level, std::string_view message, std::initializer_list<Field> fields) {
  spdlog::logger& logger = Logger();
  if (!logger.should_log(ToSpdlog(level))) return;
  std::string line = "\"msg\":" + Quoted(message);
  for (const auto& [key, value] : fields) {
    line += "," + Quoted(key) + ":" + Quoted(value);
  }
  logger.log(ToSpdlog(level), spdlog::string_view_t(line));
}

void SetLogLevel(std::string_view name) {
  Logger().set_level(name == "ERROR"   ? spdlog::level::err
                     : name == "WARN"  ? spdlog::level::warn
                     : name == "DEBUG" ? spdlog::level::debug
                                       : spdlog::level::info);
}

}  // namespace sluice::deviceplugin
