// How counters of several processes become one: the rules of proto/counters.def. Pure, thread-safe.
#ifndef SLUICE_COMMON_COUNTER_RULES_H_
#define SLUICE_COMMON_COUNTER_RULES_H_

#include <algorithm>
#include <string_view>

namespace sluice {

enum class CounterRule { kEach, kNow, kHighest, kTotal, kPeak };

// Whether the counter of a process that ended still counts.
constexpr bool OutlivesProcess(CounterRule rule) { return rule == CounterRule::kTotal || rule == CounterRule::kPeak; }

// `sum` with the value of one more process.
template <CounterRule kRule, typename T>
constexpr T Combined(T sum, T value) {
  if constexpr (kRule == CounterRule::kEach) {
    return sum;
  } else if constexpr (kRule == CounterRule::kHighest || kRule == CounterRule::kPeak) {
    return std::max(sum, value);
  } else {
    return static_cast<T>(sum + value);
  }
}

// The key of a counter in the exit line of a process: its metric's name without the product's prefix and Prometheus'
// suffix. "" for a counter that is no metric.
constexpr std::string_view ExitLineKey(std::string_view metric) {
  constexpr std::string_view kPrefix = "sluice_", kSuffix = "_total";
  if (metric.starts_with(kPrefix)) metric.remove_prefix(kPrefix.size());
  if (metric.ends_with(kSuffix)) metric.remove_suffix(kSuffix.size());
  return metric;
}

}  // namespace sluice

#endif  // SLUICE_COMMON_COUNTER_RULES_H_
