#include "hooklib/memory/arena_allocator.h"

#include <catch2/catch_test_macros.hpp>
#include <map>
#include <random>

#include "test/unit/fake_timeline.h"

namespace sluice::memory {

namespace {

constexpr uint64_t kMi = 1 << 20;

// An allocator with a backend that always has more.
struct Served {
  FakeTimeline time;
  Fences fences{&time};
  ArenaAllocator arenas{&fences};
  Va next = uint64_t{1} << 40;

  Va Allocate(uint64_t bytes) {
    auto va = arenas.Allocate(bytes);
    if (!va) {
      const Extent arena{next, arenas.GrowthFor(bytes)};
      next += arena.bytes + kChunkBytes;
      arenas.AddArena(arena, bytes);
      va = arenas.Allocate(bytes);
    }
    REQUIRE(va);
    return *va;
  }
};

}  // namespace

TEST_CASE("large requests start at a chunk, small ones share chunks of their own") {
  Served s;
  const Va small = s.Allocate(100), other = s.Allocate(100), large = s.Allocate(3 * kMi);
  CHECK(small % ArenaAllocator::kGranule == 0);
  CHECK(RoundDown(small, kChunkBytes) == RoundDown(other, kChunkBytes));
  CHECK(large % kChunkBytes == 0);
  CHECK(RoundDown(small, kChunkBytes) != large);
}

TEST_CASE("a freed range is not handed out before its fence is done") {
  Served s;
  const Va a = s.Allocate(4 * kMi);
  s.time.Queue(1, 3);  // a kernel that may use it is still queued
  s.arenas.Free(a, 4 * kMi);
  const Va b = s.Allocate(4 * kMi);
  CHECK(b != a);
  s.time.Finish(1, 3);
  CHECK(s.Allocate(4 * kMi) == a);
}

TEST_CASE("a range freed with nothing queued is reused at once, without growth") {
  Served s;
  const Va a = s.Allocate(8 * kMi);
  const uint64_t requested = s.arenas.requested_bytes();
  for (int i = 0; i < 1000; ++i) {
    s.arenas.Free(a, 8 * kMi);
    REQUIRE(s.Allocate(8 * kMi) == a);
  }
  CHECK(s.arenas.requested_bytes() == requested);
}

TEST_CASE("random sequences: no overlap, and requested bytes stay within the bound once surplus is taken") {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    Served s;
    std::mt19937 random(seed);
    std::map<Va, uint64_t> live;
    uint64_t max_live = 0;
    for (int i = 0; i < 3000; ++i) {
      if (live.empty() || random() % 5 < 3) {
        const uint64_t bytes = random() % 3 == 0 ? random() % (24 * kMi) + 1 : random() % (600 << 10) + 1;
        const Va va = s.Allocate(bytes);
        const auto after = live.lower_bound(va);
        if (after != live.end()) REQUIRE(va + bytes <= after->first);
        if (after != live.begin()) REQUIRE(std::prev(after)->first + std::prev(after)->second <= va);
        live[va] = bytes;
      } else {
        auto it = live.lower_bound(random());
        if (it == live.end()) it = live.begin();
        s.arenas.Free(it->first, it->second);
        live.erase(it);
      }
      uint64_t sum = 0;
      for (const auto& [va, bytes] : live) sum += ArenaAllocator::SizeFor(bytes);
      REQUIRE(s.arenas.live_bytes() == sum);
      max_live = std::max(max_live, sum);
    }
    for (const auto& [va, bytes] : live) s.arenas.Free(va, bytes);
    s.arenas.TakeSurplus();
    s.fences.Close();
    s.arenas.TakeSurplus();
    CHECK(s.arenas.live_bytes() == 0);
    CHECK(s.arenas.requested_bytes() <= ArenaAllocator::kSlackBytes);
  }
}

TEST_CASE("freed bytes that count as live ones stay within the room") {
  for (const uint64_t room : {uint64_t{0}, 512 * kMi, 4096 * kMi}) {
    Served s;
    for (int i = 0; i < 64; ++i) s.arenas.AddArena({(uint64_t{1} << 40) + i * 64 * kMi, 64 * kMi}, 64 * kMi);
    const Va live = *s.arenas.Allocate(64 * kMi);
    s.arenas.TakeSurplus(1024 * kMi, room);
    const uint64_t live_alone = 64 * kMi + 16 * kMi + ArenaAllocator::kSlackBytes;
    const uint64_t all = 1088 * kMi + 272 * kMi + ArenaAllocator::kSlackBytes;
    const uint64_t most = std::max(live_alone, std::min(all, room));
    CHECK(s.arenas.requested_bytes() <= most);
    CHECK(s.arenas.requested_bytes() + 64 * kMi > most);
    s.arenas.Free(live, 64 * kMi);
  }
}

TEST_CASE("a range freed in stream order is reusable there at once, and elsewhere behind its fence") {
  Served s;
  s.arenas.AddArena({uint64_t{1} << 39, 64 * kMi}, 8 * kMi);
  s.arenas.AddArena({uint64_t{1} << 38, kChunkBytes}, 4096);
  s.time.Queue(1, 1);
  for (const uint64_t bytes : {uint64_t{4096}, 8 * kMi}) {
    const Va p = *s.arenas.Allocate(bytes, 1);
    s.arenas.Free(p, bytes, 1);
    CHECK(s.arenas.Allocate(bytes, 2) != p);
    CHECK(s.arenas.Allocate(bytes, 1) == p);
    CHECK(s.arenas.Allocate(bytes, 1) != p);  // taken once
    s.arenas.Free(p, bytes);                  // by cuMemFree: in no stream's order
    CHECK(s.arenas.Allocate(bytes, 1) != p);
  }
  // A smaller request takes a piece; a small range's rest goes on being that stream's.
  const Va q = *s.arenas.Allocate(8192, 1);
  s.arenas.Free(q, 8192, 1);
  CHECK(s.arenas.Allocate(4096, 1) == q);
  CHECK(s.arenas.Allocate(4096, 1) == q + 4096);
  // Nothing is lost: all of it is free once the GPU has finished.
  for (const Va part : {q, q + 4096}) s.arenas.Free(part, 4096, 1);
  s.fences.Close();
  s.time.Finish(1, 1);
  bool found = false;
  while (const auto va = s.arenas.Allocate(8192, 2)) found |= *va == q;
  CHECK(found);
}

}  // namespace sluice::memory
