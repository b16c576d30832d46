// The resident chunks in the order of their eviction: the highest rank goes first. Residency ranks chunks and says
// whether one may be evicted (victims.cc).
//
// Chunks are ranked only when room is needed. Until then it is enough to note that a rank is out of date, and a program
// whose working set is resident pays for no more. While room is made for one launch, chunks that may not be evicted are
// deferred, so that each is looked at once. Protected chunks are evicted only where there are no others. A chunk may
// have several entries; the newest counts. Chunks without a prediction have a heap of their own, since the launch that
// is expected to need them moves on with each launch; their order does not. Times are launch numbers. Not thread-safe:
// the device's lock is held.
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

// Ranks have a class in their highest bits. Class 0: the launch number of the predicted next use. Class 1: no
// prediction; the longer the last use is ago, the higher. Classes above: to be evicted before all others.
inline constexpr uint64_t kRankClass = uint64_t{1} << 62;
inline uint64_t RankWithoutPrediction(uint64_t last_use) {
  return kRankClass + (kRankClass - 1 - std::min(last_use, kRankClass - 1));
}

struct Candidate {  // outdated once the chunk's rank_stamp has moved on
  uint64_t rank = 0;
  Chunk* chunk = nullptr;
  uint32_t stamp = 0;
  // All chunks of a launch rank alike: neighbours follow one another, so that they move as one run.
  bool is_predicted() const { return rank / kRankClass != 1; }
  // The launch that is expected to need it. Without a prediction the next use is taken to be as distant as the last
  // one. So chunks with and without a prediction are compared by one measure: a launch whose place is not known does
  // not have its chunks evicted before all others.
  uint64_t NeededAt(uint64_t now) const {
    if (is_predicted()) return rank;
    const uint64_t last_use = 2 * kRankClass - 1 - rank;
    return now + (now - std::min(now, last_use));
  }
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank < other.rank : std::greater<>()(chunk, other.chunk);
  }
};

class Candidates {
 public:
  // The chunk is resident, and its rank is out of date or missing.
  void Unrank(Chunk* chunk) {
    if (chunk->unranked) return;
    chunk->unranked = true;
    unranked_.push_back(chunk);
  }
  // The chunk is no longer resident: its entries are outdated.
  void Remove(Chunk* chunk) {
    ++chunk->rank_stamp;
    set_aside_outdated_ |= chunk->set_aside;
  }
  // Drops the arena's chunks. Nothing may be protected or deferred.
  void RemoveArena(Extent arena);
  // Entries that stay between two launches: no more than a few for each resident chunk.
  size_t size() const { return heap_.size() + unpredicted_.size() + unranked_.size(); }

  // Begins to make room: calls rank(const Chunk&) for each chunk that was touched since the last time. Chunks may be
  // protected again.
  template <typename F>
  void Begin(F rank) {
    const bool many = unranked_.size() > (heap_.size() + unpredicted_.size()) / 8;
    for (Chunk* chunk : unranked_) {
      chunk->unranked = false;
      if (!chunk->resident()) continue;
      set_aside_outdated_ |= chunk->set_aside;
      Push({rank(*chunk), chunk, ++chunk->rank_stamp}, many);
    }
    if (many) MakeHeaps();
    unranked_.clear();
    if (std::exchange(set_aside_outdated_, false)) DropOutdated();
    protects_ = true;
  }
  // Whether Rebuild is worth its price: most entries are outdated, or were ranked long ago.
  bool IsStale(uint64_t held_chunks, uint64_t now) const {
    return size() + protected_.size() + deferred_.size() > 4 * held_chunks + 4096 || now - rebuilt_at_ > 8192;
  }
  // Drops outdated entries, and ranks all resident chunks anew.
  template <typename F>
  void Rebuild(ChunkTable* chunks, uint64_t now, F rank) {
    rebuilt_at_ = now;
    ReleaseAll();
    heap_.clear();
    unpredicted_.clear();
    unranked_.clear();
    chunks->ForAll([&](Chunk& chunk) {
      chunk.unranked = false;
      if (chunk.resident()) Push({rank(chunk), &chunk, ++chunk.rank_stamp}, true);
    });
    MakeHeaps();
  }

  // The farthest predicted launch that needs a candidate; 0: there is none, or some are to be evicted before all
  // others.
  uint64_t LastPredicted() {
    DropOutdatedTop(&heap_);
    return heap_.empty() || heap_.front().rank >= kRankClass ? 0 : heap_.front().rank;
  }
  // Takes the candidate out that is needed last (`now`: the present launch); false: all others are deferred. The caller
  // evicts it, or hands it to one of the three functions below.
  bool Next(Candidate* first, uint64_t now);
  // While candidates are protected, the others come first. Ends by itself where there are no others.
  bool protects() const { return protects_; }
  void Protect(const Candidate& candidate) { SetAside(candidate, &protected_); }
  void StopProtecting(const Candidate& candidate) {
    Push(candidate, false);
    protects_ = false;
  }
  // The candidate stays resident for this launch.
  void Defer(const Candidate& candidate) { SetAside(candidate, &deferred_); }
  const std::vector<Candidate>& protected_list() const { return protected_; }  // in order
  const std::vector<Candidate>& deferred_list() const { return deferred_; }
  // Room has been made: protected and deferred chunks are candidates for the next launch.
  void End();

 private:
  void Push(const Candidate& candidate, bool many) {  // many: the caller orders the heap
    std::vector<Candidate>& heap = candidate.is_predicted() ? heap_ : unpredicted_;
    heap.push_back(candidate);
    if (!many) std::push_heap(heap.begin(), heap.end());
  }
  void MakeHeaps() {
    for (auto* heap : {&heap_, &unpredicted_}) std::make_heap(heap->begin(), heap->end());
  }
  static void DropOutdatedTop(std::vector<Candidate>* heap);
  static void SetAside(const Candidate& candidate, std::vector<Candidate>* in);
  void DropOutdated();
  void ReleaseAll();  // forgets which candidates were protected or deferred

  std::vector<Chunk*> unranked_;
  std::vector<Candidate> heap_, unpredicted_;  // the others; those without a prediction
  std::vector<Candidate> protected_, deferred_;
  bool protects_ = true;
  bool set_aside_outdated_ = false;  // some protected or deferred entries are outdated
  uint64_t rebuilt_at_ = 0;
};

}  // namespace sluice::policy

#endif  // SLUICE_HOOKLIB_POLICY_EVICT_CANDIDATES_H_
