// Checkpoints of a process (CRIU, cuda-checkpoint). The driver supports none of a process with managed memory, and may
// leave such a process locked: refused before the driver sees it.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "hooklib/dispatch/entries.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/observe/log.h"
#include "sluice/names.h"

namespace sluice {

namespace {

// Empty where the file cannot be read, which is so for other users' processes.
std::string ReadProcFile(int pid, const char* name) {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/%d/%s", pid, name);
  std::string text;
  FILE* const file = std::fopen(path.data(), "re");
  if (!file) return text;
  std::array<char, 4096> part;
  size_t read;
  do {
    read = std::fread(part.data(), 1, part.size(), file);
    text.append(part.data(), read);
  } while (read == part.size() && std::feof(file) == 0 && std::ferror(file) == 0);
  std::fclose(file);
  return text;
}

// Another process's memory is unknown here: it counts as managed where its hook would make it so.
bool OtherHoldsManaged(int pid) {
  if (ReadProcFile(pid, "maps").find("/libsluice_engine.so") == std::string::npos) return false;
  // Variables end with a null character each.
  const std::string variables = '\0' + ReadProcFile(pid, "environ");
  constexpr char kSetting[] = "\0" SLUICE_ENV_UNMANAGED "=1";  // with the null character behind it
  return variables.find(std::string(kSetting, sizeof kSetting)) == std::string::npos;
}

// Whether the hook refuses the call, which is said once.
bool IsRefused(const char* call, int pid) {
  const bool is_own = pid == getpid();
  const bool holds = is_own ? std::any_of(Devices().begin(), Devices().end(),
                                          [](const auto& device) { return device->HoldsManaged(); })
                            : OtherHoldsManaged(pid);
  if (!holds) return false;
  static std::atomic<bool> logged{false};
  if (!logged.exchange(true)) {
    SLUICE_LOG(kWarn,
               "%s of process %d is not supported: CUDA cannot checkpoint a process with unified memory, which sluice "
               "gives it; start it with SLUICE_UNMANAGED=1",
               call, pid);
  }
  return true;
}

}  // namespace

namespace entry {

CUresult cuCheckpointProcessLock(int pid, CUcheckpointLockArgs* args) {
  if (IsRefused("cuCheckpointProcessLock", pid)) return CUDA_ERROR_NOT_SUPPORTED;
  return g_real.cuCheckpointProcessLock(pid, args);
}

// The process may have been locked before its memory was counted, or by a program without the hook.
CUresult cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs* args) {
  if (IsRefused("cuCheckpointProcessCheckpoint", pid)) return CUDA_ERROR_NOT_SUPPORTED;
  return g_real.cuCheckpointProcessCheckpoint(pid, args);
}

}  // namespace entry
}  // namespace sluice
