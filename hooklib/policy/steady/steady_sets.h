// Launches that are met again while nothing comes or goes. Such a one finds all that it names where that was, so its
// chunks need not be looked at, and what is to be noted of their use is noted of the set, until somebody asks about
// chunks (Settle): 51 of 90 instructions a chunk that a launch names.
//
// Times are launch numbers. Not thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_STEADY_STEADY_SETS_H_
#define SLUICE_HOOKLIB_POLICY_STEADY_STEADY_SETS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

class SteadySets {
 public:
  // How the use of a launch's chunks is noted.
  struct Usage {
    bool sparse = false;    // it touches little of what it names
    bool required = false;  // it must have that on the card
    bool operator==(const Usage&) const = default;
  };
  struct Set {
    std::vector<Chunk*> chunks;
    StreamId stream = 0;
    uint64_t set_hash = 0;  // the launch's PlaceHash's

   private:
    friend class SteadySets;
    uint64_t key = 0;                   // of the launch's stream, id and extents
    uint64_t confirmed_at = 0;          // launch number at which all of it was on the card, and noted
    bool is_steady = false;             // false: met once
    std::vector<uint32_t> named_bytes;  // bytes of each
    // Not noted of the chunks yet:
    uint32_t pending_launches = 0;
    uint64_t last_launch = 0;  // launch number
    Seq seq = 0;
    Usage usage;
  };

  // What stood need not any more: something came or went, or is to be noted in another way.
  void NoteChange(uint64_t now) { changed_at_ = now; }
  // The launch's place among the sets that may stand; null: too much comes and goes.
  Set* Find(uint64_t now, StreamId stream, uint64_t id, std::span<const Extent> extents);
  bool IsSteady(const Set& set) const { return set.is_steady && set.confirmed_at > changed_at_; }
  // All of the launch's chunks are on the card, and their use was noted just now. The second time that this is said of
  // them, and nothing has come or gone since the first, the set stands: most sets of a program that takes new memory
  // are met once.
  void Confirm(Set* set, uint64_t now, StreamId stream, uint64_t set_hash, std::span<Chunk* const> chunks);
  // A launch whose set stands came again. `window`: as in Settle.
  void NoteRepeat(Set* set, uint64_t now, Seq seq, Usage usage, uint64_t window) {
    if (set->pending_launches && set->usage != usage) Settle(window);
    if (set->pending_launches++ == 0) unsettled_.push_back(set);
    set->last_launch = now;
    set->seq = seq;
    set->usage = usage;
  }
  // And again, in the same way.
  void NoteRepeat(Set* set, uint64_t now, Seq seq, uint64_t window) { NoteRepeat(set, now, seq, set->usage, window); }
  // Chunks say what was noted of their use, in this window (link_bytes.h): before anything but a launch that is met
  // again.
  void Settle(uint64_t window) {
    if (!unsettled_.empty()) SettleAll(window);
  }

 private:
  void SettleAll(uint64_t window);

  uint64_t changed_at_ = 0;
  std::vector<Set> sets_;  // by key
  std::vector<Set*> unsettled_;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_STEADY_STEADY_SETS_H_
