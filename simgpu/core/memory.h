// Allocations of one process: addresses, residency of managed blocks on cards, contents. Time appears only in the
// misuse detector's marks; the simulator decides which memory moves and how long it takes.
#ifndef SIMGPU_CORE_MEMORY_H_
#define SIMGPU_CORE_MEMORY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "content.h"
#include "shared_state.h"

namespace simgpu {

constexpr uint64_t kGranuleBytes = 64 << 10;
constexpr int kHostCard = -1;

// Up to 2 MiB of a managed allocation. Masks count granules of 64 KiB. A granule is on a card, on the host, on both
// (read-mostly duplicate), or not populated.
struct Block {
  int32_t chunk = -1;
  uint32_t generation = 0;
  int16_t card = kHostCard;
  int16_t preferred = -2;      // -2: none, -1: host, else a card
  int16_t last_prefetch = -2;  // where a call sent it last; as above
  uint16_t accessed_by = 0;    // bit per card
  bool accessed_by_host = false;
  bool read_mostly = false;
  bool was_duplicated = false;  // had the advice before
  bool was_evicted = false;     // moved to the host since the last advice
  uint32_t resident = 0;
  uint32_t host = 0;
  uint32_t lazy = 0;       // discarded: backed on the card, but not mapped
  uint32_t discarded = 0;  // neither moved nor written by faults since
  uint32_t unused = 0;     // resident by a prefetch and untouched since
  int64_t use_until = 0;
  uint16_t moving = 0;  // prefetches in flight
  uint64_t user = 0;
};

enum class MemoryKind : uint8_t { kUnmanaged, kManaged, kPool, kMapped };

struct Allocation {
  uint64_t base = 0, size = 0;
  uint64_t requested = 0;
  MemoryKind kind = MemoryKind::kUnmanaged;
  int card = 0;
  bool counted = true;        // against the card, by this object (mapped memory is counted by its handle)
  bool host_located = false;  // mapped memory on the host
  bool sync_memops = false;   // as a call set it
  bool is_freed = false;      // by a call in stream order that has not taken effect
  uint64_t buffer_id = 0;
  void* owner = nullptr;  // context, pool or handle, for the API
  void* pool = nullptr;   // of managed memory that a pool gave
  std::vector<Block> blocks;
  std::shared_ptr<ContentMap> content;  // mappings of one handle share it
};

// A part of an allocation inside one block.
struct BlockPart {
  Block* block;
  uint64_t address;  // of the block
  uint32_t block_bytes;
  uint32_t mask;        // granules that the part touches
  uint32_t whole_mask;  // granules that it covers wholly
};

uint32_t MaskOf(uint64_t from, uint64_t to);       // granules touched by byte offsets [from, to) of a block
uint32_t WholeMaskOf(uint64_t from, uint64_t to);  // granules inside
uint64_t BytesOf(uint32_t mask, uint32_t block_bytes);

class Memory {
 public:
  explicit Memory(SharedState& state);

  // An address range of its own, or 0: the address space is used up.
  uint64_t Reserve(uint64_t size, uint64_t alignment);
  // At this address. False: not all of it is free, or it is outside the arena.
  bool ReserveAt(uint64_t address, uint64_t size);
  void Unreserve(uint64_t address, uint64_t size);
  bool InArena(uint64_t address) const { return address - base_ < kArenaBytes; }

  Allocation* Add(uint64_t base, uint64_t size, MemoryKind kind, int card);
  void Remove(Allocation* a);
  Allocation* Find(uint64_t address);  // nullptr: not allocated
  // The operation that last freed memory at the address, for messages; 0: none.
  uint64_t FreedBy(uint64_t address, uint64_t* base) const;
  void NoteFreed(const Allocation& a, uint64_t operation);

  BlockPart PartAt(Allocation* a, uint64_t address, uint64_t end);
  // Updates the block's masks from the chunk table, since another process may have evicted it. Residency is stale
  // before.
  void Validate(Block* b);

  // Residency, without time. All need the state's lock.
  bool Place(Block* b, const BlockPart& part, int card, uint32_t mask, bool keep_host);  // false: table full
  void MoveToHost(Block* b, const BlockPart& part, uint32_t mask);
  void PopulateOnHost(Block* b, const BlockPart& part, uint32_t mask);  // pages that are nowhere
  // The advice was withdrawn: one copy of each duplicate remains, on the host unless the card is the preferred
  // location.
  void WithdrawDuplicates(Block* b, const BlockPart& part);
  void DropFromCard(Block* b, const BlockPart& part, uint32_t mask);
  void Discard(Block* b, const BlockPart& part, uint32_t mask);
  void Touch(Block* b);  // youngest in the eviction order
  void UpdateChunk(Block* b, uint32_t block_bytes);
  // Evicts the oldest chunk. Returns the bytes that must be copied to the host, or -1: nothing can be evicted.
  int64_t EvictOldest(int card);

  // Bytes that prefetches moved to the card and that were evicted untouched, or are still untouched.
  uint64_t Unused(int card) const;

  const std::map<uint64_t, std::unique_ptr<Allocation>>& all() const { return all_; }
  uint64_t managed_requested = 0;
  // Called by Validate for bytes of this process that were evicted for another process' memory.
  std::function<void(int card, uint64_t bytes)> on_taken;

 private:
  void JoinHoles();  // neighbours
  // Counts evicted untouched bytes. The block's card must still be set.
  void CountUnused(Block* b);
#ifdef __SANITIZE_THREAD__
  static constexpr uint64_t kArenaBytes = 1ull << 39;  // the sanitizer's runtime leaves 1.5 TiB in one piece
#else
  static constexpr uint64_t kArenaBytes = 1ull << 41;
#endif
  SharedState& state_;
  uint64_t base_;
  uint64_t next_;
  std::map<uint64_t, std::unique_ptr<Allocation>> all_;
  std::vector<Allocation*> last_found_ = std::vector<Allocation*>(1024, nullptr);
  std::multimap<uint64_t, uint64_t> holes_;  // size -> address
  struct Freed {
    uint64_t end, operation;
  };
  std::map<uint64_t, Freed> freed_;
  uint64_t next_id_ = 1;
  uint64_t evicted_unused_[kMaxCards] = {};  // bytes
};

}  // namespace simgpu

#endif  // SIMGPU_CORE_MEMORY_H_
