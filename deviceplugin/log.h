// Structured logs on stderr: one JSON object per line.
#ifndef SLUICE_DEVICEPLUGIN_LOG_H_
#define SLUICE_DEVICEPLUGIN_LOG_H_

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

namespace sluice::deviceplugin {

enum class Level { kError, kWarn, kInfo, kDebug };
using Field = std::pair<std::string_view, std::string>;

// {"time":"...","level":"info","msg":"...",<fields>}. Thread-safe.
void Log(Level level, std::string_view message, std::initializer_list<Field> fields = {});
void SetLogLevel(std::string_view name);  // "ERROR", "WARN", "INFO", "DEBUG"

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_LOG_H_
