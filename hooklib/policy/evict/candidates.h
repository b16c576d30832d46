// The chunks on the card, in the order in which they leave when room is needed: who ranks highest leaves first. What a
// chunk ranks, and whether it may leave at all, is residency's to say (victims.cc).
//
// A chunk's place is looked for only when room is needed: until then it is enough to note that it is out of date, and
// where a program has all that it uses on the card nobody ever asks. While room is made for a launch, those that may
// not leave are put aside, so that each is looked at once for it, and some are spared as long as there are others. Of
// each chunk there may be several entries; the newest counts. Ranks are the caller's; times are launch numbers. Not
// thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_POLICY_EVICT_CANDIDATES_H_
#define SLUICE_HOOKLIB_POLICY_EVICT_CANDIDATES_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "hooklib/memory/chunk_table.h"
#include "hooklib/policy/memory_names.h"

namespace sluice::policy {

struct Candidate {  // outdated once the chunk's rank_stamp has moved on
  uint64_t rank = 0;
  Chunk* chunk = nullptr;
  uint32_t stamp = 0;
  // Of those used alike, as a launch's all are, neighbours go one after the other: they move as one run.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank < other.rank : std::greater<>()(chunk, other.chunk);
  }
};

class Candidates {
 public:
  // The chunk is on the card, and what it ranks is out of date, or it came just now.
  void Unrank(Chunk* chunk) {
    if (chunk->unranked) return;
    chunk->unranked = true;
    unranked_.push_back(chunk);
  }
  // It has left the card: whatever is kept of it is outdated.
  void Remove(Chunk* chunk) {
    ++chunk->rank_stamp;
    set_aside_outdated_ |= chunk->set_aside;
  }
  // The chunks of an arena go, and nothing is spared or put aside.
  void RemoveArena(Extent arena);
  // What is kept between two launches: no more than a few entries for each chunk that is held.
  size_t size() const { return heap_.size() + unranked_.size(); }

  // Room is to be made: rank(const Chunk&) is asked for each chunk that was touched since the last time. Some may be
  // spared anew.
  template <typename F>
  void Begin(F rank) {
    const bool many = unranked_.size() > heap_.size() / 8;
    for (Chunk* chunk : unranked_) {
      chunk->unranked = false;
      if (!chunk->resident) continue;
      set_aside_outdated_ |= chunk->set_aside;
      Push({rank(*chunk), chunk, ++chunk->rank_stamp}, many);
    }
    if (many) std::make_heap(heap_.begin(), heap_.end());
    unranked_.clear();
    if (std::exchange(set_aside_outdated_, false)) DropOutdated();
    protects_ = true;
  }
  // Whether Rebuild is worth its price: most entries are outdated, or were ranked long ago.
  bool IsStale(uint64_t held_chunks, uint64_t now) const {
    return size() + protected_.size() + deferred_.size() > 4 * held_chunks + 4096 || now - rebuilt_at_ > 8192;
  }
  // Drops outdated entries, and ranks all that is on the card anew.
  template <typename F>
  void Rebuild(ChunkTable* chunks, uint64_t now, F rank) {
    rebuilt_at_ = now;
    ReleaseAll();
    heap_.clear();
    unranked_.clear();
    chunks->ForAll([&](Chunk& chunk) {
      chunk.unranked = false;
      if (chunk.resident) heap_.push_back({rank(chunk), &chunk, ++chunk.rank_stamp});
    });
    std::make_heap(heap_.begin(), heap_.end());
  }

  // Takes the first out; false: there are none but those put aside. One that does not leave is handed on to one of the
  // three below.
  bool Next(Candidate* first);
  // While some are spared, the others come first. Ends by itself where there are no others.
  bool protects() const { return protects_; }
  void Protect(const Candidate& candidate) { SetAside(candidate, &protected_); }
  void StopProtecting(const Candidate& candidate) {
    Push(candidate, false);
    protects_ = false;
  }
  // It does not leave for this launch.
  void Defer(const Candidate& candidate) { SetAside(candidate, &deferred_); }
  const std::vector<Candidate>& protected_list() const { return protected_; }  // the first first
  const std::vector<Candidate>& deferred_list() const { return deferred_; }
  // Room has been made: who was spared or put aside for this launch is a candidate for the next.
  void End();

 private:
  void Push(const Candidate& candidate, bool many) {  // many: the caller orders the heap
    heap_.push_back(candidate);
    if (!many) std::push_heap(heap_.begin(), heap_.end());
  }
  static void SetAside(const Candidate& candidate, std::vector<Candidate>* in);
  void DropOutdated();
  void ReleaseAll();  // forgets who was spared or put aside

  std::vector<Chunk*> unranked_;
  std::vector<Candidate> heap_;
  std::vector<Candidate> protected_, deferred_;
  bool protects_ = true;
  bool set_aside_outdated_ = false;  // some of the spared or put aside are outdated
  uint64_t rebuilt_at_ = 0;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_EVICT_CANDIDATES_H_
