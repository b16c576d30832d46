// Waits between tries. Includes the C++ library alone: the hooked process uses it, too.
#ifndef SLUICE_COMMON_BACKOFF_H_
#define SLUICE_COMMON_BACKOFF_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <random>

namespace sluice {

// Each wait is twice the one before, up to the longest.
class Backoff {
 public:
  using Wait = std::chrono::milliseconds;
  constexpr Backoff(Wait first, Wait longest) : first_(first), longest_(longest), wait_(first) {}

  Wait current() const { return wait_; }  // what Next() returns now
  Wait Next() {
    const Wait wait = wait_;
    wait_ = std::min(2 * wait_, longest_);
    return wait;
  }
  void Reset() { wait_ = first_; }

 private:
  Wait first_, longest_, wait_;
};

// The same, with up to a third of each wait random, so that a cluster's daemons do not try in step.
class RandomBackoff {
 public:
  RandomBackoff(Backoff::Wait first, Backoff::Wait longest) : steps_(first, longest) {}

  Backoff::Wait Next() {
    const int64_t most = steps_.Next().count();
    return Backoff::Wait(most * 2 / 3 + static_cast<int64_t>(random_()) % (most / 3 + 1));
  }
  void Reset() { steps_.Reset(); }

 private:
  Backoff steps_;
  std::minstd_rand random_{std::random_device{}()};
};

}  // namespace sluice

#endif  // SLUICE_COMMON_BACKOFF_H_
