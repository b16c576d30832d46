// Makes a real GPU that is larger than a budget look as large as the budget, for other engines' rules (peer_replay).
// Those leave eviction to the driver, and a GPU may not be filled with managed memory to see it: a program that asks
// for more than is free can hang GPU and host. So the evictions that the driver would make are made by calls. Pieces of
// 2 MiB are evicted, those fetched first go first, whether used since or not (as the UVM driver does, and the simulated
// GPU). They are queued on the stream that fetches their replacement. Neighbours are evicted in one call, so it costs
// less than in the driver, never more.
//
// Not thread-safe.
#ifndef SLUICE_EXPERIMENTS_BENCH_SMALL_CARD_H_
#define SLUICE_EXPERIMENTS_BENCH_SMALL_CARD_H_

#include <cstdint>
#include <list>
#include <map>
#include <unordered_map>
#include <vector>

#include "trace/replay/player.h"

namespace sluice::bench {

class SmallCard {
 public:
  // `memory`: bytes that may be resident; `max_allocated`: bytes that may be allocated in all.
  SmallCard(const replay::Driver& driver, uint64_t memory, uint64_t max_allocated)
      : driver_(driver), memory_(memory), max_allocated_(max_allocated) {}

  bool MayAllocate(uint64_t bytes) const { return allocated_ + bytes <= max_allocated_; }
  void Allocated(uint64_t address, uint64_t bytes);
  void Freed(uint64_t address);
  // Counts the ranges as resident, since the work queued on `stream` so far and their next use make them so. Queues the
  // evictions that make room for them; none of `ranges` is evicted.
  void MakeResident(CUstream stream, const std::vector<simgpu_touch>& ranges);

 private:
  static constexpr uint64_t kPiece = uint64_t{2} << 20;
  struct Piece {
    uint64_t bytes = 0;
    uint64_t wanted = 0;  // the last call of MakeResident that named it
  };

  void Evict(CUstream stream, std::map<uint64_t, uint64_t>* runs);

  const replay::Driver& driver_;
  const uint64_t memory_, max_allocated_;
  std::map<uint64_t, uint64_t> blocks_;  // address -> bytes
  uint64_t allocated_ = 0, resident_ = 0, calls_ = 0;
  std::list<uint64_t> order_;                                          // resident pieces, in the order of their fetches
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> place_;  // each resident piece's place in order_
  std::unordered_map<uint64_t, Piece> pieces_;                         // that were ever resident
};

}  // namespace sluice::bench

#endif  // SLUICE_EXPERIMENTS_BENCH_SMALL_CARD_H_
