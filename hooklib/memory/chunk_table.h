// The chunks of the arenas of one device, by address. Not thread-safe except MayHold: the device's lock is held.
#ifndef SLUICE_HOOKLIB_MEMORY_CHUNK_TABLE_H_
#define SLUICE_HOOKLIB_MEMORY_CHUNK_TABLE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "hooklib/memory/chunk.h"
#include "hooklib/memory/types.h"

namespace sluice::memory {

class ChunkTable {
 public:
  void AddArena(Extent arena);
  // An arena of unevictable device memory: within the bounds, without chunks.
  void AddUnevictable(Extent arena);
  // The chunks stay valid memory, so that logs may point at them; another arena may get them. False: chunks of this or
  // an earlier arena were released.
  bool RemoveArena(Va base);
  size_t size() const { return count_; }  // chunks
  // The chunk that holds the address; nullptr outside all arenas and in unevictable ones.
  Chunk* Find(Va va);
  // Whether the address lies in an arena, unevictable or not.
  bool InArena(Va va) { return Locate(va) != nullptr; }
  // Calls f(Chunk&) for each chunk that the extent touches, and skips parts outside the arenas.
  template <typename F>
  void ForEach(Extent extent, F f) {
    ForEachRun(extent, [&f](Chunk* begin, Chunk* end) {
      for (Chunk* chunk = begin; chunk < end; ++chunk) f(*chunk);
    });
  }
  // Calls f(begin, end) for the touched chunks of each arena.
  template <typename F>
  void ForEachRun(Extent extent, F f) {
    for (Va va = RoundDown(extent.base, kChunkBytes); va < extent.end();) {
      const Arena* const arena = Locate(va);
      if (!arena || !arena->chunks) {
        va += kChunkBytes;
        continue;
      }
      const Va end = RoundUp(std::min(extent.end(), arena->range.end()), kChunkBytes);
      Chunk* const chunks = arena->chunks.get();
      f(chunks + (va - arena->range.base) / kChunkBytes, chunks + (end - arena->range.base) / kChunkBytes);
      va = end;
    }
  }
  template <typename F>
  void ForAll(F f) {
    for (Arena& arena : arenas_) {
      for (uint64_t i = 0; arena.chunks && i < arena.range.bytes / kChunkBytes; ++i) f(arena.chunks[i]);
    }
  }
  // A quick answer for the many words that are no pointers of ours. Any thread, without the lock: a thread that was
  // given an address sees the bounds that hold it, since they move before its arena is used.
  bool MayHold(Va va) const {
    return va >= low_.load(std::memory_order_relaxed) && va < high_.load(std::memory_order_relaxed);
  }

 private:
  struct Arena {
    Extent range;
    std::unique_ptr<Chunk[]> chunks;  // null: unevictable
  };
  void Insert(Arena arena);
  static bool Holds(const Arena& arena, Va va) { return va - arena.range.base < arena.range.bytes; }
  Arena* Locate(Va va) {
    Arena* const known = found_[Slot(va)];
    return known && Holds(*known, va) ? known : Search(va);
  }
  Arena* Search(Va va);
  // After arenas_ changed.
  void Bound();

  std::vector<Arena> arenas_;  // by base
  static constexpr size_t kMaxKept = 1 << 14;
  std::multimap<uint64_t, std::unique_ptr<Chunk[]>> kept_;  // chunks of removed arenas, by count
  size_t kept_count_ = 0;                                   // chunks
  // The arena in which such an address was last found: launches name the same addresses repeatedly.
  static size_t Slot(Va va) { return (va / kChunkBytes * 0x9e3779b97f4a7c15u) >> 55; }
  std::array<Arena*, 512> found_{};
  size_t count_ = 0;
  std::atomic<Va> low_ = kNever, high_ = 0;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_CHUNK_TABLE_H_
