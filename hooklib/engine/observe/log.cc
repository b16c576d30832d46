#include "hooklib/engine/observe/log.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>

namespace sluice {

std::atomic<settings::LogLevel> g_log_level{settings::LogLevel::kWarn};

namespace {

// A line is nobody's reason to wait for long, to die or to damage a file.
class Stderr {
 public:
  Stderr() {
    sigset_t waiting;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigpending(&waiting);
    was_pending_ = sigismember(&waiting, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~Stderr() {
    // A reader that has gone ends the program that writes, but not for a line of ours.
    constexpr timespec kNow{};
    if (broken_ && !was_pending_) sigtimedwait(&pipe_, nullptr, &kNow);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Stderr(const Stderr&) = delete;
  Stderr& operator=(const Stderr&) = delete;

  void Write(const char* line, size_t bytes) {
    // A program that was started without it may have a file or a socket of its own under this number. Nearly all of
    // these close on exec; what was given to a program to write to never does.
    const int flags = fcntl(STDERR_FILENO, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0) return;
    pollfd room{STDERR_FILENO, POLLOUT, 0};
    int ready = poll(&room, 1, full_.load(std::memory_order_relaxed) ? 0 : kPatienceMs);
    if (ready < 0) ready = poll(&room, 1, 0);  // a signal's handler ran
    if (ready <= 0) {
      full_ = true;  // nobody reads: not waited for again before somebody does
      return;
    }
    full_ = false;
    broken_ = (room.revents & POLLERR) != 0 || (write(STDERR_FILENO, line, bytes) < 0 && errno == EPIPE);
  }

 private:
  static constexpr int kPatienceMs = 100;
  static std::atomic<bool> full_;
  sigset_t pipe_, before_;
  bool was_pending_ = false, broken_ = false;
};
std::atomic<bool> Stderr::full_{false};

void Write(const char* prefix, const char* format, va_list args) {
  char line[1024];
  const int saved = errno;
  int n = std::snprintf(line, sizeof line, "sluice: %s", prefix);
  const int m = std::vsnprintf(line + n, sizeof line - static_cast<size_t>(n) - 1, format, args);
  n += m < 0 ? 0 : m;
  if (n > static_cast<int>(sizeof line) - 2) n = sizeof line - 2;
  line[n++] = '\n';
  Stderr().Write(line, static_cast<size_t>(n));
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
