// The log of every daemon: lines on stderr, as text or as one JSON object a line. Any thread.
#ifndef SLUICE_COMMON_LOG_LOG_H_
#define SLUICE_COMMON_LOG_LOG_H_

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace sluice {

enum class LogLevel { kError, kWarn, kInfo, kDebug };
enum class LogFormat { kText, kJson };
using LogField = std::pair<std::string_view, std::string>;

// The values that configurations accept: error, warn, info, debug in lower or upper case; text, json. nullopt: others.
std::optional<LogLevel> ParseLogLevel(std::string_view text);
std::optional<LogFormat> ParseLogFormat(std::string_view text);

// `program` is the daemon's name. A second call replaces the first one's choices. Before the first: text, info.
void SetUpLog(std::string_view program, LogFormat format, LogLevel level);

// text: 2026-11-25T05:01:39.345Z info sluice-webhook: message key=value
// json: {"time":"2026-11-25T05:01:39.345Z","level":"info","program":"sluice-webhook","msg":"message","key":"value"}
// In both, control characters and bytes that are not UTF-8 cannot make a line of their own: texts come from users.
void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

// For a daemon's answers to its command line, such as the reason why it does not start. text: "sluice-webhook: message"
// without a time, as every program of ours answers; json: as Log.
void LogAnswer(LogLevel level, std::string_view message);

}  // namespace sluice

#endif  // SLUICE_COMMON_LOG_LOG_H_
