// Allocations of one process: addresses, residency of managed blocks on cards, contents. No time in here but the marks
// that the misuse detector needs; who moves what and how long it takes is the simulator's.
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

// Up to 2 MiB of a managed allocation. Masks count granules of 64 KiB; a granule is on a card, on the host, on both
// (read-mostly duplicate) or nowhere yet.
struct Block {
  int32_t chunk = -1;
  uint32_t generation = 0;
  int16_t card = kHostCard;
  int16_t preferred = -2;    // -2: none, -1: host, else a card
  uint16_t accessed_by = 0;  // bit per card
  bool read_mostly = false;
  bool was_duplicated = false;  // was advised so before
  bool came_out = false;        // was moved to the host since it was last advised so
  uint32_t resident = 0;
  uint32_t host = 0;
  uint32_t lazy = 0;       // discarded: still backed on the card, not mapped
  uint32_t discarded = 0;  // and not moved since, nor written by faults
  uint32_t unused = 0;     // of resident: moved in by a prefetch, and touched by nobody since
  int64_t use_until = 0;
  uint16_t moving = 0;  // prefetches that have begun and are not through
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
  uint64_t buffer_id = 0;
  void* owner = nullptr;  // context, pool or handle: the API's business
  std::vector<Block> blocks;
  ContentMap content{0};
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

  // An address range of its own, or 0 when the address space is used up.
  uint64_t Reserve(uint64_t size, uint64_t alignment);
  void Unreserve(uint64_t address, uint64_t size);
  bool InArena(uint64_t address) const { return address - base_ < kArenaBytes; }

  Allocation* Add(uint64_t base, uint64_t size, MemoryKind kind, int card);
  void Remove(Allocation* a);
  Allocation* Find(uint64_t address);  // nullptr: nothing lives there
  // The allocation that was freed there last, for a sentence; 0 when none was.
  uint64_t FreedBy(uint64_t address, uint64_t* base) const;
  void NoteFreed(const Allocation& a, uint64_t operation);

  BlockPart PartAt(Allocation* a, uint64_t address, uint64_t end);
  // Brings the block's masks up to date with the chunk table: another may have evicted it. Residency is stale before.
  void Validate(Block* b);

  // Residency, without time. All need the state's lock.
  bool Place(Block* b, const BlockPart& part, int card, uint32_t mask, bool keep_host);  // false: table full
  void MoveToHost(Block* b, const BlockPart& part, uint32_t mask);
  // The advice was withdrawn: of each duplicate one copy stays, on the host unless the card is where it prefers to lie.
  void WithdrawDuplicates(Block* b, const BlockPart& part);
  void DropFromCard(Block* b, const BlockPart& part, uint32_t mask);
  void Discard(Block* b, const BlockPart& part, uint32_t mask);
  void Touch(Block* b);  // youngest in the eviction order
  void UpdateChunk(Block* b, uint32_t block_bytes);
  // Takes the oldest chunk away from its owner; returns bytes that must be moved out, or -1 when there is none.
  int64_t EvictOldest(int card);

  // What prefetches moved to the card, and nobody touched before it left, or has touched yet.
  uint64_t Unused(int card) const;

  const std::map<uint64_t, std::unique_ptr<Allocation>>& all() const { return all_; }
  uint64_t managed_requested = 0;
  // So many bytes of this process were moved out for somebody else's; said when it is noticed (Validate).
  std::function<void(int card, uint64_t bytes)> on_taken;

 private:
  // With the block's card still known: what was there unused and is not there now.
  void CountUnused(Block* b);
#ifdef __SANITIZE_THREAD__
  static constexpr uint64_t kArenaBytes = 1ull << 39;  // its runtime leaves a program 1.5 TiB in one piece
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
