// The table of settings, and what holds between them.
#include "common/settings/settings.h"

#include <array>

#include "sluice/names.h"

namespace sluice::settings {
namespace {

constexpr std::string_view kQuantityText = "a Kubernetes quantity of bytes from 1Mi on, as 4Gi or 512M";
constexpr std::string_view kShareText = "a number above 0 and up to 1, as 0.25";

constexpr std::array<Key, 10> kTable = {{
    {Id::kGpuFraction, SLUICE_KEY_GPU_FRACTION, SLUICE_ENV_GPU_FRACTION, "--fraction",
     "0.01 to 1 in steps of 0.01, or a whole number of GPUs up to 16",
     "share of one GPU: memory budget and compute weight", "", false},
    {Id::kGpuMemory, SLUICE_KEY_GPU_MEMORY, SLUICE_ENV_GPU_MEMORY, "--memory", kQuantityText,
     "resident budget in bytes, instead of a fraction", "", false},
    {Id::kMemoryLimit, SLUICE_KEY_MEMORY_LIMIT, SLUICE_ENV_MEMORY_LIMIT, "--memory-limit", kQuantityText,
     "bytes that may be live, resident or not", "the card's memory", true},
    {Id::kVisibleMemory, SLUICE_KEY_VISIBLE_MEMORY, SLUICE_ENV_VISIBLE_MEMORY, "--visible-memory", "budget, limit",
     "what memory queries report as the total", "budget", false},
    {Id::kMemoryFactor, SLUICE_KEY_MEMORY_FACTOR, SLUICE_ENV_MEMORY_FACTOR, "--memory-factor",
     "a whole number from 1 to 100", "percent of the budget that tracked blocks may fill", "chosen from what is seen",
     true},
    {Id::kComputeRequest, SLUICE_KEY_COMPUTE_REQUEST, SLUICE_ENV_COMPUTE_REQUEST, "--compute-request", kShareText,
     "guaranteed share of GPU time", "the fraction, at most compute-limit", true},
    {Id::kComputeLimit, SLUICE_KEY_COMPUTE_LIMIT, SLUICE_ENV_COMPUTE_LIMIT, "--compute-limit", kShareText,
     "largest share of GPU time", "1", true},
    {Id::kPrefetch, SLUICE_KEY_PREFETCH, SLUICE_ENV_PREFETCH, "--prefetch", "off, launch, predict",
     "demand faults only, at launch, or at launch plus predicted launches", "predict", true},
    {Id::kLogLevel, SLUICE_KEY_LOG_LEVEL, SLUICE_ENV_LOG_LEVEL, "--log-level", "ERROR, WARN, INFO, DEBUG",
     "what the hook says on stderr", "WARN", true},
    {Id::kInject, SLUICE_KEY_INJECT, "", "", "true, false", "false leaves this pod alone", "true", false},
}};

template <typename T>
bool Store(std::optional<T>& field, std::optional<T> value) {
  if (!value) return false;
  field = value;
  return true;
}

std::optional<Visible> ParseVisible(std::string_view v) {
  if (v == "budget") return Visible::kBudget;
  if (v == "limit") return Visible::kLimit;
  return std::nullopt;
}

std::optional<Prefetch> ParsePrefetch(std::string_view v) {
  if (v == "off") return Prefetch::kOff;
  if (v == "launch") return Prefetch::kLaunch;
  if (v == "predict") return Prefetch::kPredict;
  return std::nullopt;
}

std::optional<bool> ParseBool(std::string_view v) {
  if (v == "true") return true;
  if (v == "false") return false;
  return std::nullopt;
}

// A number that was meant as MiB or GiB and lacks its suffix would be a budget of a few KiB, in which nothing runs.
std::optional<uint64_t> ParseMemory(std::string_view v) {
  const auto bytes = ParseQuantity(v);
  return bytes && *bytes >= uint64_t{1} << 20 ? bytes : std::nullopt;
}

std::optional<uint8_t> ParseFactor(std::string_view v) {
  if (v.empty() || v.size() > 3) return std::nullopt;
  unsigned n = 0;
  for (const char c : v) {
    if (c < '0' || c > '9') return std::nullopt;
    n = n * 10 + static_cast<unsigned>(c - '0');
  }
  if (n < 1 || n > 100) return std::nullopt;
  return static_cast<uint8_t>(n);
}

bool Assign(Settings& s, Id id, std::string_view v) {
  switch (id) {
    case Id::kGpuFraction:
      return Store(s.gpu_percent, ParseFraction(v));
    case Id::kGpuMemory:
      return Store(s.gpu_memory, ParseMemory(v));
    case Id::kMemoryLimit:
      return Store(s.memory_limit, ParseMemory(v));
    case Id::kVisibleMemory:
      return Store(s.visible, ParseVisible(v));
    case Id::kMemoryFactor:
      return Store(s.memory_factor, ParseFactor(v));
    case Id::kComputeRequest:
      return Store(s.compute_request, ParseShare(v));
    case Id::kComputeLimit:
      return Store(s.compute_limit, ParseShare(v));
    case Id::kPrefetch:
      return Store(s.prefetch, ParsePrefetch(v));
    case Id::kLogLevel:
      return Store(s.log_level, ParseLogLevel(v));
    case Id::kInject:
      return Store(s.inject, ParseBool(v));
  }
  return false;
}

std::string Join(bool live_only) {
  std::string out;
  for (const Key& k : kTable) {
    if (live_only && !k.live) continue;
    if (!out.empty()) out += ", ";
    out += k.name;
  }
  return out;
}

// A value as it goes into a message: long ones are cut, what is not printable is shown as '?', so that a message stays
// one line.
std::string Shown(std::string_view value) {
  std::string out;
  for (const char c : value.substr(0, 64)) out += (c >= ' ' && c < 127) ? c : '?';
  return value.size() > 64 ? out + "..." : out;
}

}  // namespace

std::span<const Key> Table() { return kTable; }

const Key* Find(std::string_view name) {
  for (const Key& k : kTable) {
    if (k.name == name) return &k;
  }
  return nullptr;
}

std::string Names() { return Join(false); }
std::string LiveNames() { return Join(true); }

std::string Set(Settings& settings, const Key& key, std::string_view value, std::string_view field) {
  if (Assign(settings, key.id, value)) return {};
  return std::string(field) + ": '" + Shown(value) + "' is not accepted; accepted: " + std::string(key.accepted);
}

std::vector<std::string> Conflicts(const Settings& s, std::string_view prefix) {
  std::vector<std::string> out;
  const std::string p(prefix);
  const auto name = [&](std::string_view key, std::string_view flag) {
    return prefix == "--" ? std::string(flag) : p + std::string(key);
  };
  if (s.gpu_percent && s.gpu_memory) {
    out.push_back(name(SLUICE_KEY_GPU_MEMORY, "--memory") + ": '" + FormatQuantity(*s.gpu_memory) + "' beside " +
                  name(SLUICE_KEY_GPU_FRACTION, "--fraction") + " '" + FormatFraction(*s.gpu_percent) +
                  "' is not accepted; accepted: one of the two");
  }
  if (s.gpu_memory && s.memory_limit && *s.memory_limit < *s.gpu_memory) {
    out.push_back(p + SLUICE_KEY_MEMORY_LIMIT + ": '" + FormatQuantity(*s.memory_limit) +
                  "' is not accepted; accepted: at least the budget, " + FormatQuantity(*s.gpu_memory));
  }
  // A request that was not said follows the fraction and the limit, whichever is smaller; only a said one can
  // contradict.
  if (s.compute_limit && s.compute_request && *s.compute_limit < *s.compute_request) {
    out.push_back(p + SLUICE_KEY_COMPUTE_LIMIT + ": '" + FormatShare(*s.compute_limit) +
                  "' is not accepted; accepted: at least " SLUICE_KEY_COMPUTE_REQUEST ", " +
                  FormatShare(*s.compute_request));
  }
  return out;
}

Parsed ParseAll(const std::map<std::string, std::string>& values, std::string_view prefix) {
  Parsed out;
  for (const auto& [name, value] : values) {
    const std::string field = std::string(prefix) + name;
    const Key* key = Find(name);
    if (key == nullptr) {
      out.errors.push_back(field + ": this key is unknown; accepted: " + Names());
      continue;
    }
    std::string error = Set(out.settings, *key, value, field);
    if (!error.empty()) out.errors.push_back(std::move(error));
  }
  for (std::string& c : Conflicts(out.settings, prefix)) out.errors.push_back(std::move(c));
  return out;
}

std::map<std::string, std::string> Format(const Settings& s) {
  std::map<std::string, std::string> out;
  if (s.gpu_percent) out[SLUICE_KEY_GPU_FRACTION] = FormatFraction(*s.gpu_percent);
  if (s.gpu_memory) out[SLUICE_KEY_GPU_MEMORY] = FormatQuantity(*s.gpu_memory);
  if (s.memory_limit) out[SLUICE_KEY_MEMORY_LIMIT] = FormatQuantity(*s.memory_limit);
  if (s.visible) out[SLUICE_KEY_VISIBLE_MEMORY] = FormatVisible(*s.visible);
  if (s.memory_factor) out[SLUICE_KEY_MEMORY_FACTOR] = std::to_string(*s.memory_factor);
  if (s.compute_request) out[SLUICE_KEY_COMPUTE_REQUEST] = FormatShare(*s.compute_request);
  if (s.compute_limit) out[SLUICE_KEY_COMPUTE_LIMIT] = FormatShare(*s.compute_limit);
  if (s.prefetch) out[SLUICE_KEY_PREFETCH] = FormatPrefetch(*s.prefetch);
  if (s.log_level) out[SLUICE_KEY_LOG_LEVEL] = FormatLogLevel(*s.log_level);
  if (s.inject) out[SLUICE_KEY_INJECT] = *s.inject ? "true" : "false";
  return out;
}

}  // namespace sluice::settings
