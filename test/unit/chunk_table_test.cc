#include "hooklib/memory/chunk_table.h"

#include <catch2/catch_test_macros.hpp>
#include <random>
#include <utility>
#include <vector>

namespace sluice::memory {

namespace {

constexpr Va kBase = uint64_t{1} << 40;
Extent Chunks(uint64_t first, uint64_t count) { return {kBase + first * kChunkBytes, count * kChunkBytes}; }

// The chunks that ForEach names, by number.
std::vector<uint64_t> Named(ChunkTable* table, Extent extent) {
  std::vector<uint64_t> named;
  table->ForEach(extent, [&](Chunk& chunk) { named.push_back((chunk.base - kBase) / kChunkBytes); });
  return named;
}

}  // namespace

TEST_CASE("chunks are found by any address inside them, and gaps have none") {
  ChunkTable table;
  CHECK(table.Find(kBase) == nullptr);
  table.AddArena(Chunks(4, 2));
  table.AddArena(Chunks(0, 2));
  CHECK(table.size() == 4);
  CHECK(table.Find(kBase + 4 * kChunkBytes + 5) == table.Find(kBase + 4 * kChunkBytes));
  CHECK(table.Find(kBase + 2 * kChunkBytes) == nullptr);
  CHECK_FALSE(table.InArena(kBase + 2 * kChunkBytes));
  CHECK(table.Find(kBase)->first_of_arena);
  CHECK_FALSE(table.Find(kBase + kChunkBytes)->first_of_arena);
  CHECK(Named(&table, {kBase + kChunkBytes + 1, 3 * kChunkBytes}) == std::vector<uint64_t>{1, 4});
  CHECK(Named(&table, {kBase, 1}) == std::vector<uint64_t>{0});
}

TEST_CASE("an unevictable arena is within the bounds and has no chunks") {
  ChunkTable table;
  table.AddUnevictable(Chunks(0, 2));
  table.AddArena(Chunks(2, 1));
  CHECK(table.InArena(kBase));
  CHECK(table.MayHold(kBase));
  CHECK(table.Find(kBase) == nullptr);
  CHECK(table.size() == 1);
  CHECK(Named(&table, Chunks(0, 3)) == std::vector<uint64_t>{2});
}

TEST_CASE("a removed arena is not found by an answer from before") {
  ChunkTable table;
  table.AddArena(Chunks(0, 2));
  table.AddArena(Chunks(8, 2));
  CHECK(table.Find(kBase + 8 * kChunkBytes) != nullptr);
  table.RemoveArena(kBase + 8 * kChunkBytes);
  CHECK(table.Find(kBase + 8 * kChunkBytes) == nullptr);
  CHECK_FALSE(table.MayHold(kBase + 8 * kChunkBytes));
  CHECK(table.Find(kBase)->base == kBase);
}

TEST_CASE("chunks of removed arenas stay valid memory until they are released together") {
  ChunkTable table;
  table.AddArena(Chunks(0, 4));
  Chunk* const first = table.Find(kBase);
  first->last_use = 7;
  CHECK(table.RemoveArena(kBase));
  CHECK(first->last_use == 7);
  table.AddArena(Chunks(64, 4));  // gets the memory, as new
  CHECK(table.Find(kBase + 64 * kChunkBytes) == first);
  CHECK(first->last_use == 0);
  CHECK(first->first_of_arena);
  CHECK(first->base == kBase + 64 * kChunkBytes);
  int released = 0;
  for (uint64_t i = 1; i <= 3; ++i) {
    table.AddArena(Chunks(1000 * i, 8000));
    table.AddArena(Chunks(100'000 * i, 8000 + i));
    released += !table.RemoveArena(kBase + 1000 * i * kChunkBytes);
    released += !table.RemoveArena(kBase + 100'000 * i * kChunkBytes);
  }
  CHECK(released > 0);  // kept chunks are bounded
  CHECK(released < 3);
}

TEST_CASE("arenas that are added and removed are found as in a list") {
  std::mt19937 random(1);
  ChunkTable table;
  constexpr uint64_t kSlots = 40, kSlotChunks = 3;
  std::vector<bool> is_there(kSlots);
  for (int step = 0; step < 2000; ++step) {
    const uint64_t slot = random() % kSlots;
    const Extent arena = Chunks(slot * 4, kSlotChunks);  // a chunk between two arenas belongs to none
    if (is_there[slot]) table.RemoveArena(arena.base);
    if (!is_there[slot]) table.AddArena(arena);
    is_there[slot] = !is_there[slot];
    const uint64_t at = random() % (kSlots * 4);
    Chunk* const chunk = table.Find(kBase + at * kChunkBytes + random() % kChunkBytes);
    REQUIRE((chunk != nullptr) == (is_there[at / 4] && at % 4 < kSlotChunks));
    if (chunk) REQUIRE(chunk->base == kBase + at * kChunkBytes);
    std::vector<uint64_t> expected;
    const uint64_t from = random() % (kSlots * 4), count = random() % 12 + 1;
    for (uint64_t i = from; i < from + count; ++i) {
      if (i / 4 < kSlots && is_there[i / 4] && i % 4 < kSlotChunks) expected.push_back(i);
    }
    REQUIRE(Named(&table, Chunks(from, count)) == expected);
  }
}

}  // namespace sluice::memory
