// Iterations of launches. Each is about one period of the application (a training step, a token), so that one iteration
// predicts the next. The first iteration lasts until a period is known.
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
  // A launch on a stream with this period (0: not known). True: the iteration may be over.
  bool NoteLaunch(uint64_t now, uint64_t period) {
    longest_period_ = std::max(longest_period_, period);
    if (number_ != 1) return now - begin_ >= length_;
    if (!first_launch_) first_launch_ = now;
    return true;
  }
  // Whether the uses of a launch at `now` count for the iteration. Whole periods count, so that a chunk that is used
  // once a period counts once in each iteration, wherever that begins.
  bool Counts(uint64_t now) const { return now - begin_ <= counted_; }
  // Whether a launch at `now` cannot end the iteration, whatever its stream's period.
  bool CannotEnd(uint64_t now) const { return number_ != 1 && now - begin_ < length_; }
  // Whether the iteration is over. `confident`: launches of the stream follow the prediction.
  bool IsOver(uint64_t now, bool confident) const;
  // The next iteration begins.
  void Begin(uint64_t now);
  // Whether the chunk has been live for a period in which no launch used it that is known to require it resident,
  // except `id` itself.
  bool IsLongLived(const Chunk& chunk, uint64_t id, uint64_t now) const {
    // Before a period is known: chunks that were live when the first launch was looked at, which was for want of room.
    if (number_ == 1 ? chunk.live_since >= first_launch_ : chunk.live_since + length_ * 8 / 9 > now) return false;
    return chunk.required_until <= now || chunk.required_by == id;
  }

 private:
  uint64_t number_ = 1, begin_ = 0, length_ = 4096;
  uint64_t counted_ = length_;   // launches of the iteration that count
  uint64_t longest_period_ = 0;  // in this iteration
  uint64_t first_launch_ = 0;    // that was looked at
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_PREDICT_ITERATIONS_H_
