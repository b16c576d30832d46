// Settings from the process's environment; the agent's BUDGET frames override them while attached.
#ifndef SLUICE_HOOKLIB_ENGINE_CONFIG_H_
#define SLUICE_HOOKLIB_ENGINE_CONFIG_H_

#include <cstdint>
#include <string>

#include "common/settings/settings.h"

namespace sluice {

struct Config {
  settings::Settings settings;
  std::string socket;          // agent's socket; empty: none, the environment alone decides
  bool unmanaged = false;      // SLUICE_UNMANAGED=1: all memory stays as the driver makes it
  bool host_access = true;     // SLUICE_HOST_ACCESS=0: host memory is not used remotely, missing chunks are fetched
  bool discard = true;         // SLUICE_DISCARD=0: contents of freed memory are copied like all others
  bool overwrites = true;      // SLUICE_OVERWRITES=0: memory about to be overwritten whole is fetched like all other
  bool read_mostly = true;     // SLUICE_READ_MOSTLY=0: memory that only copies wrote is evicted like all other
  bool learn = true;           // SLUICE_LEARN=0: which part of a block launches use is not learned from their faults
  bool unmanaged_vmm = false;  // SLUICE_VMM=unmanaged: VMM memory is the driver's own
  int eviction_threads = 4;    // SLUICE_EVICTION_THREADS; 0: the driver's calls evict
  uint64_t managed_limit = 0;  // SLUICE_MANAGED_LIMIT in bytes; 0: none
  settings::LogLevel log_level = settings::LogLevel::kWarn;
};

// Read once. A wrong value is logged at ERROR with its name and the accepted values; the default holds. So are
// values that the shim has read (hooklib/shim/engine.c logs them only where it cannot load the engine).
const Config& GetConfig();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_CONFIG_H_
