// The one parser of every value that people write: annotations, SLUICE_* variables, `sluice run` flags, `sluice set`,
// allocation.json and the agent's client list. Plain C++20 without other libraries. Pure functions: thread-safe.
#ifndef SLUICE_COMMON_SETTINGS_SETTINGS_H_
#define SLUICE_COMMON_SETTINGS_SETTINGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice::settings {

enum class Id {
  kGpuFraction,
  kGpuMemory,
  kMemoryLimit,
  kVisibleMemory,
  kMemoryFactor,
  kComputeRequest,
  kComputeLimit,
  kPrefetch,
  kLogLevel,
  kInject
};

// One row of the table. `name` is the annotation key without its prefix; `flag` is the option of `sluice run`, empty if
// none.
struct Key {
  Id id;
  std::string_view name;
  std::string_view variable;
  std::string_view flag;
  std::string_view accepted;  // completes the sentence "accepted: ..."
  std::string_view meaning;
  std::string_view default_text;
  bool live;  // may change while the container runs
};

std::span<const Key> Table();
const Key* Find(std::string_view name);  // nullptr: unknown
std::string Names();                     // "gpu-fraction, gpu-memory, ...", for messages about unknown keys
std::string LiveNames();                 // those that may change while the container runs

// The values of the enums are those of proto/sluice/wire.h.
enum class Visible : uint8_t { kBudget = 0, kLimit = 1 };
enum class Prefetch : uint8_t { kOff = 0, kLaunch = 1, kPredict = 2 };
enum class LogLevel : uint8_t { kError = 0, kWarn = 1, kInfo = 2, kDebug = 3 };

// What was said; an empty field was not said, and the default of the table holds.
struct Settings {
  std::optional<uint32_t> gpu_percent;   // 1..100, or 100 per GPU: 200 is two whole GPUs
  std::optional<uint64_t> gpu_memory;    // bytes
  std::optional<uint64_t> memory_limit;  // bytes
  std::optional<Visible> visible;
  std::optional<uint8_t> memory_factor;     // 1..100
  std::optional<uint32_t> compute_request;  // millionths, 1..1000000
  std::optional<uint32_t> compute_limit;    // millionths, 1..1000000
  std::optional<Prefetch> prefetch;
  std::optional<LogLevel> log_level;
  std::optional<bool> inject;

  bool operator==(const Settings&) const = default;
};

// Parses `value` and stores it. Returns an empty string, or the sentence for people, which begins with `field` (however
// the reader wrote it: annotation, variable or flag): "sluice.dev/gpu-fraction: '1.5' is not accepted; accepted: 0.01
// to 1 in steps ...".
std::string Set(Settings& settings, const Key& key, std::string_view value, std::string_view field);

// What only shows in several values together: fraction beside memory, limit below budget, request above limit. Empty:
// none. `prefix` is put before the keys ("sluice.dev/", "--", or nothing).
std::vector<std::string> Conflicts(const Settings& settings, std::string_view prefix);

struct Parsed {
  Settings settings;
  std::vector<std::string> errors;  // empty: all was accepted
  bool ok() const { return errors.empty(); }
};

// A whole map of key (without prefix) to value: unknown keys, each value, and conflicts. All errors are listed, not the
// first only.
Parsed ParseAll(const std::map<std::string, std::string>& values, std::string_view prefix);

// The single kinds of values. nullopt: not accepted.
std::optional<uint32_t> ParseFraction(
    std::string_view text);  // percent: "0.5" 50, "1" 100, "3" 300; steps of 0.01 up to 1, then whole
std::optional<uint64_t> ParseQuantity(
    std::string_view text);  // a positive Kubernetes quantity in bytes, rounded up: "1.5Gi", "2e9", "512M"
std::optional<uint32_t> ParseShare(std::string_view text);  // millionths of (0,1], up to six digits after the point
std::optional<LogLevel> ParseLogLevel(std::string_view text);

// Back to text that the parser accepts and gives the same value.
std::string FormatQuantity(uint64_t bytes);    // "1536Mi": the largest binary unit that is exact
std::string FormatFraction(uint32_t percent);  // "0.5", "2"
std::string FormatShare(uint32_t millionths);  // "0.25"
std::string_view FormatPrefetch(Prefetch value);
std::string_view FormatLogLevel(LogLevel value);
std::string_view FormatVisible(Visible value);
std::map<std::string, std::string> Format(const Settings& settings);  // keys without prefix

// "4.0 GiB": for people only, never parsed.
std::string HumanBytes(uint64_t bytes, int decimals = 1);

}  // namespace sluice::settings

#endif  // SLUICE_COMMON_SETTINGS_SETTINGS_H_
