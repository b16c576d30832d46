// The position of the predictor's log that the present repeats, by ids alone: for programs whose memory lies at new
// addresses in each iteration, so that no launch repeats another's chunks.
//
// A loop over equal layers repeats its ids, too. Its end corrects the position: behind it the last three ids stood
// together one iteration ago. So a position is only given once all launches of a period have followed it. Not
// thread-safe.
#ifndef SLUICE_HOOKLIB_POLICY_PREDICT_ID_CURSOR_H_
#define SLUICE_HOOKLIB_POLICY_PREDICT_ID_CURSOR_H_

#include <cstddef>
#include <cstdint>

#include "hooklib/memory/zero_pages.h"
#include "hooklib/policy/predict/launch_log.h"

namespace sluice::policy {

class IdCursor {
 public:
  // Launch `id` gets this position (from 1, rising). `has`: whether a position, from 1, has an id and is remembered.
  // Returns the position that it repeats; 0: none is known. May throw std::bad_alloc.
  template <typename F>
  uint64_t Follow(uint64_t id, uint64_t pos, F has) {
    if (buckets_.empty()) buckets_.Allocate(size_t{1} << (64 - kBucketShift));
    uint64_t& newest = buckets_[LaunchHash::Mix(LaunchHash::Mix(last_[0], last_[1]), id) >> kBucketShift];
    if (cursor_ != 0 && has(cursor_ + 1, id)) {
      ++cursor_;
      ++streak_;
    } else {
      const bool stood = newest > 2 && has(newest, id) && has(newest - 1, last_[1]) && has(newest - 2, last_[0]);
      cursor_ = stood ? newest : 0;
      streak_ = 0;
    }
    newest = pos;
    last_[0] = last_[1];
    last_[1] = id;
    const uint64_t period = pos - cursor_;
    return cursor_ != 0 && period >= kMinPeriod && streak_ >= period ? cursor_ : 0;
  }

 private:
  static constexpr uint64_t kMinPeriod = 64;    // launches: a shorter one may be a loop's over layers
  static constexpr int kBucketShift = 64 - 15;  // a hash's best bits are its highest

  memory::ZeroPages<uint64_t> buckets_;  // by a part of the last three ids' hash: the newest such position
  uint64_t last_[2] = {0, 0};            // ids of the last two launches
  uint64_t cursor_ = 0, streak_ = 0;     // launches that followed it
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_PREDICT_ID_CURSOR_H_
