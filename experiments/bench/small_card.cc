#include "experiments/bench/small_card.h"

#include <algorithm>
#include <iterator>

namespace sluice::bench {

void SmallCard::Allocated(uint64_t address, uint64_t bytes) {
  blocks_[address] = bytes;
  allocated_ += bytes;
}

void SmallCard::Freed(uint64_t address) {
  const auto block = blocks_.find(address);
  if (block == blocks_.end()) return;
  for (uint64_t at = address; at < address + block->second; at += kPiece) {
    if (const auto place = place_.find(at); place != place_.end()) {
      resident_ -= pieces_[at].bytes;
      order_.erase(place->second);
      place_.erase(place);
    }
    pieces_.erase(at);
  }
  allocated_ -= block->second;
  blocks_.erase(block);
}

void SmallCard::MakeResident(CUstream stream, const std::vector<simgpu_touch>& ranges) {
  ++calls_;
  for (const simgpu_touch& range : ranges) {
    const uint64_t end = range.address + range.length;
    auto block = blocks_.upper_bound(range.address);
    if (block != blocks_.begin()) --block;
    for (; block != blocks_.end() && block->first < end; ++block) {
      const uint64_t block_end = block->first + block->second;
      const uint64_t first = std::max(range.address, block->first);
      for (uint64_t at = first - (first - block->first) % kPiece; at < std::min(end, block_end); at += kPiece) {
        Piece& piece = pieces_[at];
        piece.bytes = std::min(kPiece, block_end - at);
        piece.wanted = calls_;
        if (place_.contains(at)) continue;
        place_[at] = order_.insert(order_.end(), at);
        resident_ += piece.bytes;
      }
    }
  }
  std::map<uint64_t, uint64_t> victims;
  for (auto it = order_.begin(); it != order_.end() && resident_ > memory_;) {
    const Piece& piece = pieces_[*it];
    if (piece.wanted == calls_) {
      ++it;
      continue;
    }
    victims[*it] = piece.bytes;
    resident_ -= piece.bytes;
    place_.erase(*it);
    it = order_.erase(it);
  }
  Evict(stream, &victims);
}

void SmallCard::Evict(CUstream stream, std::map<uint64_t, uint64_t>* runs) {
  for (auto it = runs->begin(); it != runs->end();) {
    const uint64_t begin = it->first;
    uint64_t end = begin + it->second;
    // Never across two allocations: the driver refuses such a range.
    for (++it; it != runs->end() && it->first == end && !blocks_.contains(it->first); ++it) end += it->second;
    driver_.prefetch(begin, end - begin, {CU_MEM_LOCATION_TYPE_HOST, {0}}, 0, stream);
  }
}

}  // namespace sluice::bench
