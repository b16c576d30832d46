#include "memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>

namespace simgpu {
namespace {

constexpr uint64_t kSmallAlignment = 512;

uint64_t RoundUp(uint64_t x, uint64_t to) { return (x + to - 1) / to * to; }

}  // namespace

uint32_t MaskOf(uint64_t from, uint64_t to) {
  const uint64_t a = from / kGranuleBytes, b = (to + kGranuleBytes - 1) / kGranuleBytes;
  return static_cast<uint32_t>(((1ull << b) - 1) & ~((1ull << a) - 1));
}

uint32_t WholeMaskOf(uint64_t from, uint64_t to) {
  const uint64_t a = (from + kGranuleBytes - 1) / kGranuleBytes, b = to / kGranuleBytes;
  return b <= a ? 0 : static_cast<uint32_t>(((1ull << b) - 1) & ~((1ull << a) - 1));
}

uint64_t BytesOf(uint32_t mask, uint32_t block_bytes) {
  if (mask == 0) return 0;
  uint64_t bytes = static_cast<uint64_t>(std::popcount(mask)) * kGranuleBytes;
  // The last granule of an allocation may be short.
  const uint64_t granules = (block_bytes + kGranuleBytes - 1) / kGranuleBytes;
  if ((mask >> (granules - 1) & 1) != 0) bytes -= granules * kGranuleBytes - block_bytes;
  return bytes;
}

Memory::Memory(SharedState& state) : state_(state) {
  // Plausible addresses that no other memory of the process can have, and that fault if the host touches them.
  void* arena = mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (arena == MAP_FAILED) {
    std::fprintf(stderr, "simgpu: %llu bytes of address space are not available; is there a limit (ulimit -v)?\n",
                 static_cast<unsigned long long>(kArenaBytes));
    std::_Exit(2);
  }
  base_ = reinterpret_cast<uint64_t>(arena);
  next_ = RoundUp(base_, kBlockBytes) + kBlockBytes;
}

uint64_t Memory::Reserve(uint64_t size, uint64_t alignment) {
  size = RoundUp(size, kSmallAlignment);
  alignment = std::max(alignment, size >= kBlockBytes / 2 ? kBlockBytes : kSmallAlignment);
  for (auto it = holes_.lower_bound(size); it != holes_.end(); ++it) {
    const auto [hole, at] = *it;
    const uint64_t address = RoundUp(at, alignment);
    if (address + size > at + hole) continue;
    // A managed allocation below 2 MiB must not straddle two blocks: it has one.
    if (size < kBlockBytes && address / kBlockBytes != (address + size - 1) / kBlockBytes) continue;
    holes_.erase(it);
    if (address > at) holes_.emplace(address - at, at);
    if (address + size < at + hole) holes_.emplace(at + hole - address - size, address + size);
    return address;
  }
  const uint64_t take = RoundUp(std::max(size, kBlockBytes), kBlockBytes);
  const uint64_t address = RoundUp(next_, alignment);
  if (address + take > base_ + kArenaBytes || take < size) return 0;
  if (address > next_) holes_.emplace(address - next_, next_);
  next_ = address + take;
  if (take > size) holes_.emplace(take - size, address + size);
  return address;
}

bool Memory::ReserveAt(uint64_t address, uint64_t size) {
  size = RoundUp(size, kSmallAlignment);
  const uint64_t end = address + size;
  if (!InArena(address) || end < address || end > base_ + kArenaBytes || address % kSmallAlignment != 0) return false;
  if (end > next_) {
    const uint64_t next = RoundUp(end, kBlockBytes);
    holes_.emplace(next - next_, next_);
    next_ = next;
  }
  JoinHoles();
  for (auto it = holes_.begin(); it != holes_.end(); ++it) {
    const auto [hole, at] = *it;
    if (address < at || end > at + hole) continue;
    holes_.erase(it);
    if (address > at) holes_.emplace(address - at, at);
    if (end < at + hole) holes_.emplace(at + hole - end, end);
    return true;
  }
  return false;
}

void Memory::Unreserve(uint64_t address, uint64_t size) {
  size = RoundUp(size, kSmallAlignment);
  holes_.emplace(size, address);
  // Now and then; the order of reuse does not matter.
  if (holes_.size() > 4096) JoinHoles();
}

void Memory::JoinHoles() {
  std::map<uint64_t, uint64_t> by_address;
  for (const auto& [n, at] : holes_) by_address.emplace(at, n);
  holes_.clear();
  uint64_t at = 0, length = 0;
  for (const auto& [a, n] : by_address) {
    if (length != 0 && at + length == a) {
      length += n;
      continue;
    }
    if (length != 0) holes_.emplace(length, at);
    at = a;
    length = n;
  }
  if (length != 0) holes_.emplace(length, at);
}

Allocation* Memory::Add(uint64_t base, uint64_t size, MemoryKind kind, int card) {
  auto a = std::make_unique<Allocation>();
  a->base = base;
  a->size = size;
  a->kind = kind;
  a->card = card;
  a->buffer_id = next_id_++;
  a->content = std::make_shared<ContentMap>(size);
  if (kind == MemoryKind::kManaged) {
    const uint64_t first = base / kBlockBytes, last = (base + size - 1) / kBlockBytes;
    a->blocks.resize(last - first + 1);
  }
  Allocation* raw = a.get();
  all_[base] = std::move(a);
  freed_.erase(base);
  return raw;
}

void Memory::Remove(Allocation* a) {
  std::fill(last_found_.begin(), last_found_.end(), nullptr);
  for (Block& b : a->blocks) {
    Validate(&b);
    if (b.chunk < 0) continue;
    b.resident = 0;
    CountUnused(&b);
    state_.ReleaseChunk(b.card, b.chunk);
  }
  all_.erase(a->base);
}

Allocation* Memory::Find(uint64_t address) {
  if (!InArena(address)) return nullptr;
  Allocation*& cached = last_found_[(address >> 9) * 0x9E3779B97F4A7C15ull >> 54];
  if (cached != nullptr && address - cached->base < cached->size) return cached;
  auto it = all_.upper_bound(address);
  if (it == all_.begin()) return nullptr;
  --it;
  if (address - it->first >= it->second->size) return nullptr;
  return cached = it->second.get();
}

void Memory::NoteFreed(const Allocation& a, uint64_t operation) {
  if (freed_.size() > 4096) freed_.clear();
  freed_[a.base] = {a.base + a.size, operation};
}

uint64_t Memory::FreedBy(uint64_t address, uint64_t* base) const {
  auto it = freed_.upper_bound(address);
  if (it == freed_.begin()) return 0;
  --it;
  if (address >= it->second.end) return 0;
  *base = it->first;
  return it->second.operation;
}

BlockPart Memory::PartAt(Allocation* a, uint64_t address, uint64_t end) {
  const uint64_t index = address / kBlockBytes - a->base / kBlockBytes;
  const uint64_t start = std::max(a->base, (a->base / kBlockBytes + index) * kBlockBytes);
  const uint64_t stop = std::min(a->base + a->size, (a->base / kBlockBytes + index + 1) * kBlockBytes);
  const uint64_t from = address - start, to = std::min(end, stop) - start;
  const auto block_bytes = static_cast<uint32_t>(stop - start);
  const uint32_t mask = MaskOf(from, to);
  uint32_t whole = WholeMaskOf(from, to);
  if (start + to == stop && block_bytes % kGranuleBytes != 0 && from <= block_bytes / kGranuleBytes * kGranuleBytes) {
    whole |= 1u << (block_bytes / kGranuleBytes);  // the short last granule
  }
  return {&a->blocks[index], start, block_bytes, mask, whole};
}

void Memory::Validate(Block* b) {
  if (b->chunk < 0 || state_.chunk(b->card, b->chunk).generation == b->generation) return;
  const uint64_t moved = static_cast<uint64_t>(std::popcount(b->resident & ~b->host)) * kGranuleBytes;
  if (moved != 0 && on_taken) on_taken(b->card, moved);
  b->host |= b->resident;
  b->resident = b->lazy = 0;
  CountUnused(b);
  b->chunk = -1;
  b->card = kHostCard;
}

void Memory::CountUnused(Block* b) {
  const uint32_t left = b->unused & ~b->resident;
  b->unused &= b->resident;
  evicted_unused_[b->card] += static_cast<uint64_t>(std::popcount(left)) * kGranuleBytes;
}

uint64_t Memory::Unused(int card) const {
  uint64_t bytes = evicted_unused_[card];
  for (const auto& [base, allocation] : all_) {
    for (const Block& b : allocation->blocks) {
      if (b.card == card) bytes += static_cast<uint64_t>(std::popcount(b.unused)) * kGranuleBytes;
    }
  }
  return bytes;
}

void Memory::UpdateChunk(Block* b, uint32_t block_bytes) {
  if (b->chunk < 0) return;
  CountUnused(b);
  Chunk& c = state_.chunk(b->card, b->chunk);
  const uint32_t backed = b->resident | b->lazy;
  if (backed == 0) {
    state_.ReleaseChunk(b->card, b->chunk);
    b->chunk = -1;
    b->card = kHostCard;
    return;
  }
  const auto bytes = static_cast<uint32_t>(BytesOf(backed, block_bytes));
  if (bytes != c.bytes) {
    const uint64_t more = static_cast<uint64_t>(bytes) - c.bytes;  // wraps when it shrinks, on purpose
    state_.card(b->card).managed_used += more;
    state_.self().managed[b->card] += more;
    c.bytes = bytes;
  }
  c.out_bytes = static_cast<uint32_t>(BytesOf(b->resident & ~b->host, block_bytes));
}

bool Memory::Place(Block* b, const BlockPart& part, int card, uint32_t mask, bool keep_host) {
  if (b->chunk >= 0 && b->card != card) {
    // From another card: all of the block moves.
    mask |= b->resident;
    const uint32_t moved = b->resident;
    b->resident = b->lazy = 0;
    UpdateChunk(b, part.block_bytes);
    b->host &= ~moved;
  }
  if (b->chunk < 0) {
    b->chunk = state_.TakeChunk(card, part.address, 0);
    if (b->chunk < 0) return false;
    b->card = static_cast<int16_t>(card);
    b->generation = state_.chunk(card, b->chunk).generation;
    state_.chunk(card, b->chunk).bytes = 0;
  }
  b->resident |= mask;
  b->lazy &= ~mask;
  b->discarded &= ~mask;
  if (!keep_host) b->host &= ~mask;
  UpdateChunk(b, part.block_bytes);
  state_.MoveToTail(card, b->chunk, kUsed);
  return true;
}

void Memory::MoveToHost(Block* b, const BlockPart& part, uint32_t mask) {
  const uint32_t moved = mask & b->resident;
  b->was_evicted = b->was_evicted || moved != 0;
  b->host |= moved;
  b->resident &= ~moved;
  b->lazy &= ~mask;
  b->discarded &= ~mask;
  UpdateChunk(b, part.block_bytes);
}

void Memory::PopulateOnHost(Block* b, const BlockPart& part, uint32_t mask) {
  b->host |= mask;
  b->lazy &= ~mask;
  b->discarded &= ~mask;
  UpdateChunk(b, part.block_bytes);
}

void Memory::WithdrawDuplicates(Block* b, const BlockPart& part) {
  b->read_mostly = false;
  const uint32_t both = b->resident & b->host;
  if (b->preferred >= 0 && b->preferred == b->card) {
    b->host &= ~both;
  } else {
    b->resident &= ~both;
  }
  UpdateChunk(b, part.block_bytes);
}

void Memory::DropFromCard(Block* b, const BlockPart& part, uint32_t mask) {
  b->resident &= ~mask;
  b->lazy &= ~mask;
  UpdateChunk(b, part.block_bytes);
}

void Memory::Discard(Block* b, const BlockPart& part, uint32_t mask) {
  b->lazy |= b->resident & mask;
  b->discarded |= mask;
  b->resident &= ~mask;
  b->host &= ~mask;
  UpdateChunk(b, part.block_bytes);
  if (b->chunk >= 0 && b->resident == 0) state_.MoveToTail(b->card, b->chunk, kUnused);
}

void Memory::Touch(Block* b) {
  if (b->chunk >= 0) state_.MoveToTail(b->card, b->chunk, kUsed);
}

int64_t Memory::EvictOldest(int card) {
  Card& c = state_.card(card);
  const int32_t i = c.head[kUnused] >= 0 ? c.head[kUnused] : c.head[kUsed];
  if (i < 0) return -1;
  const Chunk& k = state_.chunk(card, i);
  const int64_t out = k.out_bytes;
  if (k.slot >= 0) state_.header().slots[k.slot].evicted[card] += k.bytes;
  state_.ReleaseChunk(card, i);
  return out;
}

}  // namespace simgpu
