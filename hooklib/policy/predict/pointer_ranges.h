// Pointer ranges: the part of a block that launches use around a pointer of unknown extent, learned from the pages on
// which a few of them faulted.
//
// A program that cuts its blocks out of one allocation gives its kernels pointers that may mean all of it. Where that
// is more than the capacity, faults bring the pages, and the driver's records name them. A range is learned if it was
// seen a few times, lies close together and does not move relative to the pointer. From then on launches with the same
// id (function and grid) name that range around their pointers, and no more. A range is a prediction, never a proof:
// where it is wrong, faults bring the rest and are counted, and such a launch is watched again. Records make faults a
// third slower, and the host waits for a watched launch, so each id is watched a few times only. Where the pages differ
// from launch to launch (rows that are looked up) the id is given up for good. Not thread-safe: the device's lock is
// held.
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

// A word of a launch that points into a block of which no part was reported.
struct UnboundedPointer {
  size_t word_index = 0;  // among the launch's words
  Va pointer = 0;
  Extent block;
};

struct PointerRangeStats {
  uint64_t learned = 0;  // ids with learned ranges now
  uint64_t given_up = 0;
  uint64_t watched = 0;   // launches whose faults were recorded
  uint64_t narrowed = 0;  // launches that named less for it
  uint64_t wrong = 0;     // times that launches used more than was learned
};

class PointerRanges {
 public:
  static constexpr uint64_t kMinBlockBytes = uint64_t{16} << 20;  // a smaller block is named whole

  // Whether no id was ever noted, as in programs without such launches.
  bool empty() const { return records_.empty(); }
  // The part of the block that word number `word_index` of a launch means: the learned range, else all of it.
  Extent Narrow(uint64_t id, size_t word_index, Va pointer, Extent block) const;
  // The set of a launch with this id exceeds the capacity, and unbounded pointers are part of it.
  void NoteTooLarge(uint64_t id);
  // Whether the next launch of this id should be watched: alone on the GPU, with its faults recorded.
  bool ShouldWatch(uint64_t id) const {
    if (watching_ == 0) return false;
    const LaunchRecord* const record = RecordOf(id);
    return record && record->is_watched && record->blind_launches == 0;
  }
  bool watches_any() const { return watching_ != 0; }
  // The set of such a launch is resident or mapped, so that it faults on nothing: the id is not asked about again for
  // ever more launches.
  void NoteAllResident(uint64_t id);
  // Whether a range is known for the id.
  bool IsLearned(uint64_t id) const {
    const LaunchRecord* const record = RecordOf(id);
    return record && record->is_learned;
  }
  enum class Outcome : uint8_t { kNothing, kLearned, kWidened, kGivenUp };
  // A watched launch has run and faulted on these pages, each once and in order. `was_resident`: whether a page may
  // have been resident or mapped before, so that a missing fault means nothing. Returns the conclusions.
  Outcome Observe(uint64_t id, std::span<const UnboundedPointer> words, std::span<const Va> pages,
                  const std::function<bool(Va)>& was_resident);
  // The launch could not be watched: others ran beside it, or records were lost.
  void NoteUnwatched(uint64_t id);
  // A launch names less than its blocks; `faults` were counted so far, of all work. True where it may have used more:
  // its blocks are to be evicted, and the next launches of the id are watched.
  bool NoteNarrowed(uint64_t id, uint64_t faults);
  // Nothing more can be learned, since nothing can be watched.
  void Stop();
  const PointerRangeStats& stats() const { return stats_; }

 private:
  struct Range {
    size_t word_index = 0;
    bool seen = false;                            // it was faulted on
    int64_t begin = 0, end = 0;                   // from the pointer
    uint32_t steady = 0;                          // times in a row that nothing else was faulted on
    bool begin_known = false, end_known = false;  // the neighbour was absent and did not fault
  };
  struct LaunchRecord {
    bool is_watched = true, is_learned = false, given_up = false;
    uint32_t watched = 0, empty = 0, sparse = 0, unchanged = 0, unwatched = 0, wrong = 0;
    uint32_t blind_launches = 0,
             // Launches until it is asked about again; times in a row that its set was resident.
        blind_times = 0;
    uint32_t pause_launches = 0;     // between two looks at the faults
    uint64_t launches = 0;           // that named less
    uint64_t look_at = 0;            // number of such a launch
    uint64_t wrong_at = 0;           // number of such a launch
    std::optional<uint64_t> faults;  // counted at the first look
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
    kInside,   // within the known range
    kWidened,  // the range has grown
    kSparse,   // spread over a part: nothing is learned
    kTooWide,  // of no part
  };
  static Fit Widen(Range* range, const UnboundedPointer& word, std::span<const Va> pages);
  static void NoteBounds(Range* range, const UnboundedPointer& word, const std::function<bool(Va)>& was_resident);
  std::unordered_map<uint64_t, LaunchRecord> records_;
  size_t watching_ = 0;
  PointerRangeStats stats_;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_PREDICT_POINTER_RANGES_H_
