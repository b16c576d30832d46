// The fast path: launches of a repeating iteration whose sets are resident (Residency::steady_set).
//
// As long as only launches take the device's lock, and no plan has an action, such a launch need not be looked at
// beyond its words: their hash says which set it has. Two launches of one hash would be taken for one another; as with
// any access set, a wrong one costs faults. With the device's lock held, except HasEntries.
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
  // A launch has just taken the lock; `acquisitions` counts all takers. Whether only launches have had the lock since
  // the last launch.
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
  uint64_t generation_ = 1;  // older entries are outdated
  std::vector<Entry> entries_;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_STEADY_LAUNCH_FAST_PATH_H_
