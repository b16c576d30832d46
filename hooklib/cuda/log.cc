#include "hooklib/cuda/log.h"

#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdio>

namespace sluice {

std::atomic<settings::LogLevel> g_log_level{settings::LogLevel::kWarn};

namespace {

void Write(const char* prefix, const char* format, va_list args) {
  char line[1024];
  const int saved = errno;
  int n = std::snprintf(line, sizeof line, "sluice: %s", prefix);
  const int m = std::vsnprintf(line + n, sizeof line - static_cast<size_t>(n) - 1, format, args);
  n += m < 0 ? 0 : m;
  if (n > static_cast<int>(sizeof line) - 2) n = sizeof line - 2;
  line[n++] = '\n';
  // A closed or full stderr must not disturb the program.
  if (write(STDERR_FILENO, line, static_cast<size_t>(n)) < 0) errno = saved;
  errno = saved;
}

}  // namespace

void Log(settings::LogLevel level, const char* format, ...) {
  static const char* const kNames[] = {"ERROR ", "WARN ", "INFO ", "DEBUG "};
  va_list args;
  va_start(args, format);
  Write(kNames[static_cast<int>(level) & 3], format, args);
  va_end(args);
}

void LogAlways(const char* format, ...) {
  va_list args;
  va_start(args, format);
  Write("", format, args);
  va_end(args);
}

}  // namespace sluice
