// How counters of several processes become one: the rules of proto/counters.def. Pure, thread-safe.
#ifndef SLUICE_COMMON_COUNTER_RULES_H_
#define SLUICE_COMMON_COUNTER_RULES_H_

#include <algorithm>

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

}  // namespace sluice

#endif  // SLUICE_COMMON_COUNTER_RULES_H_
