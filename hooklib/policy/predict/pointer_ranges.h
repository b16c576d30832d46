// Which part of a block launches of a kind use around a pointer of which nobody says how far it reaches: learnt from
// the pages on which a few of them faulted.
//
// A program that cuts its blocks out of one allocation itself gives its kernels pointers that may mean all of it. Where
// that is more than can be held, all comes by faults, and the driver's records tell on which pages. What was seen a few
// times, lies close together and does not move with the pointer is believed: the next launches of the kind (function
// and grid) name so much around their pointers, and no more. Belief, never proof: where it is wrong faults bring the
// rest, are counted, and such a launch is watched again. Records make faults a third dearer and the host waits for a
// launch that is watched, so this is done a few times for each kind; where the pages differ from launch to launch
// (rows that are looked up) it is given up for good. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_PREDICT_POINTER_RANGES_H_
#define SLUICE_HOOKLIB_POLICY_PREDICT_POINTER_RANGES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "hooklib/memory/types.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

// A word of a launch that leads into a block of which nobody has told a part.
struct UnboundedPointer {
  size_t word_index = 0;  // among the launch's words
  Va pointer = 0;
  Extent block;
};

struct PointerRangeStats {
  uint64_t learned = 0;  // of which something is believed now
  uint64_t given_up = 0;
  uint64_t watched = 0;   // launches whose pages were told
  uint64_t narrowed = 0;  // launches that named less for it
  uint64_t wrong = 0;     // times that a kind was seen to use more than was believed
};

class PointerRanges {
 public:
  static constexpr uint64_t kMinBlockBytes = uint64_t{16} << 20;  // a smaller block is named whole

  // Whether anything was ever asked of it: the way of launches in a program that has no such kind.
  bool empty() const { return records_.empty(); }
  // What word number `place` of a launch of the kind means of the block around it: all, or what was learnt.
  Extent Narrow(uint64_t id, size_t word_index, Va pointer, Extent block) const;
  // A launch of the kind named more than can be held, loose words among what it named.
  void NoteTooLarge(uint64_t id);
  // The next launch of the kind should be watched: alone on the card, with the pages told on which it faults.
  bool ShouldWatch(uint64_t id) const {
    if (watching_ == 0) return false;
    const LaunchRecord* const record = RecordOf(id);
    return record && record->is_watched && record->blind_launches == 0;
  }
  bool watches_any() const { return watching_ != 0; }
  // Such a launch finds all that it names on the card or mapped, so that it faults on nothing: not asked about again
  // for ever more launches.
  void NoteAllResident(uint64_t id);
  // Whether something is believed of the kind.
  bool IsLearned(uint64_t id) const {
    const LaunchRecord* const record = RecordOf(id);
    return record && record->is_learned;
  }
  enum class Outcome : uint8_t { kNothing, kLearned, kWidened, kGivenUp };
  // Such a launch ran, and faulted on these pages, each once and in order. `there`: whether a page may have been on the
  // card or mapped before it, so that it says nothing that it did not fault. What follows.
  Outcome Observe(uint64_t id, std::span<const UnboundedPointer> words, std::span<const Va> pages,
                  const std::function<bool(Va)>& there);
  // Such a launch could not be watched: others worked beside it, or records were lost.
  void NoteUnwatched(uint64_t id);
  // A launch of the kind names less than its blocks; so many faults were counted so far, of whatever work. True where
  // it may have used more of them: that is to be sent away, and the next launches of the kind are watched.
  bool NoteNarrowed(uint64_t id, uint64_t faults);
  // Nothing more is to be learnt: nobody can watch.
  void Stop();
  const PointerRangeStats& stats() const { return stats_; }

 private:
  struct Range {
    size_t word_index = 0;
    bool seen = false;                            // it was faulted on
    int64_t begin = 0, end = 0;                   // from the pointer
    uint32_t steady = 0;                          // times in a row that nothing else was
    bool begin_known = false, end_known = false;  // what lies beside it was not there, and did not fault
  };
  struct LaunchRecord {
    bool is_watched = true, is_learned = false, given_up = false;
    uint32_t watched = 0, empty = 0, sparse = 0, blank = 0, unwatched = 0, wrong = 0;
    uint32_t blind_launches = 0,
             blind_times = 0;        // launches until it is asked about again; times in a row that all was there
    uint32_t pause_launches = 0;     // launches between two looks at the faults
    uint64_t launches = 0;           // that named less
    uint64_t look_at = 0;            // of these
    uint64_t wrong_at = 0;           // of these
    std::optional<uint64_t> faults;  // counted when it was first looked at
    std::vector<Range> ranges;
  };
  const LaunchRecord* RecordOf(uint64_t id) const {
    const auto it = records_.find(id);
    return it == records_.end() ? nullptr : &it->second;
  }
  void SetWatched(LaunchRecord* record, bool is_watched);
  Outcome GiveUp(LaunchRecord* record);
  Outcome Learn(LaunchRecord* record);
  void StopWatching(LaunchRecord* record);
  enum class Fit : uint8_t {
    kInside,   // in what is known
    kWidened,  // and it is known now
    kSparse,   // here and there in a part: not known
    kTooWide,  // of no part
  };
  static Fit Widen(Range* range, const UnboundedPointer& word, std::span<const Va> pages);
  static void NoteBounds(Range* range, const UnboundedPointer& word, const std::function<bool(Va)>& there);
  std::unordered_map<uint64_t, LaunchRecord> records_;
  size_t watching_ = 0;
  PointerRangeStats stats_;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_PREDICT_POINTER_RANGES_H_
