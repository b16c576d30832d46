#include "hooklib/memory/chunk_table.h"

#include <algorithm>

namespace sluice::memory {

namespace {
bool BaseBelow(Va va, const Extent& range) { return va < range.base; }
}  // namespace

void ChunkTable::AddUnevictable(Extent arena) { Insert({arena, nullptr}); }

void ChunkTable::AddArena(Extent arena) {
  const uint64_t count = arena.bytes / kChunkBytes;
  arenas_.reserve(arenas_.size() + 1);  // may throw, so before kept chunks are taken
  Arena entry{arena, nullptr};
  if (auto kept = kept_.extract(count); !kept.empty()) {
    entry.chunks = std::move(kept.mapped());
    kept_count_ -= count;
  } else {
    entry.chunks = std::make_unique<Chunk[]>(count);
  }
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t log_ref = entry.chunks[i].log_ref;  // tells that its last use was before a free
    entry.chunks[i] = Chunk();
    entry.chunks[i].log_ref = log_ref;
    entry.chunks[i].base = arena.base + i * kChunkBytes;
  }
  entry.chunks[0].first_of_arena = true;
  Insert(std::move(entry));
}

void ChunkTable::Insert(Arena entry) {
  const auto at = std::upper_bound(arenas_.begin(), arenas_.end(), entry.range.base,
                                   [](Va va, const Arena& a) { return BaseBelow(va, a.range); });
  arenas_.insert(at, std::move(entry));
  Bound();
}

bool ChunkTable::RemoveArena(Va base) {
  const auto at =
      std::find_if(arenas_.begin(), arenas_.end(), [base](const Arena& arena) { return arena.range.base == base; });
  if (at == arenas_.end()) return true;
  if (at->chunks) {
    const uint64_t count = at->range.bytes / kChunkBytes;
    kept_.emplace(count, std::move(at->chunks));
    kept_count_ += count;
  }
  arenas_.erase(at);
  Bound();
  if (kept_count_ <= kMaxKept) return true;
  kept_.clear();
  kept_count_ = 0;
  return false;
}

void ChunkTable::Bound() {
  low_.store(arenas_.empty() ? kNever : arenas_.front().range.base, std::memory_order_relaxed);
  high_.store(arenas_.empty() ? 0 : arenas_.back().range.end(), std::memory_order_relaxed);
  found_.fill(nullptr);
  count_ = 0;
  for (const Arena& arena : arenas_) count_ += arena.chunks ? arena.range.bytes / kChunkBytes : 0;
}

ChunkTable::Arena* ChunkTable::Search(Va va) {
  if (!MayHold(va)) return nullptr;
  auto it = std::upper_bound(arenas_.begin(), arenas_.end(), va,
                             [](Va value, const Arena& a) { return BaseBelow(value, a.range); });
  if (it == arenas_.begin()) return nullptr;
  --it;
  if (!Holds(*it, va)) return nullptr;
  found_[Slot(va)] = &*it;
  return &*it;
}

Chunk* ChunkTable::Find(Va va) {
  Arena* const arena = Locate(va);
  if (!arena || !arena->chunks) return nullptr;
  return &arena->chunks[(va - arena->range.base) / kChunkBytes];
}

}  // namespace sluice::memory
