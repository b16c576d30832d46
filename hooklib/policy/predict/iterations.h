// Iterations of launches: each is about one round of the application (a training step, a token), so that what was seen
// in the last one is likely to be so in the next. Before a round is known the first window is as long as it takes.
//
// Times and lengths are launches, device-wide. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_PREDICT_ITERATIONS_H_
#define SLUICE_HOOKLIB_POLICY_PREDICT_ITERATIONS_H_

#include <algorithm>
#include <cstdint>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

class Iterations {
 public:
  uint64_t number() const { return number_; }  // from 1
  uint64_t length() const { return length_; }
  // A launch came, on a stream whose rounds are so long (0: not known). True: the window may be over.
  bool NoteLaunch(uint64_t now, uint64_t period) {
    longest_period_ = std::max(longest_period_, period);
    if (number_ != 1) return now - begin_ >= length_;
    if (!first_launch_) first_launch_ = now;
    return true;
  }
  // Whether a launch that comes now cannot end it, whatever its stream's rounds are.
  bool CannotEnd(uint64_t now) const { return number_ != 1 && now - begin_ < length_; }
  // Whether it is. `confident`: launches of the stream come as predicted.
  bool IsOver(uint64_t now, bool confident) const;
  // The next one begins.
  void Begin(uint64_t now);
  // Whether the chunk has been alive for a round, in which no launch has used it that is known to need it on the card,
  // but for `id` itself.
  bool IsLongLived(const Chunk& chunk, uint64_t id, uint64_t now) const {
    // Before a round is known: what was there when launches were first looked at, since there was too much of it.
    if (number_ == 1 ? chunk.live_since >= first_launch_ : chunk.live_since + length_ * 8 / 9 > now) return false;
    return chunk.required_until <= now || chunk.required_by == id;
  }

 private:
  uint64_t number_ = 1, begin_ = 0, length_ = 4096;
  uint64_t longest_period_ = 0;  // in this window
  uint64_t first_launch_ = 0;    // that was looked at
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_PREDICT_ITERATIONS_H_
