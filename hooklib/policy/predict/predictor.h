// Learns the order of launches and predicts the next use of each chunk.
//
// After DeepUM (Jung et al., ASPLOS 2023): a launch is identified by an execution id (hash of the function and the
// shape of its arguments), and its successor of the last time is expected again. Here both of DeepUM's tables are one
// ring, the log of launches with their chunks. The log position that the present repeats is found by the last three
// launches with their chunks, since a model's layers differ in nothing else. From there ids alone are followed, so that
// a tensor at a new address does not end the prediction. A launch's n-th chunk stands for the n-th of the launch that
// it repeats, and is expected where that one was used next. One per application stream. Not thread-safe.
#ifndef SLUICE_HOOKLIB_POLICY_PREDICT_PREDICTOR_H_
#define SLUICE_HOOKLIB_POLICY_PREDICT_PREDICTOR_H_

#include <algorithm>
#include <optional>
#include <span>
#include <vector>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/memory/zero_pages.h"
#include "hooklib/policy/memory_names.h"
#include "hooklib/policy/predict/id_cursor.h"
#include "hooklib/policy/predict/launch_log.h"

namespace sluice::policy {

class Predictor {
 public:
  // Enters launch `now` (rising, device-wide) with its chunks, and sets their next_use and freed_in.
  // `set_hash`: LaunchHash::sum(). `live_chunks`: chunks that hold a live byte now. `all_resident`: the launch found
  // its own on the GPU.
  void NoteLaunch(uint64_t id, uint64_t set_hash, std::span<Chunk* const> set, uint64_t now, uint32_t live_chunks = 0,
                  bool all_resident = false);
  // Without the chunks, for an expected launch that repeats for the third time: it is counted, and entered by CatchUp.
  // False: it has to be entered, behind CatchUp. `before`: this log's last launches in a row that found all resident.
  bool CountRepeat(uint64_t id, uint64_t set_hash, uint64_t now, uint64_t before) {
    if (!is_repeating() && !CanRepeat(before)) return false;
    const Entry& next = log_[repeats_next_ % kLogLaunches];
    if (next.id != id || next.set_hash != set_hash) return false;
    repeats_next_ = repeats_next_ == count_ ? count_ - period_ + 1 : repeats_next_ + 1;
    repeated_at_[repeats_++ % kLogLaunches] = now;
    return true;
  }
  // Whether there are counted launches to enter. Until then nothing is prefetched, and next_use is of those before.
  bool is_repeating() const { return repeats_ != 0; }
  void CatchUp();
  // Whether the last launches followed the prediction, so that a prefetch is worth its price.
  bool confident() const { return streak_ >= 8; }
  uint64_t wrong() const { return wrong_; }

  // The chunks of the next launch ahead, at their present addresses, without those that it will find fresh; at most
  // `horizon` launches away; empty: no more. `at` is its predicted launch number, `id` its execution id. Moves on with
  // each call, so that each launch ahead is returned once. One that found all resident behind `moved_at`, the last
  // fetch or eviction before a steady state (else kNever), would find it so again, and is left out.
  std::span<Chunk* const> NextAhead(uint64_t horizon, uint64_t moved_at, uint64_t* at, uint64_t* id);
  // The next call returns the last one's launch once more.
  void RevisitLast() { looked_to_ = looked_to_before_; }
  // The largest growth of live chunks, as the log has it: from their minimum until the launch that NextAhead returned
  // last; from now on, within so many launches.
  uint32_t GrowthAhead();
  uint32_t GrowthWithin(uint64_t launches) const;
  // Whether NextAhead may return more.
  bool HasAhead(uint64_t horizon) const { return cursor_ && looked_to_ < cursor_ + horizon && looked_to_ + 1 < count_; }
  // For a chunk of the newest launch: launch numbers until its next use by an id that needs it, as the log has it.
  // kNever: none within a period. Nothing: the present position is unknown.
  template <typename F>
  std::optional<uint64_t> NextRequiredUse(const Chunk& chunk, F needs) const {
    if (!cursor_ || !IsRemembered(cursor_) || !chunk.log_match) return std::nullopt;
    const Ref* ref = &refs_[chunk.log_match - 1];
    const Chunk* const repeated = ref->chunk;
    for (int hops = 0; hops < 32; ++hops) {
      if (ref->chunk != repeated || !ref->next_pos || ref->next_pos >= count_ || !IsRemembered(ref->next_pos)) break;
      if (needs(log_[ref->next_pos % kLogLaunches].id)) return InNumbers(ref->next_pos - cursor_);
      ref = &refs_[ref->next_ref];
    }
    return kNever;
  }
  // Launch numbers from one iteration of the stream to the next (a training step); 0: not known.
  uint64_t period() const { return cursor_ ? InNumbers(count_ - cursor_) : 0; }
  // The chunk's bytes were freed so many launch numbers after its last use.
  void NoteFreed(const Chunk& chunk, uint64_t after) {
    if (refs_.empty()) return;
    Ref& last = refs_[chunk.log_ref];
    if (last.chunk == &chunk && last.next_pos == 0)
      last.freed_after = static_cast<uint32_t>(std::min<uint64_t>(after, UINT32_MAX));
  }
  // Chunks were removed with their arena: the log points at them.
  void Reset();

