// A launch that cannot be held whole and says what it uses most.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "test/unit/fake_card.h"

namespace sluice::policy {

namespace {

struct Card : FakeCard {
  Card(uint64_t total, uint64_t capacity, Prefetch mode = Prefetch::kLaunch) : FakeCard(total, capacity, mode) {
    residency.set_remote_access(false);
    for (uint64_t i = 0; i < total; ++i) Launch({Chunks(i)}, {});
  }
  // `hotter`: so many extents are used more than the others. Fetching the rest is the fastest way.
  const Plan& Launch(const std::vector<Extent>& set, std::optional<size_t> hotter) {
    const Plan& plan = Queue(set, 1, 7, 0, hotter);
    Finish();
    if (plan.graph_probe.id)
      residency.NoteMeasured(plan.graph_probe, plan.graph_probe.strategy == GraphStrategy::kFetch ? 1000 : 2000);
    return plan;
  }
  // Up to the first launch that has what is hottest brought.
  const Plan& Try(const std::vector<Extent>& set, size_t hotter) {
    Launch(set, hotter);
    Launch(set, hotter);
    return Launch(set, hotter);
  }
};

}  // namespace

TEST_CASE("the hottest part of what cannot be held takes the place of the rest of it, and stays") {
  Card card(12, 4);                                           // 8 to 11 are on the card
  const std::vector<Extent> set{Chunks(0, 3), Chunks(4, 8)};  // 0 to 2 by most nodes
  const Plan& first = card.Try(set, 1);
  REQUIRE(first.graph_probe.strategy == GraphStrategy::kFetch);
  CHECK(first.now.evict.size() == 1);  // three of those that are there; which of them makes no odds
  CHECK(first.now.evict[0].bytes == 3 * kChunkBytes);
  CHECK(first.wait_in == first.now.in_op);
  for (int round = 0; round < 3; ++round) {
    const Plan& again = card.Launch(set, 1);
    CHECK(again.now.evict.empty());
    CHECK(again.now.fetch == again.evict_after);
    for (uint64_t i = 0; i < 3; ++i) CHECK(card.Resident(i));
  }
  CHECK(card.residency.resident_bytes() == 4 * kChunkBytes);
}

TEST_CASE("where all of it is used alike, by faults, or where all fits, nothing is sent away for it") {
  for (int which = 0; which < 2; ++which) {
    Card card(12, 4, which == 1 ? Prefetch::kOff : Prefetch::kLaunch);
    const Plan& plan = card.Try({Chunks(0, 3), Chunks(4, 8)}, which);
    CHECK(plan.now.evict.empty());
    CHECK(card.Resident(11));
  }
  Card card(12, 12);
  CHECK(card.Try({Chunks(0, 3), Chunks(4, 8)}, 1).now.empty());
}

TEST_CASE(
    "of a launch that cannot be held, and is no graph, far smaller operands are held and the largest makes place") {
  for (const bool small : {true, false}) {
    Card card(40, 16);  // 24 to 39 are on the card
    // A table of 32 chunks, and one that is named behind it: far smaller, or half as large.
    const Extent other = small ? Chunks(0, 2) : Chunks(0, 16);
    const std::vector<Extent> set{Chunks(8, 32), other};
    card.Launch(set, {});
    CHECK(card.Resident(0) == small);
    CHECK(card.Resident(1) == small);
    CHECK(card.residency.resident_bytes() <= 16 * kChunkBytes);
    const ResidencyStats before = card.residency.stats();
    for (int i = 0; i < 10; ++i) card.Launch(set, {});
    CHECK(card.Resident(0) == small);
    CHECK(card.residency.stats().bytes_in - before.bytes_in == 0);  // nothing goes to and fro
  }
}

TEST_CASE("work in between takes its part; the graph takes it back from that, not from itself") {
  Card card(12, 4);
  const std::vector<Extent> set{Chunks(0, 3), Chunks(4, 6)};
  card.Try(set, 1);
  card.Launch(set, 1);
  card.Launch({Chunks(11)}, {});
  const Plan& plan = card.Launch(set, 1);
  uint64_t sent = 0;
  for (const Extent& run : plan.now.evict) sent += run.bytes / kChunkBytes;
  CHECK(sent <= 1);
  for (uint64_t i = 0; i < 3; ++i) CHECK(card.Resident(i));
}

TEST_CASE("of a graph of which all that is alive is used more than the rest, what is used most is held") {
  Card card(12, 4);  // 8 to 11 are on the card
  const std::vector<Extent> set{Chunks(0, 4), Chunks(4, 8)};
  for (int i = 0; i < 12; ++i) card.Launch(set, 2);
  for (uint64_t i = 0; i < 4; ++i) CHECK(card.Resident(i));
}

}  // namespace sluice::policy
