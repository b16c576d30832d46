// In which order chunks are candidates for leaving.
#include "hooklib/policy/evict/candidates.h"

#include <catch2/catch_test_macros.hpp>
#include <map>
#include <vector>

#include "test/unit/fake_card.h"

namespace sluice::policy {

namespace {

// Eight chunks on the card, which rank as they are numbered until told otherwise.
struct Ranked {
  ChunkTable table;
  Candidates candidates;
  std::map<Va, uint64_t> rank;

  Ranked() {
    table.AddArena(Chunks(0, 8));
    table.ForAll([this](Chunk& chunk) {
      chunk.resident = true;
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
    REQUIRE(candidates.Next(candidate));
    return Number(candidate->chunk);
  }
  // All that are left, the first first.
  std::vector<uint64_t> Rest() {
    std::vector<uint64_t> numbers;
    for (Candidate next; candidates.Next(&next);) numbers.push_back(Number(next.chunk));
    return numbers;
  }
};

}  // namespace

TEST_CASE("who ranks highest comes first, and of those that rank alike neighbours one after the other") {
  Ranked card;
  for (const uint64_t chunk : {2, 3, 4}) card.rank[Chunks(chunk).base] = 9;
  card.Begin();
  CHECK(card.Rest() == std::vector<uint64_t>{2, 3, 4, 7, 6, 5, 1, 0});
}

TEST_CASE("of the entries of a chunk the newest counts, and none once it has left") {
  Ranked card;
  card.Begin();
  card.rank[Chunks(0).base] = 100;
  card.candidates.Unrank(card.At(0));
  card.At(7)->resident = false;
  card.candidates.Remove(card.At(7));
  card.candidates.Unrank(card.At(6));
  card.At(6)->resident = false;  // before it is ranked
  card.Begin();
  CHECK(card.Rest() == std::vector<uint64_t>{0, 5, 4, 3, 2, 1});
}

TEST_CASE("who is put aside does not come again for the same launch, but for the next") {
  Ranked card;
  card.Begin();
  Candidate next;
  REQUIRE(card.Next(&next) == 7);
  card.candidates.Defer(next);
  REQUIRE(card.Next(&next) == 6);  // leaves
  card.Begin();
  CHECK(card.Next(&next) == 5);
  card.candidates.Defer(next);
  card.candidates.End();
  card.Begin();
  CHECK(card.Rest() == std::vector<uint64_t>{7, 5, 4, 3, 2, 1, 0});
}

TEST_CASE("who is spared comes behind the others, or in its order once nobody is spared any more") {
  for (const bool no_more : {false, true}) {
    Ranked card;
    card.Begin();
    Candidate next;
    for (const uint64_t chunk : {7, 6}) {
      REQUIRE(card.Next(&next) == chunk);
      REQUIRE(card.candidates.protects());
      card.candidates.Protect(next);
    }
    CHECK(Ranked::Number(card.candidates.protected_list().front().chunk) == 7);
    if (no_more) {
      REQUIRE(card.Next(&next) == 5);
      card.candidates.StopProtecting(next);
      CHECK(card.Rest() == std::vector<uint64_t>{7, 6, 5, 4, 3, 2, 1, 0});
    } else {
      CHECK(card.Rest() == std::vector<uint64_t>{5, 4, 3, 2, 1, 0, 7, 6});
    }
    CHECK_FALSE(card.candidates.protects());
  }
}

TEST_CASE("who was put aside and ranks anew is no longer, nor who has left") {
  Ranked card;
  card.Begin();
  Candidate next;
  for (const uint64_t chunk : {7, 6}) {
    REQUIRE(card.Next(&next) == chunk);
    card.candidates.Defer(next);
  }
  card.rank[Chunks(7).base] = 4;
  card.candidates.Unrank(card.At(7));
  card.At(6)->resident = false;
  card.candidates.Remove(card.At(6));
  card.Begin();
  CHECK(card.candidates.deferred_list().empty());
  CHECK_FALSE(card.At(7)->set_aside);
  CHECK(card.Rest() == std::vector<uint64_t>{5, 4, 7, 3, 2, 1, 0});
}

TEST_CASE("rebuilt, all that is on the card is ranked, and nothing else is kept") {
  Ranked card;
  for (int i = 0; i < 600; ++i) {
    for (uint64_t chunk = 0; chunk < 8; ++chunk) card.candidates.Unrank(card.At(chunk));
    card.Begin();
  }
  CHECK(card.candidates.size() == 600 * 8);
  CHECK(card.candidates.IsStale(8, 1));
  card.candidates.Rebuild(&card.table, 1, [&card](const Chunk& chunk) { return 8 - card.rank[chunk.base]; });
  CHECK(card.candidates.size() == 8);
  CHECK_FALSE(card.candidates.IsStale(8, 8193));
  CHECK(card.candidates.IsStale(8, 8194));
  CHECK(card.Rest() == std::vector<uint64_t>{0, 1, 2, 3, 4, 5, 6, 7});
}

TEST_CASE("nothing is kept of an arena that goes") {
  Ranked card;
  card.Begin();
  card.candidates.Unrank(card.At(3));
  card.candidates.RemoveArena(Chunks(0, 4));
  CHECK(card.candidates.size() == 4);
  CHECK(card.Rest() == std::vector<uint64_t>{7, 6, 5, 4});
}

}  // namespace sluice::policy
