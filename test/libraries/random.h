// The same numbers in every run.
#ifndef SLUICE_TEST_LIBRARIES_RANDOM_H_
#define SLUICE_TEST_LIBRARIES_RANDOM_H_

#include <cstdint>

namespace sluice::libraries::test {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    return state_ ^= state_ << 17;
  }
  int64_t In(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
  }
  bool OneIn(int n) { return Next() % static_cast<uint64_t>(n) == 0; }

 private:
  uint64_t state_;
};

}  // namespace sluice::libraries::test

#endif  // SLUICE_TEST_LIBRARIES_RANDOM_H_
