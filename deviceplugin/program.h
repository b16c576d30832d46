// The start, the end and the configuration file of this folder's two programs.
#ifndef SLUICE_DEVICEPLUGIN_PROGRAM_H_
#define SLUICE_DEVICEPLUGIN_PROGRAM_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "deviceplugin/config.h"

namespace sluice::deviceplugin {

// Reads the settings of the program `name`. If they are wrong, or to be checked only (`check`), says so and sets
// `*ended` to the exit status.
std::optional<Config> ReadSettings(const char* name, const std::string& path, bool check, int* ended);

// A line on stderr; returns exit_status.
int Fail(const char* name, const absl::Status& status, int exit_status);

// Sets up heap and log, blocks the signals that end the program in all threads to come, and logs the start. Returns the
// file descriptor that becomes readable at such a signal.
int BeginProgram(const char* name, const Config& config, const std::string& detail);

// The exit status of a program whose work has ended. With `stuck` NVML calls it does not return: exit handlers would
// destroy objects that a thread inside a hanging driver call still uses.
int EndProgram(const absl::Status& status, bool stuck);

// Gives memory back to the system: pages of code (common/startup_pages.h) and free heap. It does so two seconds after
// the last call of kubelet, and once a minute while calls come, since these programs mostly wait. One thread.
class IdleMemory {
 public:
  using Clock = std::chrono::steady_clock;
  // `calls`: how many there have been. True: the memory was dropped.
  bool Step(bool registered, uint64_t calls, Clock::time_point now = Clock::now());

 private:
  std::optional<Clock::time_point> last_call_;  // or the registration
  Clock::time_point busy_since_;                // the first call after memory was dropped, or the registration
  uint64_t calls_ = 0;
  bool is_dropped_ = false;  // since the last call
};

// A configuration file that may change while the program runs. One thread.
class ConfigFile {
 public:
  ConfigFile(std::string program, std::string path);
  // The new settings if the file has changed and is valid. Logs either, and applies the log's own settings.
  // `not_applied` names those that need a restart.
  std::optional<Config> Changed(const char* not_applied);

 private:
  const std::string program_, path_;
  std::string stamp_;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_PROGRAM_H_
