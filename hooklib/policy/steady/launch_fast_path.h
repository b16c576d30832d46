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
  bool HasEntries() const { return has_entries_.load(std::memory_order_relaxed); }
  // A launch has just taken the lock, which was taken so many times in all: whether nobody else had it since the last
  // launch did.
  bool NoteLocked(uint64_t acquisitions) {
    const bool only = acquisitions == acquisitions_ + 1;
    acquisitions_ = acquisitions;
    if (!only) Clear();
    return only;
  }
  void Clear() {
    ++generation_;
    has_entries_.store(false, std::memory_order_relaxed);
  }
  SteadySets::Set* Find(uint64_t key) const {
    if (entries_.empty()) return nullptr;
    const Entry& entry = entries_[key >> kShift];
    return entry.key == key && entry.generation == generation_ ? entry.set : nullptr;
  }
  void Remember(uint64_t key, SteadySets::Set* set) {
    if (entries_.empty()) entries_.resize(size_t{1} << (64 - kShift));
    entries_[key >> kShift] = {key, generation_, set};
    has_entries_.store(true, std::memory_order_relaxed);
  }

 private:
  static constexpr int kShift = 64 - 11;
  struct Entry {
    uint64_t key = 0, generation = 0;
    SteadySets::Set* set = nullptr;
  };
  std::atomic<bool> has_entries_{false};
  uint64_t acquisitions_ = 0;
  uint64_t generation_ = 1;  // nothing older counts
  std::vector<Entry> entries_;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_STEADY_LAUNCH_FAST_PATH_H_
