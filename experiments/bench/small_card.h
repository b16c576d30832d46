// Makes a real card that is larger than a budget look as large as the budget, for other engines' rules (peer_replay):
// they leave it to the driver to send away what does not fit, and a card may not be filled with managed memory to see
// that (a program that asks for more than is free can hang GPU and host). So what the driver would send away is sent
// away by calls: pieces of 2 MiB, those brought first go first, whether used since or not (facts of the UVM driver as
// the simulated card has them), in the order of the stream that brings what takes their place. Neighbours go in one
// call, so it costs less than in the driver, never more.
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
  // Bytes that may be resident, and bytes that may be allocated at all.
  SmallCard(const replay::Driver& driver, uint64_t memory, uint64_t most)
      : driver_(driver), memory_(memory), most_(most) {}

  bool MayAllocate(uint64_t bytes) const { return allocated_ + bytes <= most_; }
  void Allocated(uint64_t address, uint64_t bytes);
  void Freed(uint64_t address);
  // All of it is on the card once what is queued on `stream` so far, and what uses it, is over. Queues the departures
  // that make room for it: none of `ranges` leaves.
  void Bring(CUstream stream, const std::vector<simgpu_touch>& ranges);

 private:
  static constexpr uint64_t kPiece = uint64_t{2} << 20;
  struct Piece {
    uint64_t bytes = 0;
    uint64_t wanted = 0;  // the last call of Bring that named it
  };

  void Evict(CUstream stream, std::map<uint64_t, uint64_t>* runs);

  const replay::Driver& driver_;
  const uint64_t memory_, most_;
  std::map<uint64_t, uint64_t> blocks_;  // address -> bytes
  uint64_t allocated_ = 0, resident_ = 0, calls_ = 0;
  std::list<uint64_t> order_;                                          // resident pieces, brought first first
  std::unordered_map<uint64_t, std::list<uint64_t>::iterator> place_;  // of each resident piece
  std::unordered_map<uint64_t, Piece> pieces_;                         // that were ever resident
};

}  // namespace sluice::bench

#endif  // SLUICE_EXPERIMENTS_BENCH_SMALL_CARD_H_
