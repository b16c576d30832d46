// The engine's own allocator. It hands out ranges of arenas that the backend made, so that an allocation costs no
// driver call and frees are seen.
//
// Requests of a chunk or more start at a chunk boundary. Smaller requests share chunks of their own arenas, so that a
// small tensor never pins a large tensor's chunk. A freed range waits for its fence before it is handed out again. Not
// thread-safe: the device's lock is held.
#ifndef SLUICE_HOOKLIB_MEMORY_ARENA_ALLOCATOR_H_
#define SLUICE_HOOKLIB_MEMORY_ARENA_ALLOCATOR_H_

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "hooklib/memory/fences.h"

namespace sluice::memory {

class ArenaAllocator {
 public:
  static constexpr uint64_t kGranule = 512;  // the least alignment that cuMemAlloc gives
  static constexpr uint64_t kMaxGrowthBytes = uint64_t{64} << 20;
  static constexpr uint64_t kSlackBytes = uint64_t{256} << 20;  // requested bytes stay below 1.25 x live and this
  static constexpr int kMaxCandidates = 32;                     // free ranges compared for one request

  explicit ArenaAllocator(Fences* fences) : fences_(fences) {}

  // A range of at least `bytes`. Nothing if no arena has a free one: then AddArena() one of GrowthFor(bytes). A range
  // that was freed in `stream` is taken first, without a wait: the new user is queued behind the old one.
  std::optional<Va> Allocate(uint64_t bytes, StreamId stream = 0);
  // Bytes of the arena to ask the backend for: a multiple of kChunkBytes, enough for `bytes`, and at most
  // kMaxGrowthBytes unless one request needs more. Large arenas are seldom wholly free and cannot be returned in parts.
  uint64_t GrowthFor(uint64_t bytes) const;
  void AddArena(Extent arena, uint64_t for_bytes);
  // `bytes` as in Allocate. The range becomes free behind the open fence, and at once for `stream` where the
  // application freed it in that stream's order.
  void Free(Va base, uint64_t bytes, StreamId stream = 0);
  // Removes arenas that are wholly free behind finished fences, while requested bytes exceed the bound. The caller
  // releases them. `kept`: freed bytes that count as live ones, while requested bytes stay within `room`.
  std::vector<Extent> TakeSurplus(uint64_t kept = 0, uint64_t room = 0);
  std::vector<Extent> TakeFreeArenas();  // the same, whatever the bound

  static uint64_t SizeFor(uint64_t bytes) { return RoundUp(bytes ? bytes : 1, kGranule); }
  // Whether an arena for `bytes` would exceed the bound although freed ranges only wait for their fences.
  bool ShouldAwaitFreed(uint64_t bytes) const {
    return has_quarantined() && requested_ + bytes > MostRequested(live_) + bytes;
  }
  bool has_quarantined() const { return !quarantine_.empty(); }  // a freed range waits for its fence
  uint64_t requested_bytes() const { return requested_; }
  uint64_t live_bytes() const { return live_; }

 private:
  struct Arena {
    uint64_t bytes;
    bool small;
    uint64_t free_bytes;
  };
  struct Quarantined {
    Extent range;
    Epoch epoch;
    StreamId stream;
  };
  struct Pool {  // free ranges by address and by size
    std::map<Va, uint64_t> by_va;
    std::set<std::pair<uint64_t, Va>> by_size;
  };

  static bool IsSmall(uint64_t bytes) { return bytes < kChunkBytes / 2; }
  static uint64_t MostRequested(uint64_t live) { return live + live / 4 + kSlackBytes; }
  std::vector<Extent> TakeFreeArenasDownTo(uint64_t requested);
  std::optional<Va> TakeFreedInStream(StreamId stream, uint64_t size);
  void Drain();
  void InsertFree(Extent range);
  void EraseFree(Pool* pool, std::map<Va, uint64_t>::iterator it);
  std::optional<Va> TakeFree(uint64_t bytes);
  std::map<Va, Arena>::iterator ArenaOf(Va va);

  Fences* fences_;
  std::map<Va, Arena> arenas_;
  Pool small_, large_;
  std::deque<Quarantined> quarantine_;
  uint64_t drained_ = 0;  // number of the quarantine's front
  // Quarantined ranges that were freed in a stream's order: stream, size, number.
  std::set<std::tuple<StreamId, uint64_t, uint64_t>> freed_in_stream_;
  uint64_t requested_ = 0;
  uint64_t live_ = 0;
};

}  // namespace sluice::memory

#endif  // SLUICE_HOOKLIB_MEMORY_ARENA_ALLOCATOR_H_
