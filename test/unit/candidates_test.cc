// The order of candidates for eviction.
#include "hooklib/policy/evict/candidates.h"

#include <catch2/catch_test_macros.hpp>
#include <map>
#include <vector>

#include "test/unit/fake_gpu.h"

namespace sluice::policy {

namespace {

constexpr uint64_t kNow = 1000;

// Eight resident chunks, ranked by their numbers at first.
struct Ranked {
  ChunkTable table;
  Candidates candidates;
  std::map<Va, uint64_t> rank;

  Ranked() {
    table.AddArena(Chunks(0, 8));
    table.ForAll([this](Chunk& chunk) {
      chunk.FaultIn();
      rank[chunk.base] = Number(&chunk);
      candidates.Unrank(&chunk);
    });
  }
  static uint64_t Number(const Chunk* chunk) { return (chunk->base - kBase) / kChunkBytes; }
  Chunk* At(uint64_t chunk) { return table.Find(Chunks(chunk).base); }
  void Begin() {
    candidates.Begin([this](const Chunk& chunk) { return rank[chunk.base]; });
  }
  uint64_t Next(Candidate* candidate) {
    REQUIRE(candidates.Next(candidate, kNow));
    return Number(candidate->chunk);
  }
  // All remaining candidates, in order.
  std::vector<uint64_t> Rest() {
    std::vector<uint64_t> numbers;
    for (Candidate next; candidates.Next(&next, kNow);) numbers.push_back(Number(next.chunk));
    return numbers;
  }
};

}  // namespace

TEST_CASE("the highest rank comes first, and chunks of one rank in the order of addresses") {
  Ranked gpu;
  for (const uint64_t chunk : {2, 3, 4}) gpu.rank[Chunks(chunk).base] = 9;
  gpu.Begin();
  CHECK(gpu.Rest() == std::vector<uint64_t>{2, 3, 4, 7, 6, 5, 1, 0});
}

TEST_CASE("a chunk without a prediction is as far from its next use as from its last one") {
  Ranked gpu;
  gpu.rank[Chunks(0).base] = RankWithoutPrediction(kNow - 10);
  gpu.rank[Chunks(1).base] = RankWithoutPrediction(kNow - 300);
  gpu.rank[Chunks(2).base] = kNow + 9;
  gpu.rank[Chunks(3).base] = kNow + 11;
  gpu.rank[Chunks(4).base] = kNow + 299;
  gpu.rank[Chunks(5).base] = kNow + 301;
  gpu.rank[Chunks(6).base] = 2 * kRankClass;
  gpu.rank[Chunks(7).base] = kNow - 1;
  gpu.Begin();
  CHECK(gpu.Rest() == std::vector<uint64_t>{6, 5, 1, 4, 3, 0, 2, 7});
}

TEST_CASE("a chunk's newest entry counts, and none once it was evicted") {
  Ranked gpu;
  gpu.Begin();
  gpu.rank[Chunks(0).base] = 100;
  gpu.candidates.Unrank(gpu.At(0));
  gpu.At(7)->Leave();
  gpu.candidates.Remove(gpu.At(7));
  gpu.candidates.Unrank(gpu.At(6));
  gpu.At(6)->Leave();  // before it is ranked
  gpu.Begin();
  CHECK(gpu.Rest() == std::vector<uint64_t>{0, 5, 4, 3, 2, 1});
}

TEST_CASE("a deferred chunk is no candidate again for the same launch, but for the next") {
  Ranked gpu;
  gpu.Begin();
  Candidate next;
  REQUIRE(gpu.Next(&next) == 7);
  gpu.candidates.Defer(next);
  REQUIRE(gpu.Next(&next) == 6);  // evicted
  gpu.Begin();
  CHECK(gpu.Next(&next) == 5);
  gpu.candidates.Defer(next);
  gpu.candidates.End();
  gpu.Begin();
  CHECK(gpu.Rest() == std::vector<uint64_t>{7, 5, 4, 3, 2, 1, 0});
}

TEST_CASE("protected chunks come behind the others, or in their order once protection ends") {
  for (const bool ends : {false, true}) {
    Ranked gpu;
    gpu.Begin();
    Candidate next;
    for (const uint64_t chunk : {7, 6}) {
      REQUIRE(gpu.Next(&next) == chunk);
      REQUIRE(gpu.candidates.protects());
      gpu.candidates.Protect(next);
    }
    CHECK(Ranked::Number(gpu.candidates.protected_list().front().chunk) == 7);
    if (ends) {
      REQUIRE(gpu.Next(&next) == 5);
      gpu.candidates.StopProtecting(next);
      CHECK(gpu.Rest() == std::vector<uint64_t>{7, 6, 5, 4, 3, 2, 1, 0});
    } else {
      CHECK(gpu.Rest() == std::vector<uint64_t>{5, 4, 3, 2, 1, 0, 7, 6});
    }
    CHECK_FALSE(gpu.candidates.protects());
  }
}

TEST_CASE("a deferred chunk that is ranked again or evicted is no longer deferred") {
  Ranked gpu;
  gpu.Begin();
  Candidate next;
  for (const uint64_t chunk : {7, 6}) {
    REQUIRE(gpu.Next(&next) == chunk);
    gpu.candidates.Defer(next);
  }
  gpu.rank[Chunks(7).base] = 4;
  gpu.candidates.Unrank(gpu.At(7));
  gpu.At(6)->Leave();
  gpu.candidates.Remove(gpu.At(6));
  gpu.Begin();
  CHECK(gpu.candidates.deferred_list().empty());
  CHECK_FALSE(gpu.At(7)->set_aside);
  CHECK(gpu.Rest() == std::vector<uint64_t>{5, 4, 7, 3, 2, 1, 0});
}

TEST_CASE("a rebuilt order holds each resident chunk once") {
  Ranked gpu;
  for (int i = 0; i < 600; ++i) {
    for (uint64_t chunk = 0; chunk < 8; ++chunk) gpu.candidates.Unrank(gpu.At(chunk));
    gpu.Begin();
  }
  CHECK(gpu.candidates.size() == 4800);
  CHECK(gpu.candidates.IsStale(8, 1));
  gpu.candidates.Rebuild(&gpu.table, 1, [&gpu](const Chunk& chunk) { return 8 - gpu.rank[chunk.base]; });
  CHECK(gpu.candidates.size() == 8);
  CHECK_FALSE(gpu.candidates.IsStale(8, 8193));
  CHECK(gpu.candidates.IsStale(8, 8194));
  CHECK(gpu.Rest() == std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("a removed arena leaves no entries") {
  Ranked gpu;
  gpu.Begin();
  gpu.candidates.Unrank(gpu.At(3));
  gpu.candidates.RemoveArena(Chunks(0, 4));
  CHECK(gpu.candidates.size() == 4);
  CHECK(gpu.Rest() == std::vector<uint64_t>{7, 6, 5, 4});
}

}  // namespace sluice::policy
