// Lines on stderr: "sluice: WARN ...". One write call a line, so that lines of threads and processes do not mix. Never
// on stdout.
#ifndef SLUICE_HOOKLIB_ENGINE_OBSERVE_LOG_H_
#define SLUICE_HOOKLIB_ENGINE_OBSERVE_LOG_H_

#include <atomic>
#include <cstddef>

#include "common/settings/settings.h"

namespace sluice {

constexpr std::size_t kMaxLineBytes = 2048;

extern std::atomic<settings::LogLevel> g_log_level;

inline bool LogEnabled(settings::LogLevel level) { return level <= g_log_level.load(std::memory_order_relaxed); }
// printf's format; a line end is added. Whatever the level in force. Safe in any thread; allocates nothing; cut
// at kMaxLineBytes.
void Log(settings::LogLevel level, const char* format, ...) __attribute__((format(printf, 2, 3)));
// The same without the level's name: the lines at exit and on a period.
void LogAlways(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace sluice

#define SLUICE_LOG(level, ...)                                         \
  do {                                                                 \
    if (::sluice::LogEnabled(::sluice::settings::LogLevel::level)) {   \
      ::sluice::Log(::sluice::settings::LogLevel::level, __VA_ARGS__); \
    }                                                                  \
  } while (0)

#endif  // SLUICE_HOOKLIB_ENGINE_OBSERVE_LOG_H_
