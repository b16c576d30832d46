#include "deviceplugin/program.h"

#include <malloc.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "common/log/log.h"
#include "common/startup_pages.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/text.h"
#include "sluice/version.h"

namespace sluice::deviceplugin {

int Fail(const char* name, const absl::Status& status, int exit_status) {
  std::fprintf(stderr, "%s: %s\n", name, std::string(status.message()).c_str());
  return exit_status;
}

std::optional<Config> ReadSettings(const char* name, const std::string& path, bool check, int* ended) {
  auto config = LoadConfig(path);
  if (!config.ok()) {
    *ended = Fail(name, config.status(), 2);
    return std::nullopt;
  }
  if (check) {
    std::printf("%s: ok\n", path.empty() ? "defaults" : path.c_str());
    *ended = 0;
    return std::nullopt;
  }
  return *std::move(config);
}

int BeginProgram(const char* name, const Config& config, const std::string& detail) {
  // One heap instead of one per thread, which would take a resident megabyte each.
  mallopt(M_ARENA_MAX, 1);
  SetUpLog(name, config.log_format, config.log_level);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  sigprocmask(SIG_BLOCK, &signals, nullptr);  // before any thread starts, so that all threads inherit it
  signal(SIGPIPE, SIG_IGN);
  Log(LogLevel::kInfo, "starting", {{"version", SLUICE_VERSION}, {"for", detail}});
  return signalfd(-1, &signals, SFD_CLOEXEC);
}

int EndProgram(const absl::Status& status, bool stuck) {
  if (!status.ok()) Log(LogLevel::kError, "cannot run", {{"why", std::string(status.message())}});
  if (stuck) _exit(status.ok() ? 0 : 1);
  return status.ok() ? 0 : 1;
}

bool IdleMemory::Step(bool registered, uint64_t calls, Clock::time_point now) {
  if (!registered && !last_call_) return false;
  if (!last_call_ || calls != calls_) {
    if (!last_call_ || is_dropped_) busy_since_ = now;
    last_call_ = now;
    calls_ = calls;
    is_dropped_ = false;
  }
  const bool is_due = now >= *last_call_ + std::chrono::seconds(2) || now >= busy_since_ + std::chrono::minutes(1);
  if (is_dropped_ || !is_due) return false;
  malloc_trim(0);
  DropStartupPages();
  is_dropped_ = true;
  return true;
}

ConfigFile::ConfigFile(std::string program, std::string path)
    : program_(std::move(program)), path_(std::move(path)), stamp_(FileStamp(path_)) {}

std::optional<Config> ConfigFile::Changed(const char* not_applied) {
  const std::string stamp = FileStamp(path_);
  if (stamp == stamp_ || stamp.empty()) return std::nullopt;
  stamp_ = stamp;
  auto config = LoadConfig(path_);
  if (!config.ok()) {
    Log(LogLevel::kError, "the changed configuration is invalid, the previous one stays in force",
        {{"why", std::string(config.status().message())}});
    return std::nullopt;
  }
  Log(LogLevel::kInfo, StrCat("configuration changed (", not_applied, " need a restart)"));
  SetUpLog(program_.c_str(), config->log_format, config->log_level);
  return *std::move(config);
}

}  // namespace sluice::deviceplugin
