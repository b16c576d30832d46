// The one parser of every value that people write: annotations, SLUICE_* variables, `sluice run` flags, `sluice set`,
// allocation.json and the agent's list `clients`. All settings: proto/settings.def. C++20 without other libraries.
// Pure functions: thread-safe.
#ifndef SLUICE_COMMON_SETTINGS_SETTINGS_H_
#define SLUICE_COMMON_SETTINGS_SETTINGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "sluice/wire.h"

namespace sluice::settings {

// The values of the enums are those of sluice/wire.h.
enum class Visible : uint8_t { kBudget = SLUICE_VISIBLE_BUDGET, kLimit = SLUICE_VISIBLE_LIMIT };
enum class Priority : uint8_t {
  kGuaranteed = SLUICE_PRIORITY_GUARANTEED,
  kOpportunistic = SLUICE_PRIORITY_OPPORTUNISTIC
};
enum class Prefetch : uint8_t {
  kOff = SLUICE_PREFETCH_OFF,
  kLaunch = SLUICE_PREFETCH_LAUNCH,
  kPredict = SLUICE_PREFETCH_PREDICT
};
enum class LogLevel : uint8_t {
  kError = SLUICE_LOG_ERROR,
  kWarn = SLUICE_LOG_WARN,
  kInfo = SLUICE_LOG_INFO,
  kDebug = SLUICE_LOG_DEBUG
};

// One kind of value. `format` gives text that `parse` reads back to the same value.
template <typename T>
struct ValueKind {
  using Value = T;
  std::optional<T> (*parse)(std::string_view text);  // nullopt: not accepted
  std::string (*format)(T value);
  std::string accepted;  // completes the sentence "accepted: ..."
};

// The kinds that proto/settings.def names.
namespace kinds {
const ValueKind<uint32_t>& Fraction();  // percent of one GPU: 1..100, or 100 for each of several: 200 is two whole GPUs
const ValueKind<uint32_t>& Count();     // of GPUs: 1..SLUICE_MAX_GPUS
const ValueKind<uint64_t>& Memory();    // bytes, at least 1 MiB
const ValueKind<uint32_t>& Share();     // millionths, 1..1000000
const ValueKind<uint32_t>& Percent();   // 1..100
const ValueKind<uint32_t>& Duration();  // seconds, 1..2592000 (30 days); 0: "off"
const ValueKind<settings::Visible>& VisibleMemory();
const ValueKind<settings::Priority>& Priority();
const ValueKind<settings::Prefetch>& PrefetchMode();
const ValueKind<settings::LogLevel>& Level();
const ValueKind<bool>& Boolean();
}  // namespace kinds

enum class Id {
#define SLUICE_SETTING(id, ...) id,
#include "settings.def"
};

enum class Change { kLive, kSize, kFixed };

// One row of proto/settings.def, which explains the members.
struct Key {
  Id id;
  std::string_view name;
  std::string_view variable;
  std::string_view flag;
  std::string_view accepted;
  std::string_view meaning;
  std::string_view default_text;
  std::string_view good, bad;
  bool settable;  // may change while a container runs: by the pod's annotations, `sluice set`, the agent's `clients`
};

std::span<const Key> Table();
const Key* Find(std::string_view name);  // nullptr: unknown
const Key& Of(Id id);
std::string Names();          // "gpu-fraction, gpu-memory, ...", for messages about unknown keys
std::string SettableNames();  // of those that may change while a container runs

// The values that were given. An empty field: the default of its row holds.
struct Settings {
#define SLUICE_SETTING(id, field, key, variable, flag, kind, ...) \
  std::optional<std::remove_cvref_t<decltype(kinds::kind())>::Value> field;
#include "settings.def"

  bool operator==(const Settings&) const = default;
};

// Parses `value` and stores it. Returns an empty string, or the sentence for people. It begins with `field`, the name
// as the reader wrote it (annotation, variable or flag): "sluice.dev/gpu-fraction: '1.5' is not accepted; accepted:
// 0.01 to 1 in steps ...".
std::string Set(Settings& settings, const Key& key, std::string_view value, std::string_view field);

// Contradictions between several values: a fraction beside memory, whole GPUs beside a number of GPUs, a limit below
// the budget or the request. Empty: none. `prefix` is put before the keys ("sluice.dev/"); "--": the flags.
std::vector<std::string> Conflicts(const Settings& settings, std::string_view prefix);

// Puts the values of `from` over those of `to`. A fraction and an amount of memory exclude each other: the one in
// `from` wins. Settings about the pod alone are left out.
void Layer(Settings& to, const Settings& from);

// Writes the settings whose rows are marked Sent into the BUDGET frame.
void FillBudget(const Settings& settings, sluice_budget& budget);

struct Parsed {
  Settings settings;
  std::vector<std::string> errors;  // empty: everything was accepted
  bool ok() const { return errors.empty(); }
};

// A whole map of key (without prefix) to value: unknown keys, each value, and conflicts. Lists all errors, not only the
// first.
Parsed ParseAll(const std::map<std::string, std::string>& values, std::string_view prefix);
std::map<std::string, std::string> Format(const Settings& settings);  // keys without prefix

// Single values. nullopt: not accepted.
std::optional<uint32_t> ParseFraction(
    std::string_view text);  // percent: "0.5" 50, "1" 100, "3" 300; steps of 0.01 up to 1, then whole
std::optional<uint64_t> ParseQuantity(
    std::string_view text);  // a positive Kubernetes quantity in bytes, rounded up: "1.5Gi", "2e9", "512M"
std::optional<uint32_t> ParseShare(std::string_view text);  // millionths of (0,1], up to six digits after the point

// Seconds of "90s", "10m" or "1h30m", up to 30 days; 0 of "off".
std::optional<uint32_t> ParseDuration(std::string_view text);

// Back to text that the parser accepts and gives the same value.
std::string FormatQuantity(uint64_t bytes);    // "1536Mi": the largest binary unit that is exact
std::string FormatFraction(uint32_t percent);  // "0.5", "2"
std::string FormatShare(uint32_t millionths);  // "0.25"
std::string FormatDuration(uint32_t seconds);  // "1h30m"; "off"

// "4.0 GiB": for people only, never parsed.
std::string HumanBytes(uint64_t bytes, int decimals = 1);

}  // namespace sluice::settings

#endif  // SLUICE_COMMON_SETTINGS_SETTINGS_H_
