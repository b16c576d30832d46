// When the work of a program that fits its budget is looked at. While everything fits no launch is planned, and nothing
// would tell which chunks are used.
//
// So work is looked at in windows. A window ends when as many calls as before found no chunk that was new in it: it
// then holds two repetitions of whatever the program repeats. Between windows nothing is looked at, for 400 times the
// time that the looks took: launches pay for reading their parameters as well, so this bounds the whole to half a
// percent. Each window stamps all chunks in use anew, so a pause of 20 s loses none that is used within every minute.
//
// Times are nanoseconds of one monotonic clock; its seconds stamp the chunks. Not thread-safe: the device's lock is
// held.
#ifndef SLUICE_HOOKLIB_POLICY_WORKING_SET_USE_WATCH_H_
#define SLUICE_HOOKLIB_POLICY_WORKING_SET_USE_WATCH_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

class UseWatch {
 public:
  static constexpr uint64_t kSecondNs = 1'000'000'000;
  // The time in seconds, as chunks are stamped with it; never 0, which stands for "not used".
  static uint32_t SecondOf(uint64_t now_ns) { return static_cast<uint32_t>(now_ns / kSecondNs) + 1; }

  bool is_open() const { return opened_second_ != 0; }
  uint32_t opened_second() const { return opened_second_; }
  // Whether no window is open, and the pause since the last one is over.
  bool MayOpen(uint64_t now_ns) const { return !is_open() && now_ns >= paused_until_ns_; }
  void Open(uint64_t now_ns) {
    opened_second_ = SecondOf(now_ns);
    calls_ = calls_at_find_ = spent_ns_ = 0;
  }
  // Whether this range was stamped in this second before: most launches name the same blocks.
  bool IsStamped(const Extent& range, uint32_t second) {
    Stamped& known = stamped_[(range.base / kChunkBytes ^ range.bytes) % stamped_.size()];
    if (known.range == range && known.second == second) return true;
    known = {range, second};
    return false;
  }
  // A call was looked at from `began_ns` to `now_ns`, and `found` chunks were new in this window. True: the window is
  // over.
  bool Count(size_t found, uint64_t began_ns, uint64_t now_ns) {
    ++calls_;
    if (found) calls_at_find_ = calls_;
    spent_ns_ += now_ns - began_ns;
    if (calls_ < 2 * calls_at_find_ + kMinCalls && spent_ns_ < kMaxSpentNs) return false;
    Close(now_ns);
    return true;
  }
  void Close(uint64_t now_ns) {
    opened_second_ = 0;
    paused_until_ns_ = now_ns + std::clamp(kPausePerSpent * spent_ns_, kMinPauseNs, kMaxPauseNs);
  }

 private:
  static constexpr uint64_t kMinCalls = 64;
  static constexpr uint64_t kPausePerSpent = 400;
  // The next window's stamps have other seconds than the last one's.
  static constexpr uint64_t kMinPauseNs = kSecondNs, kMaxPauseNs = 20 * kSecondNs;
  static constexpr uint64_t kMaxSpentNs = kMaxPauseNs / kPausePerSpent;
  struct Stamped {
    Extent range;
    uint32_t second = 0;
  };
  uint32_t opened_second_ = 0;  // 0: no window is open
  uint64_t calls_ = 0, calls_at_find_ = 0, spent_ns_ = 0, paused_until_ns_ = 0;
  std::array<Stamped, 64> stamped_{};
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_WORKING_SET_USE_WATCH_H_
