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
  size_t place = 0;  // among the launch's words
  Va pointer = 0;
  Extent block;
};

struct PointerRangeStats {
  uint64_t kinds = 0;  // of which something is believed now
  uint64_t given_up = 0;
  uint64_t watched = 0;   // launches whose pages were told
  uint64_t narrowed = 0;  // launches that named less for it
  uint64_t wrong = 0;     // times that a kind was seen to use more than was believed
};

class PointerRanges {
 public:
  static constexpr uint64_t kLeastBytes = uint64_t{16} << 20;  // a smaller block is named whole

  // Whether anything was ever asked of it: the way of launches in a program that has no such kind.
  bool empty() const { return kinds_.empty(); }
  // What word number `place` of a launch of the kind means of the block around it: all, or what was learnt.
  Extent Narrow(uint64_t id, size_t place, Va pointer, Extent block) const;
  // A launch of the kind named more than can be held, loose words among what it named.
  void NoteTooLarge(uint64_t id);
  // The next launch of the kind should be watched: alone on the card, with the pages told on which it faults.
  bool Wants(uint64_t id) const {
    if (wanting_ == 0) return false;
    const Kind* const kind = Find(id);
    return kind && kind->wants && kind->blind == 0;
  }
  bool wants_any() const { return wanting_ != 0; }
  // Such a launch finds all that it names on the card or mapped, so that it faults on nothing: not asked about again
  // for ever more launches.
  void NoteAllThere(uint64_t id);
  // Whether something is believed of the kind.
  bool Knows(uint64_t id) const {
    const Kind* const kind = Find(id);
    return kind && kind->known;
  }
  enum class Found : uint8_t { kNothing, kPart, kMore, kNoPart };
  // Such a launch ran, and faulted on these pages, each once and in order. `there`: whether a page may have been on the
  // card or mapped before it, so that it says nothing that it did not fault. What follows.
  Found Observe(uint64_t id, std::span<const UnboundedPointer> words, std::span<const Va> pages,
                const std::function<bool(Va)>& there);
  // Such a launch could not be watched: others worked beside it, or records were lost.
  void Missed(uint64_t id);
  // A launch of the kind names less than its blocks; so many faults were counted so far, of whatever work. True where
  // it may have used more of them: that is to be sent away, and the next launches of the kind are watched.
  bool NoteNarrowed(uint64_t id, uint64_t faults);
  // Nothing more is to be learnt: nobody can watch.
  void Stop();
  const PointerRangeStats& stats() const { return stats_; }

 private:
  struct Part {
    size_t place = 0;
    bool seen = false;                  // it was faulted on
    int64_t begin = 0, end = 0;         // from the pointer
    uint32_t steady = 0;                // times in a row that nothing else was
    bool begins = false, ends = false;  // what lies beside it was not there, and did not fault
  };
  struct Kind {
    bool wants = true, known = false, given_up = false;
    uint32_t watched = 0, empty = 0, thin = 0, blank = 0, missed = 0, wrong = 0;
    uint32_t blind = 0, blinded = 0;  // launches until it is asked about again; times in a row that all was there
    uint32_t pause = 0;               // launches between two looks at the faults
    uint64_t launches = 0;            // that named less
    uint64_t look_at = 0;             // of these
    uint64_t wrong_at = 0;            // of these
    std::optional<uint64_t> faults;   // counted when it was first looked at
    std::vector<Part> parts;
  };
  const Kind* Find(uint64_t id) const {
    const auto it = kinds_.find(id);
    return it == kinds_.end() ? nullptr : &it->second;
  }
  void Want(Kind* kind, bool wants);
  Found GiveUp(Kind* kind);
  Found Believe(Kind* kind);
  void Rest(Kind* kind);
  enum class Fit : uint8_t {
    kInside,  // in what is known
    kMore,    // and it is known now
    kThin,    // here and there in a part: not known
    kWide,    // of no part
  };
  static Fit Widen(Part* part, const UnboundedPointer& word, std::span<const Va> pages);
  static void NoteEnds(Part* part, const UnboundedPointer& word, const std::function<bool(Va)>& there);
  std::unordered_map<uint64_t, Kind> kinds_;
  size_t wanting_ = 0;
  PointerRangeStats stats_;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_PREDICT_POINTER_RANGES_H_
