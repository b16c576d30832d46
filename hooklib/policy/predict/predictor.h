// Learns the order of launches and says when each chunk is used next.
//
// After DeepUM (Jung et al., ASPLOS 2023): a launch is named by an execution id (hash of the function and the shape of
// its arguments), and what followed it last time is expected to follow it again. Here both of its tables are one ring,
// the log of launches with the chunks that each touched. Where in the log the present is repeated is found by the last
// three launches with their chunks (a model's layers differ in nothing else); from there the ids alone are followed, so
// that a tensor which lies elsewhere this time does not end the prediction. One per application stream. Not
// thread-safe.
#ifndef SLUICE_HOOKLIB_POLICY_PREDICT_PREDICTOR_H_
#define SLUICE_HOOKLIB_POLICY_PREDICT_PREDICTOR_H_

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

// Of a launch's id and its chunks, in order. Of a run of chunks its begin and its end say enough.
class LaunchHash {
 public:
  explicit LaunchHash(uint64_t id) : sum_(id) {}
  void Add(Va begin, Va end) {
    if (begin != end_) sum_ = Mix(Mix(sum_, end_), begin);
    end_ = end;
  }
  uint64_t sum() const { return Mix(sum_, end_); }
  static uint64_t Mix(uint64_t a, uint64_t b) {
    uint64_t x = a ^ (b + 0x9e3779b97f4a7c15u + (a << 6) + (a >> 2));
    x ^= x >> 31;
    return x * 0xbf58476d1ce4e5b9u;
  }

 private:
  uint64_t sum_;
  Va end_ = 0;
};

class Predictor {
 public:
  // Enters launch `now` (rising numbers, device-wide) with its chunks, and sets next_use and freed_in of each of them.
  // `place`: the LaunchHash's. `living`: how many chunks hold a live byte now.
  void NoteLaunch(uint64_t id, uint64_t set_hash, std::span<Chunk* const> set, uint64_t now, uint32_t live_chunks = 0);
  // The same for a launch that is told of by this alone, where it is the one that is expected and comes round for the
  // third time: it is only counted, and entered when CatchUp is called. False: it has to be entered, behind CatchUp.
  // `before`: so many launches of this log, one after the other and up to now, found all of their chunks on the card.
  bool CountRepeat(uint64_t id, uint64_t set_hash, uint64_t now, uint64_t before) {
    if (!is_repeating() && !CanRepeat(before)) return false;
    const Entry& next = log_[repeats_next_ % kLogLaunches];
    if (next.id != id || next.set_hash != set_hash) return false;
    repeats_next_ = repeats_next_ == count_ ? count_ - period_ + 1 : repeats_next_ + 1;
    repeated_at_[repeats_++ % kLogLaunches] = now;
    return true;
  }
  // Whether there is anything to catch up with. Until then nothing is to be looked ahead for, and chunks' next_use is
  // that of the last launches that were entered.
  bool is_repeating() const { return repeats_ != 0; }
  void CatchUp();
  // Whether the last launches came as predicted, so that look-ahead is worth its price.
  bool confident() const { return streak_ >= 8; }
  uint64_t wrong() const { return wrong_; }

  // The chunks of the next launch that has not been looked at yet, at most `horizon` launches ahead; empty: no more.
  // `at` is the predicted launch number, `id` its execution id. Moves on with each call, so that a launch ahead is
  // looked at once.
  std::span<Chunk* const> NextAhead(uint64_t horizon, uint64_t* at, uint64_t* id);
  // So that the next call has the last one's launch once more.
  void RevisitLast() { looked_to_ = looked_to_before_; }
  // By how many chunks what lives grows from its least until the launch that Ahead had last, at the most, by what was
  // so the last time.
  uint32_t GrowthAhead();
  // By how many chunks at the most what lives grows from now on, in so many launches, by what was so the last time.
  uint32_t GrowthWithin(uint64_t launches) const;
  // Whether Ahead may have any more.
  bool HasAhead(uint64_t horizon) const { return cursor_ && looked_to_ < cursor_ + horizon && looked_to_ + 1 < count_; }
  // Of a chunk that the newest launch uses: launch numbers from now to its next use by one that needs it, by what
  // followed the last time; kNever: none before it would have come round again. Nothing: the present is not known.
  template <typename F>
  std::optional<uint64_t> NextRequiredUse(const Chunk& chunk, F needs) const {
    if (!cursor_ || !IsRemembered(cursor_) || !chunk.log_match) return std::nullopt;
    const Ref* ref = &refs_[chunk.log_match - 1];
    for (int hops = 0; hops < 32; ++hops) {
      if (ref->chunk != &chunk || !ref->next_pos || ref->next_pos >= count_ || !IsRemembered(ref->next_pos)) break;
      if (needs(log_[ref->next_pos % kLogLaunches].id)) return InNumbers(ref->next_pos - cursor_);
      ref = &refs_[ref->next_ref];
    }
    return kNever;
  }
  // From one round to the next (a training step), in launch numbers; 0: not known.
  uint64_t period() const { return cursor_ ? InNumbers(count_ - cursor_) : 0; }
  // Calls f(Chunk*) for each use of a chunk in the newest round, once for each launch; false: it is not known.
  template <typename F>
  bool ForEachUseInPeriod(F f) const {
    const uint64_t round = cursor_ ? count_ - cursor_ : 0;
    if (!round || round >= count_ || !IsRemembered(count_ - round + 1)) return false;
    for (uint64_t pos = count_ - round + 1; pos <= count_; ++pos) {
      const Entry& entry = log_[pos % kLogLaunches];
      for (uint64_t ref = entry.first; ref < entry.first + entry.count; ++ref) f(refs_[ref % kLogReferences].chunk);
    }
    return true;
  }
  // What the chunk holds was freed, so many launch numbers behind its last use.
  void NoteFreed(const Chunk& chunk, uint64_t after) {
    if (refs_.empty()) return;
    Ref& last = refs_[chunk.log_ref];
    if (last.chunk == &chunk && last.next_pos == 0)
      last.freed_after = static_cast<uint32_t>(std::min<uint64_t>(after, UINT32_MAX));
  }
  // Chunks went away with their arena: what was learnt points at them.
  void Reset();

