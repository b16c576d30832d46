// Random numbers that are the same with every standard library (the distributions of std are not).
#ifndef SLUICE_SCHEDULER_PLACEMENT_RANDOM_H_
#define SLUICE_SCHEDULER_PLACEMENT_RANDOM_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

namespace sluice::scheduler {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  // 0..bound-1. The remainder's bias is below 2^-40 for every bound used here.
  std::uint64_t Below(std::uint64_t bound) { return engine_() % bound; }
  // [0, 1)
  double Unit() { return static_cast<double>(engine_() >> 11) * 0x1.0p-53; }

  template <typename T>
  void Shuffle(std::vector<T>& items) {
    for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[Below(i)]);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_RANDOM_H_
