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
  struct Use {
    bool sparse = false;   // it touches little of what it names
    bool fetches = false;  // it must have that on the card
    bool operator==(const Use&) const = default;
  };
  struct Set {
    std::vector<Chunk*> chunks;
    StreamId stream = 0;
    uint64_t place = 0;  // the launch's PlaceHash's

   private:
    friend class SteadySets;
    uint64_t key = 0;             // of the launch's stream, id and extents
    uint64_t as_of = 0;           // launch number at which all of it was on the card, and noted
    bool stands = false;          // false: met once
    std::vector<uint32_t> named;  // bytes of each
    // Not noted of the chunks yet:
    uint32_t launches = 0;
    uint64_t last = 0;  // launch number
    Seq seq = 0;
    Use use;
  };

  // What stood need not any more: something came or went, or is to be noted in another way.
  void NoteChange(uint64_t now) { changed_at_ = now; }
  // The launch's place among the sets that may stand; null: too much comes and goes.
  Set* Find(uint64_t now, StreamId stream, uint64_t id, std::span<const Extent> extents);
  bool Stands(const Set& set) const { return set.stands && set.as_of > changed_at_; }
  // All of the launch's chunks are on the card, and their use was noted just now. The second time that this is said of
  // them, and nothing has come or gone since the first, the set stands: most sets of a program that takes new memory
  // are met once.
  void Keep(Set* set, uint64_t now, StreamId stream, uint64_t place, std::span<Chunk* const> chunks);
  // A launch whose set stands came again. `window`: as in Settle.
  void NoteAgain(Set* set, uint64_t now, Seq seq, Use use, uint64_t window) {
    if (set->launches && set->use != use) Settle(window);
    if (set->launches++ == 0) unsettled_.push_back(set);
    set->last = now;
    set->seq = seq;
    set->use = use;
  }
  // And again, in the same way.
  void NoteAgain(Set* set, uint64_t now, Seq seq, uint64_t window) { NoteAgain(set, now, seq, set->use, window); }
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
