// Vector clocks: which work is known to be done before other work begins (Lamport's happens-before; Mattern 1989).
#ifndef SLUICE_TEST_DIFFERENTIAL_ORDER_H_
#define SLUICE_TEST_DIFFERENTIAL_ORDER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace differential {

// The at-th piece of work of a stream's line; `line` -1: none.
struct Stamp {
  int line = -1;
  uint32_t at = 0;
};

class Clock {
 public:
  bool Has(Stamp stamp) const {
    return stamp.line < 0 || (static_cast<size_t>(stamp.line) < seen_.size() && seen_[Index(stamp)] >= stamp.at);
  }
  void Add(Stamp stamp) {
    if (seen_.size() <= Index(stamp)) seen_.resize(Index(stamp) + 1);
    seen_[Index(stamp)] = std::max(seen_[Index(stamp)], stamp.at);
  }
  void Join(const Clock& other) {
    if (seen_.size() < other.seen_.size()) seen_.resize(other.seen_.size());
    for (size_t i = 0; i < other.seen_.size(); ++i) seen_[i] = std::max(seen_[i], other.seen_[i]);
  }

 private:
  static size_t Index(Stamp stamp) { return static_cast<size_t>(stamp.line); }
  std::vector<uint32_t> seen_;
};

}  // namespace differential

#endif  // SLUICE_TEST_DIFFERENTIAL_ORDER_H_
