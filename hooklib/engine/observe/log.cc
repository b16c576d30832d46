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

// Writes one line without blocking for long, without SIGPIPE, and not into a file of the program's.
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
    // Without a reader the write raised SIGPIPE, which would end the program for a line of ours.
    constexpr timespec kNow{};
    if (has_no_reader_ && !was_pending_) sigtimedwait(&pipe_, nullptr, &kNow);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  Stderr(const Stderr&) = delete;
  Stderr& operator=(const Stderr&) = delete;

  void Write(const char* line, size_t bytes) {
    // A program that was started without stderr may have a file or a socket of its own under this number. Nearly all of
    // these close on exec; a stderr that a program was given never does.
    const int flags = fcntl(STDERR_FILENO, F_GETFD);
    if (flags < 0 || (flags & FD_CLOEXEC) != 0) return;
    pollfd room{STDERR_FILENO, POLLOUT, 0};
    int ready = poll(&room, 1, is_full_.load(std::memory_order_relaxed) ? 0 : kMaxWaitMs);
    if (ready < 0) ready = poll(&room, 1, 0);  // a signal's handler ran
    if (ready <= 0) {
      is_full_ = true;  // no wait again until there is room
      return;
    }
    is_full_ = false;
    has_no_reader_ = (room.revents & POLLERR) != 0 || (write(STDERR_FILENO, line, bytes) < 0 && errno == EPIPE);
  }

 private:
  static constexpr int kMaxWaitMs = 100;
  static std::atomic<bool> is_full_;
  sigset_t pipe_, before_;
  bool was_pending_ = false, has_no_reader_ = false;
};
std::atomic<bool> Stderr::is_full_{false};

void Write(const char* prefix, const char* format, va_list args) {
  char line[kMaxLineBytes];
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
  static const char* const kLevelNames[] = {"ERROR ", "WARN ", "INFO ", "DEBUG "};
  va_list args;
  va_start(args, format);
  Write(kLevelNames[static_cast<int>(level) & 3], format, args);
  va_end(args);
}

void LogAlways(const char* format, ...) {
  va_list args;
  va_start(args, format);
  Write("", format, args);
  va_end(args);
}

}  // namespace sluice
