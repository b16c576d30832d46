// A launch that cannot be held whole and says what it uses most.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "test/unit/fake_card.h"

namespace sluice::core {

namespace {

struct Card : FakeCard {
  Card(uint64_t total, uint64_t capacity, Prefetch mode = Prefetch::kLaunch) : FakeCard(total, capacity, mode) {
    residency.set_host_access(false);
    for (uint64_t i = 0; i < total; ++i) Launch({Chunks(i)}, false);
  }
  const Plan& Launch(const std::vector<Extent>& set, bool hottest_first) {
    const Plan& plan = Queue(set, 1, 7, 0, hottest_first);
    Finish();
    return plan;
  }
};

}  // namespace

TEST_CASE("the hottest part of what cannot be held takes the place of the rest of it, and stays") {
  Card card(12, 4);                                           // 8 to 11 are on the card
  const std::vector<Extent> set{Chunks(0, 3), Chunks(4, 8)};  // 0 to 2 by most nodes
  const Plan& first = card.Launch(set, true);
  CHECK(first.now.evict == std::vector<Extent>{Chunks(8, 4)});
  CHECK(first.now.fetch == std::vector<Extent>{Chunks(0, 3), Chunks(4)});
  CHECK(first.wait_in == first.now.in_op);
  for (int round = 0; round < 3; ++round) {
    const Plan& again = card.Launch(set, true);
    CHECK(again.now.empty());
    for (uint64_t i = 0; i < 3; ++i) CHECK(card.Resident(i));
    CHECK(card.Resident(4));
  }
  CHECK(card.residency.resident_bytes() == 4 * kChunkBytes);
}

TEST_CASE("without an order of use, by faults, or where all fits, nothing is sent away for it") {
  for (int which = 0; which < 2; ++which) {
    Card card(12, 4, which == 1 ? Prefetch::kOff : Prefetch::kLaunch);
    const Plan& plan = card.Launch({Chunks(0, 3), Chunks(4, 8)}, which == 1);
    CHECK(plan.now.evict.empty());
    CHECK(card.Resident(11));
  }
  Card card(12, 12);
  CHECK(card.Launch({Chunks(0, 3), Chunks(4, 8)}, true).now.empty());
}

TEST_CASE("work in between takes its part; the graph takes it back from that, not from itself") {
  Card card(12, 4);
  const std::vector<Extent> set{Chunks(0, 3), Chunks(4, 6)};
  card.Launch(set, true);
  card.Launch({Chunks(11)}, false);
  const Plan& plan = card.Launch(set, true);
  uint64_t sent = 0;
  for (const Extent& run : plan.now.evict) sent += run.bytes / kChunkBytes;
  CHECK(sent <= 1);
  for (uint64_t i = 0; i < 3; ++i) CHECK(card.Resident(i));
}

}  // namespace sluice::core
