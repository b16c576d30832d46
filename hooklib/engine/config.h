// What the process was told by its environment; the agent's BUDGET frames override it while attached.
#ifndef SLUICE_HOOKLIB_ENGINE_CONFIG_H_
#define SLUICE_HOOKLIB_ENGINE_CONFIG_H_

#include <cstdint>
#include <string>

#include "common/settings/settings.h"

namespace sluice {

struct Config {
  settings::Settings settings;
  std::string socket;          // agent's socket; empty: none, the environment alone decides
  bool plain = false;          // SLUICE_PLAIN=1
  bool host_access = true;     // SLUICE_HOST_ACCESS=0: what a launch misses is always fetched
  bool discard = true;         // SLUICE_DISCARD=0: contents that the program gave back are copied like the rest
  bool overwrites = true;      // SLUICE_OVERWRITES=0: what is about to be overwritten whole is fetched like the rest
  bool read_mostly = true;     // SLUICE_READ_MOSTLY=0: what copies alone wrote is sent away like the rest
  bool learn = true;           // SLUICE_LEARN=0: what launches use of a block is not learnt from their faults
  int senders = 4;             // SLUICE_SENDERS: threads that send memory away at a time; 0: the driver's calls do
  uint64_t managed_limit = 0;  // SLUICE_MANAGED_LIMIT in bytes; 0: none
  settings::LogLevel log_level = settings::LogLevel::kWarn;
};

// Read once. A wrong value is said at ERROR with name, value and what is accepted; the default holds. So is one that
// the shim has read (hooklib/shim/engine.c says it only where it cannot load us).
const Config& GetConfig();

}  // namespace sluice

#endif  // SLUICE_HOOKLIB_ENGINE_CONFIG_H_
