#include "hooklib/memory/arena_allocator.h"

#include <algorithm>

namespace sluice::memory {

std::optional<Va> ArenaAllocator::Allocate(uint64_t bytes, StreamId stream) {
  const uint64_t size = SizeFor(bytes);
  std::optional<Va> va = TakeFreedInStream(stream, size);
  if (!va) va = TakeFree(size);
  if (!va && !quarantine_.empty()) {
    Drain();
    va = TakeFree(size);
    if (!va) {
      fences_->Close();  // ranges freed since the last close are free once the GPU reaches the fence
      Drain();
      va = TakeFree(size);
    }
  }
  if (va) live_ += size;
  return va;
}

std::optional<Va> ArenaAllocator::TakeFreedInStream(StreamId stream, uint64_t size) {
  if (!stream) return std::nullopt;
  const auto it = freed_in_stream_.lower_bound({stream, size, 0});
  if (it == freed_in_stream_.end() || std::get<0>(*it) != stream || IsSmall(std::get<1>(*it)) != IsSmall(size))
    return std::nullopt;
  const uint64_t number = std::get<2>(*it);
  Extent& range = quarantine_[number - drained_].range;
  freed_in_stream_.erase(it);
  const Va va = range.base;
  range = {va + size, range.bytes - size};
  // A large request starts at a chunk: the rest of a large range waits for its fence.
  if (range.bytes && IsSmall(size) && IsSmall(range.bytes)) freed_in_stream_.emplace(stream, range.bytes, number);
  return va;
}

std::optional<Va> ArenaAllocator::TakeFree(uint64_t size) {
  Pool& pool = IsSmall(size) ? small_ : large_;
  const uint64_t align = IsSmall(size) ? kGranule : kChunkBytes;
  // Of the ranges that fit best, the lowest: live ranges gather in few arenas, and the others can be returned. With the
  // best fit alone, random sizes held up to twice the requested bytes. The aligned start can lie behind the range's
  // own.
  auto lowest = pool.by_size.end();
  int candidates = 0;
  for (auto it = pool.by_size.lower_bound({size, 0}); it != pool.by_size.end() && candidates < kMaxCandidates; ++it) {
    const auto [range_bytes, range_base] = *it;
    if (RoundUp(range_base, align) + size > range_base + range_bytes) continue;
    ++candidates;
    if (lowest == pool.by_size.end() || range_base < lowest->second) lowest = it;
  }
  if (lowest == pool.by_size.end()) return std::nullopt;
  const auto [range_bytes, range_base] = *lowest;
  const Va start = RoundUp(range_base, align);
  EraseFree(&pool, pool.by_va.find(range_base));
  auto insert = [&](Va from, Va to) {
    if (from == to) return;
    pool.by_va.emplace(from, to - from);
    pool.by_size.emplace(to - from, from);
  };
  insert(range_base, start);
  insert(start + size, range_base + range_bytes);
  ArenaOf(start)->second.free_bytes -= size;
  return start;
}

uint64_t ArenaAllocator::GrowthFor(uint64_t bytes) const {
  const uint64_t need = RoundUp(SizeFor(bytes), kChunkBytes);
  if (IsSmall(SizeFor(bytes))) return kChunkBytes;
  return std::max(need, RoundDown(std::min(kMaxGrowthBytes, live_ / 16), kChunkBytes));
}

void ArenaAllocator::AddArena(Extent arena, uint64_t for_bytes) {
  arenas_.emplace(arena.base, Arena{arena.bytes, IsSmall(SizeFor(for_bytes)), 0});
  requested_ += arena.bytes;
  InsertFree(arena);
}

void ArenaAllocator::Free(Va base, uint64_t bytes, StreamId stream) {
  const uint64_t size = SizeFor(bytes);
  live_ -= size;
  if (stream) freed_in_stream_.emplace(stream, size, drained_ + quarantine_.size());
  quarantine_.push_back({{base, size}, fences_->Use(), stream});
}

void ArenaAllocator::Drain() {
  while (!quarantine_.empty() && fences_->Done(quarantine_.front().epoch)) {
    const Quarantined& front = quarantine_.front();
    if (front.stream) freed_in_stream_.erase({front.stream, front.range.bytes, drained_});
    if (front.range.bytes) InsertFree(front.range);
    quarantine_.pop_front();
    ++drained_;
  }
}

std::vector<Extent> ArenaAllocator::TakeSurplus(uint64_t kept, uint64_t room) {
  return TakeFreeArenasDownTo(std::max(MostRequested(live_), std::min(MostRequested(live_ + kept), room)));
}

std::vector<Extent> ArenaAllocator::TakeFreeArenas() { return TakeFreeArenasDownTo(0); }

std::vector<Extent> ArenaAllocator::TakeFreeArenasDownTo(uint64_t requested) {
  std::vector<Extent> surplus;
  auto over = [&] { return requested_ > requested; };
  if (!over()) return surplus;
  // Ranges that were freed just now are free already where the GPU has finished with them.
  fences_->Close();
  Drain();
  for (auto it = arenas_.begin(); it != arenas_.end() && over();) {
    if (it->second.free_bytes != it->second.bytes) {
      ++it;
      continue;
    }
    Pool& pool = it->second.small ? small_ : large_;
    EraseFree(&pool, pool.by_va.find(it->first));
    surplus.push_back({it->first, it->second.bytes});
    requested_ -= it->second.bytes;
    it = arenas_.erase(it);
  }
  return surplus;
}

std::map<Va, ArenaAllocator::Arena>::iterator ArenaAllocator::ArenaOf(Va va) {
  return std::prev(arenas_.upper_bound(va));
}

void ArenaAllocator::InsertFree(Extent range) {
  const auto arena = ArenaOf(range.base);
  arena->second.free_bytes += range.bytes;
  Pool& pool = arena->second.small ? small_ : large_;
  const Va arena_end = arena->first + arena->second.bytes;
  auto next = pool.by_va.lower_bound(range.base);
  if (next != pool.by_va.end() && next->first == range.end() && next->first < arena_end) {
    range.bytes += next->second;
    EraseFree(&pool, next);
    next = pool.by_va.lower_bound(range.base);
  }
  if (next != pool.by_va.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == range.base && before->first >= arena->first) {
      range = {before->first, before->second + range.bytes};
      EraseFree(&pool, before);
    }
  }
  pool.by_va.emplace(range.base, range.bytes);
  pool.by_size.emplace(range.bytes, range.base);
}

void ArenaAllocator::EraseFree(Pool* pool, std::map<Va, uint64_t>::iterator it) {
  pool->by_size.erase({it->second, it->first});
  pool->by_va.erase(it);
}

}  // namespace sluice::memory
