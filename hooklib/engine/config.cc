#include "hooklib/engine/config.h"

#include <cstdlib>
#include <cstring>

#include "hooklib/engine/observe/log.h"
#include "sluice/names.h"

namespace sluice {

namespace {

const char* Get(const char* name) {
  const char* value = std::getenv(name);
  return value && *value ? value : nullptr;
}

bool Flag(const char* name, bool otherwise) {
  const char* value = Get(name);
  if (!value) return otherwise;
  if (!std::strcmp(value, "0")) return false;
  if (!std::strcmp(value, "1")) return true;
  Log(settings::LogLevel::kError, "%s: '%s' is not accepted; accepted: 0, 1; it counts as %d", name, value, otherwise);
  return otherwise;
}

int Number(const char* name, int max, int otherwise) {
  const char* value = Get(name);
  if (!value) return otherwise;
  char* end = nullptr;
  const long number = std::strtol(value, &end, 10);
  if (end != value && !*end && number >= 0 && number <= max) return static_cast<int>(number);
  Log(settings::LogLevel::kError, "%s: '%s' is not accepted; accepted: 0 to %d; it counts as %d", name, value, max,
      otherwise);
  return otherwise;
}

void OneOf(const char* name, const char* usual, const char* other) {
  const char* value = Get(name);
  if (!value || !std::strcmp(value, usual) || (other && !std::strcmp(value, other))) return;
  Log(settings::LogLevel::kError, "%s: '%s' is not accepted; accepted: %s%s%s; the default holds", name, value, usual,
      other ? ", " : "", other ? other : "");
}

Config Read() {
  Config config;
  for (const settings::Key& key : settings::Table()) {
    if (key.variable.empty()) continue;
    std::string name(key.variable);
    const char* value = Get(name.c_str());
    if (!value && name == SLUICE_ENV_MEMORY_FACTOR) value = Get((name = SLUICE_ENV_ALIAS_MEMORY_FACTOR).c_str());
    if (!value && name == SLUICE_ENV_LOG_LEVEL) value = Get((name = SLUICE_ENV_ALIAS_LOG_LEVEL).c_str());
    if (!value) continue;
    const std::string error = settings::Set(config.settings, key, value, name);
    if (!error.empty()) Log(settings::LogLevel::kError, "%s; the default holds", error.c_str());
  }
  for (const std::string& error : settings::Conflicts(config.settings, "")) {
    Log(settings::LogLevel::kError, "the variables contradict each other: %s", error.c_str());
  }
  if (const char* limit = Get(SLUICE_ENV_MANAGED_LIMIT)) {
    if (const auto bytes = settings::ParseQuantity(limit)) {
      config.managed_limit = *bytes;
    } else {
      // A limit that cannot be read must not become no limit.
      Log(settings::LogLevel::kError, "%s: '%s' is not accepted; accepted: a quantity such as 8Gi; it counts as 1",
          SLUICE_ENV_MANAGED_LIMIT, limit);
      config.managed_limit = 1;
    }
  }
  OneOf(SLUICE_ENV_BACKEND, "managed", nullptr);
  // The shim's: it has acted on them already.
  OneOf(SLUICE_ENV_ON_ERROR, "run", "stop");
  Flag(SLUICE_ENV_DISABLE, false);
  config.unmanaged = Flag(SLUICE_ENV_UNMANAGED, false);
  config.host_access = Flag(SLUICE_ENV_HOST_ACCESS, true);
  config.discard = Flag(SLUICE_ENV_DISCARD, true);
  config.overwrites = Flag(SLUICE_ENV_OVERWRITES, true);
  config.read_mostly = Flag(SLUICE_ENV_READ_MOSTLY, true);
  config.learn = Flag(SLUICE_ENV_LEARN, true);
  OneOf(SLUICE_ENV_VMM, "managed", "unmanaged");
  config.unmanaged_vmm = Get(SLUICE_ENV_VMM) && std::strcmp(Get(SLUICE_ENV_VMM), "unmanaged") == 0;
  config.eviction_threads = Number(SLUICE_ENV_EVICTION_THREADS, 16, config.eviction_threads);
  if (const char* socket = Get(SLUICE_ENV_SOCKET)) config.socket = socket;
  if (config.settings.log_level) config.log_level = *config.settings.log_level;
  g_log_level = config.log_level;
  return config;
}

}  // namespace

const Config& GetConfig() {
  static const Config& config = *new Config(Read());  // never destroyed: threads may outlive exit
  return config;
}

}  // namespace sluice