 private:
  static constexpr size_t kLogLaunches = 1 << 14;    // launches remembered
  static constexpr size_t kLogReferences = 1 << 17;  // chunk references remembered
  static constexpr int kBucketShift = 64 - 15;       // a hash's best bits are its highest
  static constexpr int kUnitShift = 2;  // numbers_per_launch_ is in quarters: a memset now and then changes nothing

  struct alignas(64) Entry {  // of one cache line
    uint64_t id = 0;
    uint64_t set_hash = 0;  // hash of id and chunks
    uint64_t triple = 0;    // hash of the places of the two before it and of this
    uint64_t older = 0;     // the next older position whose three may be found by the same way
    uint64_t now = 0;
    uint64_t first = 0;  // position of its references, never wrapped
    uint32_t count = 0;
    uint32_t live_chunks = 0;
  };
  struct Ref {
    Chunk* chunk;
    uint64_t next_pos;     // log position of the chunk's next use; 0: not yet seen
    uint32_t next_ref;     // its reference there
    uint32_t freed_after;  // launch numbers from this use until what it held was freed; 0: that was used again
  };

  static uint64_t NumbersPerLaunch(uint64_t launches, uint64_t numbers);
  // The chunk's reference in the entry, looked for from a place in it; plus one, 0: none.
  // Whether launches that come as expected need not be entered: a round that is in the log repeats itself.
  bool CanRepeat(uint64_t before);
  uint32_t FindReference(const Entry& entry, uint32_t set_hash, const Chunk* chunk) const;
  // The newest position with this hash of three places; 0: none that is remembered.
  uint64_t FindTriple(uint64_t triple) const;
  void Index(uint64_t triple, uint64_t pos);
  bool IsRemembered(uint64_t pos) const {
    return pos != 0 && count_ - pos < kLogLaunches - 1 && refs_count_ - log_[pos % kLogLaunches].first < kLogReferences;
  }

  // So many launches of this log, in launch numbers: those of other streams, copies and memsets count in these.
  uint64_t InNumbers(uint64_t launches) const { return launches * numbers_per_launch_ >> kUnitShift; }

  std::vector<Entry> log_;
  std::vector<Ref> refs_;
  std::vector<Chunk*> ahead_, repeated_set_;
  std::vector<uint64_t> repeated_at_;  // launch numbers of the newest of those that were not entered
  std::vector<uint64_t> buckets_;      // by a part of the hash of three places: the newest log position with such a one
  uint64_t count_ = 0;                 // launches entered; the newest has this position
  uint64_t refs_count_ = 0;
  uint64_t cursor_ = 0;        // position that the newest launch repeats; 0: unknown
  uint64_t mispredicted_ = 0;  // position behind which something else came than before, the last time; 0: none
  uint64_t looked_to_ = 0;     // look-ahead has been done up to this position
  uint64_t looked_to_before_ = 0;
  struct {
    uint64_t from = 0, to = 0;  // positions
    uint32_t min_live = 0, max_growth = 0;
  } growth_;
  // Launch numbers from one launch of this log to the next, in the mean of a round.
  uint64_t numbers_per_launch_ = uint64_t{1} << kUnitShift;
  uint64_t last_hashes_[2] = {0, 0};
  uint64_t streak_ = 0;
  uint64_t repeats_ = 0;       // launches that were not entered
  uint64_t repeats_next_ = 0;  // position that the next one of them repeats
  uint64_t period_ = 0;        // launches of the log that they repeat: its newest
  uint64_t wrong_ = 0;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_PREDICT_PREDICTOR_H_
