// The state of every chunk of the arenas of one device. Not thread-safe but for MayHold: the device's lock is held.
#ifndef SLUICE_HOOKLIB_MEMORY_CHUNK_TABLE_H_
#define SLUICE_HOOKLIB_MEMORY_CHUNK_TABLE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <vector>

#include "hooklib/memory/types.h"

namespace sluice::memory {

struct Chunk {
  // What every launch that names it reads and writes, side by side.
  Va base = 0;
  Mark use[2];                    // the last queued uses by two streams
  Epoch use_epoch = 0;            // more than two streams: behind this fence all uses are over
  uint64_t last_use = 0;          // launch number, device-wide
  uint64_t next_use = kNever;     // predicted launch number; kNever: not known
  uint64_t named_at = 0;          // launch number that has this chunk in its set
  uint64_t last_required_at = 0;  // launch number of the last use by work that must have it on the card
  uint64_t link_iteration = 0;    // in which window of launches link_bytes counts
  uint64_t fetch_op = 0;          // fetch that brings it, on fetch_stream's in queue; 0: long here
  StreamId fetch_stream = 0;
  uint32_t log_ref = 0;      // predictor's newest reference
  uint32_t log_match = 0;    // the one that its newest use repeats, plus one; 0: none
  uint32_t named_bytes = 0;  // by the last launch that has it in its set
  uint32_t freed_in = 0;    // launch numbers from its last use until what it holds is freed, as predicted; 0: not known
  uint32_t link_bytes = 0;  // what launches name in it, which would cross the link if it lay in host memory
  bool resident = false;    // believed: only speed depends on it
  bool prefetched = false;  // fetched for a launch to come
  bool has_contents = false;  // holds bytes that may matter. False: discarded or never written, a fetch moves nothing
  bool unranked = false;      // in the list of Candidates: what it ranks is out of date
  // The rest.
  Epoch freed_epoch = 0;  // the last live byte was freed before this fence was closed
  uint64_t freed_at = 0;  // launch number at that time
  uint64_t evict_op = 0;  // eviction that takes it away, on evict_stream's out queue
  StreamId evict_stream = 0;
  uint32_t live_bytes = 0;
  uint32_t rank_stamp = 0;           // of the newest entry that Candidates has of it
  uint64_t live_since = 0;           // launch number when its first live byte came
  uint64_t required_until = 0;       // launch number up to which some launch is known to need it on the card
  uint64_t required_by = 0;          // its execution id
  uint64_t swapped_in_at = 0;        // launch number when it was last brought though its launches could use it in place
  uint64_t remote_until = 0;         // launch number: before it, it is not, since it did not stay
  uint64_t remote_iteration = 0;     // in which window of launches remote_uses counts
  uint64_t evicted_iteration = 0;    // in which window of launches it last left the card, alive and to come back
  uint64_t demand_paged_at = 0;      // launch number of the last launch that left it to faults by choice
  uint64_t overwritten_at = 0;       // launch number of the last launch that overwrote it whole
  uint64_t repopulated_by = 0;       // execution id of the launch that it last came back empty for
  uint64_t withdrawn_until = 0;      // launch number: before it, not duplicated, since something wrote it
  uint64_t promote_iteration = 0;    // in which window of launches it is to come back into a place that others leave
  uint64_t top_user_id = 0;          // execution id of the launch that named most of it lately
  uint32_t previous_link_bytes = 0;  // the same of the window before that one
  uint32_t top_user_bytes = 0;       // by that launch
  uint32_t copied_bytes = 0;         // of the live ones, those that a copy has written and nothing else since
  uint16_t iteration_uses = 0;       // launches of the newest round that named it, when places were last looked at
  uint16_t remote_uses = 0;          // launches of this window that used it in host memory
  bool mapped_remote = false;        // the GPU has been told to map it where it lies
  bool probed = false;               // left in host memory by a launch that is to be timed, and not brought since
  bool evicting_elsewhere = false;   // another queue than evict_op's may be sending it away, too
  bool evicted_repeatedly = false;   // and did so one or two windows before, too (remote_access.cc)
  bool cold = false;                 // so little of it is used that it makes place for what is used more (placement.cc)
  bool probe_victim = false;      // it leaves so that a launch can be timed that has all of what it names on the card
  bool written_back = false;      // was copied to host memory since it was last a duplicate: to map_remote it is dear
  bool duplicate = false;         // read-mostly: a fetch leaves its host copy where it is (read_mostly.cc)
  uint8_t withdrawals = 0;        // times that something wrote it while it was a duplicate
  bool first_of_arena = false;    // of its arena
  bool ever_evicted = false;      // was evicted once: its host pages exist until the block is freed
  bool fetched_whole = false;     // if resident: the engine brought it itself, whole; faults bring what is touched
  bool in_fault_residue = false;  // in the list of FaultResidue: faults may have brought a part of it
  bool discarded = false;         // and no fetch since is known to be over: not for faults to bring (discarded.cc)
  bool reused_after_discard = false;  // in residency's list of what is alive again after that
  bool set_aside = false;             // Candidates spares it, or has put it aside
  bool in_freed_list = false;         // in residency's list of what died
  bool owned = false;                 // what died in it last belongs to an allocation that holds all of it and lives on
  uint16_t pins = 0;  // allocations in it that are never dead before their free (captured, or the host may write)
};

// Bytes of the chunk in the range, which overlap.
inline uint32_t Overlap(const Extent& range, const Chunk& chunk) {
  return static_cast<uint32_t>(std::min(range.end(), chunk.base + kChunkBytes) - std::max(range.base, chunk.base));
}

class ChunkTable {
 public:
  void AddArena(Extent arena);
  // An arena of device memory that never leaves: within the bounds, without chunks.
  void AddUnevictable(Extent arena);
  void RemoveArena(Va base);
  size_t size() const { return count_; }  // chunks
  // The chunk that holds the address; nullptr outside all arenas, and in held ones.
  Chunk* Find(Va va);
  // Whether the address lies in an arena, held or not.
  bool InArena(Va va) { return Locate(va) != nullptr; }
  // Calls f(Chunk&) for each chunk that the extent touches; what lies outside the arenas is passed over.
  template <typename F>
  void ForEach(Extent extent, F f) {
    ForEachRun(extent, [&f](Chunk* begin, Chunk* end) {
      for (Chunk* chunk = begin; chunk < end; ++chunk) f(*chunk);
    });
  }
  // Calls f(begin, end) for those of each arena.
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
  // Quick answer for the many words that are no pointers of ours; for any thread, without the lock. Who was
  // given an address sees the bounds that hold it: they are moved before its arena is used.
  bool MayHold(Va va) const {
    return va >= low_.load(std::memory_order_relaxed) && va < high_.load(std::memory_order_relaxed);
  }

 private:
  struct Arena {
    Extent range;
    std::unique_ptr<Chunk[]> chunks;  // null: held
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
  // The arena in which such an address was last found: launches name the same ones again and again.
  static size_t Slot(Va va) { return (va / kChunkBytes * 0x9e3779b97f4a7c15u) >> 55; }
  std::array<Arena*, 512> found_{};
  size_t count_ = 0;
  std::atomic<Va> low_ = kNever, high_ = 0;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_CHUNK_TABLE_H_
