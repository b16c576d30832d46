// Steady-state sets: launches that repeat while nothing is fetched or evicted. Such a launch finds its set as it was,
// so its chunks need not be looked at. Its notes on their use are kept with the set until chunks are asked about
// (Settle). That saves 51 of 90 instructions for each chunk of the set.
//
// A wide set is that of a launch which names a paged cache: thousands of chunks, of which it touches few, so it runs
// for less time than a look at them takes. The predictor does not get its chunks either: Settle sets their next use.
//
// Times are launch numbers. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_STEADY_STEADY_SETS_H_
#define SLUICE_HOOKLIB_POLICY_STEADY_STEADY_SETS_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/fetch/link_bytes.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

class SteadySets {
 public:
  // How the use of a launch's chunks is noted.
  struct Usage {
    Share touched;          // the part of its set that the launch touches
    bool required = false;  // it requires the set resident
    bool operator==(const Usage&) const = default;
  };
  struct Set {
    std::vector<Chunk*> chunks;
    StreamId stream = 0;
    uint64_t set_hash = 0;  // the launch's LaunchHash

   private:
    friend class SteadySets;
    uint64_t NewestAt() const { return std::max(confirmed_at_, last_launch_); }

    bool is_wide_ = false;
    uint64_t gap_ = 0;                   // of a wide set: launches between its last two
    uint64_t key_ = 0;                   // of the launch's stream, id and extents
    uint64_t confirmed_at_ = 0;          // when its chunks were last found resident, and their use noted
    bool is_steady_ = false;             // false: met once
    std::vector<uint32_t> named_bytes_;  // of each chunk
    // Not noted in the chunks yet:
    bool is_pending_ = false;
    uint64_t iteration_ = 0;         // of the newest launch
    uint32_t counted_launches_ = 0;  // of this iteration, in link bytes
    uint64_t last_launch_ = 0;
    Seq seq_ = 0;
    Usage usage_;
  };

  // No set is steady any more: a chunk was fetched or evicted, or use is to be noted in another way.
  void NoteChange(uint64_t now) { changed_at_ = now; }
  // The last change before a steady state; kNever: changes are frequent.
  uint64_t QuietSince(uint64_t now) const { return now > changed_at_ + kQuietLaunches ? changed_at_ : kNever; }
  // The launch's place among the sets; null: too much is fetched and evicted.
  Set* Find(uint64_t now, StreamId stream, uint64_t id, std::span<const Extent> extents);
  static bool IsWide(const Set& set) { return set.is_wide_; }
  bool IsSteady(const Set& set) const { return set.is_steady_ && set.confirmed_at_ > changed_at_; }
  // All chunks of the launch are resident, and their use was noted just now. The set becomes steady with the second
  // such call, if nothing was fetched or evicted since the first: most sets of a program that takes new memory are met
  // once.
  void Confirm(Set* set, uint64_t now, StreamId stream, uint64_t set_hash, std::span<Chunk* const> chunks);
  // A launch with a steady set was repeated. `counts`: as in Iterations::Counts.
  void NoteRepeat(Set* set, uint64_t now, Seq seq, Usage usage, uint64_t iteration, bool counts) {
    if (set->is_pending_ && set->usage_ != usage) Settle();
    if (!std::exchange(set->is_pending_, true)) unsettled_.push_back(set);
    if (set->iteration_ != iteration) set->counted_launches_ = 0;
    set->iteration_ = iteration;
    set->counted_launches_ += counts;
    if (set->is_wide_) set->gap_ = now - set->last_launch_;
    set->last_launch_ = now;
    set->seq_ = seq;
    set->usage_ = usage;
  }
  // And again, with the same usage.
  void NoteRepeat(Set* set, uint64_t now, Seq seq, uint64_t iteration, bool counts) {
    NoteRepeat(set, now, seq, set->usage_, iteration, counts);
  }
  // Writes the notes to the chunks, of link bytes (link_bytes.h) those of each set's newest iteration. To be called
  // before anything but a repeated launch. While nothing is used remotely, that is not each iteration.
  void Settle() {
    if (!unsettled_.empty()) SettleAll();
  }

 private:
  static constexpr uint64_t kQuietLaunches = 64;  // no set is steady where chunks are fetched or evicted more often

  void SettleAll();
  void Drop(Set* set);  // gives its memory back; all of its launches were noted
  void DropOld(uint64_t now);

  uint64_t changed_at_ = 0;
  std::vector<Set> sets_;   // by key
  size_t kept_chunks_ = 0;  // of all sets
  uint64_t dropped_at_ = 0;
  std::vector<Set*> unsettled_;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_STEADY_STEADY_SETS_H_