 private:
  using Entry = LogEntry;
  using Ref = LogReference;
  static constexpr size_t kLogLaunches = 1 << 14;    // launches remembered
  static constexpr size_t kLogReferences = 1 << 17;  // chunk references remembered
  static constexpr int kBucketShift = 64 - 15;       // a hash's best bits are its highest
  static constexpr int kUnitShift = 2;  // numbers_per_launch_ is in quarters: a rare memset changes nothing

  static uint64_t NumbersPerLaunch(uint64_t launches, uint64_t numbers);
  // Whether expected launches need not be entered: a period of the log repeats.
  bool CanRepeat(uint64_t before);
  // Near this place of the launch's set. `moved_by`: places from there to where the last such chunk was found.
  uint32_t FindReference(const Entry& entry, uint32_t index, const Chunk* chunk, uint32_t* moved_by) const;
  // Whether a use repeats the other one: both are LogReference::last_ref.
  bool IsRepeated(uint32_t last_ref, uint32_t now) const;
  // The chunk that the launch ahead will use where the one that it repeats used this reference; null: a fresh one.
  Chunk* Expected(uint32_t ref);
  uint64_t NumberOf(uint32_t ref) const { return refs_count_ - 1 - (refs_count_ - 1 - ref) % kLogReferences; }
  uint64_t FindTriple(uint64_t triple) const;  // the newest position with it; 0: none is remembered
  void Index(uint64_t triple, uint64_t pos);
  bool IsRemembered(uint64_t pos) const {
    return pos != 0 && count_ - pos < kLogLaunches - 1 && refs_count_ - log_[pos % kLogLaunches].first < kLogReferences;
  }

  // So many launches of this log in launch numbers, which also count other streams' launches, copies and memsets.
  uint64_t InNumbers(uint64_t launches) const { return launches * numbers_per_launch_ >> kUnitShift; }

  memory::ZeroPages<Entry> log_;
  memory::ZeroPages<Ref> refs_;
  std::vector<Chunk*> ahead_, repeated_set_, moved_;
  memory::ZeroPages<uint64_t> repeated_at_;  // launch numbers of counted launches, a ring
  memory::ZeroPages<uint64_t> buckets_;      // by a part of the triple: its newest log position
  uint64_t count_ = 0, refs_count_ = 0;      // entered; the newest launch has the position count_
  // Positions: the one that the newest launch repeats; one whose successor was last predicted wrongly. 0: none.
  uint64_t cursor_ = 0, mispredicted_ = 0;
  uint64_t looked_to_ = 0, looked_to_before_ = 0;  // launches ahead were returned up to here, and one call before
  uint64_t looked_from_ = 0;                       // behind this position none of them was left out
  memory::ZeroPages<uint32_t> earliest_;  // by reference, of those launches: the first use ahead of the same memory
  struct {
    uint64_t from = 0, to = 0;  // positions
    uint32_t min_live = 0, max_growth = 0;
  } growth_;
  uint64_t numbers_per_launch_ = uint64_t{1} << kUnitShift;  // of this log, the mean of a period
  uint64_t last_hashes_[2] = {0, 0}, streak_ = 0;
  IdCursor id_cursor_;
  uint64_t repeats_ = 0, repeats_next_ = 0;  // counted launches, not entered; position that the next of them repeats
  uint64_t period_ = 0, wrong_ = 0;          // launches of the repeated period, the newest of the log
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_PREDICT_PREDICTOR_H_
