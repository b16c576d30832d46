// Launches that are told in brief: they go round while all that they name stands on the card (Residency::again).
//
// As long as nobody but launches takes the device's lock, and none of these has anything done, such a launch need not
// be looked at any more than its words: a hash of these says which set it has. Two launches of one hash would be taken
// for one another; as with any belief about what a launch touches, that would cost faults. With the device's lock held,
// but for Any.
#ifndef SLUICE_HOOKLIB_POLICY_STEADY_LAUNCH_FAST_PATH_H_
#define SLUICE_HOOKLIB_POLICY_STEADY_LAUNCH_FAST_PATH_H_

#include <atomic>
#include <cstdint>
#include <vector>

#include "hooklib/policy/steady/steady_sets.h"

namespace sluice::policy {

class LaunchFastPath {
 public:
  // Whether Find may answer; without the lock.
  bool Any() const { return any_.load(std::memory_order_relaxed); }
  // A launch has just taken the lock, which was taken so many times in all: whether nobody else had it since the last
  // launch did.
  bool OnlyLaunches(uint64_t times) {
    const bool only = times == times_ + 1;
    times_ = times;
    if (!only) Forget();
    return only;
  }
  void Forget() {
    ++as_of_;
    any_.store(false, std::memory_order_relaxed);
  }
  SteadySets::Set* Find(uint64_t key) const {
    if (known_.empty()) return nullptr;
    const Known& known = known_[key >> kShift];
    return known.key == key && known.as_of == as_of_ ? known.set : nullptr;
  }
  void Keep(uint64_t key, SteadySets::Set* set) {
    if (known_.empty()) known_.resize(size_t{1} << (64 - kShift));
    known_[key >> kShift] = {key, as_of_, set};
    any_.store(true, std::memory_order_relaxed);
  }

 private:
  static constexpr int kShift = 64 - 11;
  struct Known {
    uint64_t key = 0, as_of = 0;
    SteadySets::Set* set = nullptr;
  };
  std::atomic<bool> any_{false};
  uint64_t times_ = 0;
  uint64_t as_of_ = 1;  // nothing older counts
  std::vector<Known> known_;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_STEADY_LAUNCH_FAST_PATH_H_
