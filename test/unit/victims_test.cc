// Who leaves, where what comes next is known.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <map>

#include "test/unit/fake_card.h"

namespace sluice::policy {

TEST_CASE("what the last launches used stays, where something older is needed nearly as late") {
  constexpr uint64_t kChunks = 80;
  FakeCard card(kChunks, kChunks - 10, Prefetch::kPredict);
  card.residency.set_remote_access(false);
  std::map<Va, uint64_t> used;
  uint64_t sent = 0, least = UINT64_MAX;
  for (uint64_t i = 0; i < 6 * kChunks; ++i) {
    const Plan& plan = card.Queue({Chunks(i % kChunks)}, 1, 1 + i % kChunks);
    for (const PlanStep* step : {&plan.now, &plan.ahead}) {
      for (const Extent& run : step->evict) {
        for (Va base = run.base; base < run.end(); base += kChunkBytes) {
          if (i < 3 * kChunks) continue;
          ++sent;
          least = std::min(least, i - used[base]);
        }
      }
    }
    used[kBase + i % kChunks * kChunkBytes] = i;
    card.Finish();
  }
  CHECK(sent > 0);
  CHECK(sent < kChunks);  // three rounds, of which each lacks ten
  CHECK(least >= 20);
}

TEST_CASE("what is needed at once does not leave for what was used just now") {
  // Round and round: what was used last is needed last, and what was used longest ago is next.
  constexpr uint64_t kChunks = 26;
  FakeCard card(kChunks, kChunks - 1, Prefetch::kPredict);
  card.residency.set_remote_access(false);
  uint64_t fetched = 0;
  for (uint64_t i = 0; i < 20 * kChunks; ++i) {
    const Plan& plan = card.Queue({Chunks(i % kChunks)}, 1, 1 + i % kChunks);
    for (const PlanStep* step : {&plan.now, &plan.ahead}) {
      for (const Extent& run : step->fetch) fetched += i < 10 * kChunks ? 0 : run.bytes / kChunkBytes;
    }
    card.Finish();
  }
  CHECK(fetched <= 20);  // with the oldest as victim: 260
}

TEST_CASE("what dies soon stays, where others leave that would have to in any case") {
  // Twenty chunks that live on are used, ten are born beside them, which fills the room, and five more are used: who
  // leaves for these? What was born dies; others are born that go round in more than the room, and die. They push out
  // the twenty in any case, which are needed no sooner than what was born is used again.
  constexpr uint64_t kBorn = 20, kMore = 30, kOthers = 35, kAll = 75, kRoom = 30;
  FakeCard card(kAll, kRoom, Prefetch::kPredict);
  card.residency.set_remote_access(false);
  card.residency.set_in_order(true);
  const Extent born = Chunks(kBorn, kMore - kBorn), others = Chunks(kOthers, kAll - kOthers), all = Chunks(0, kAll);
  card.residency.RemoveLive(born, all);
  card.residency.RemoveLive(others, all);
  uint64_t sent = 0;
  const auto launch = [&](uint64_t id, uint64_t chunk) {
    const Plan& plan = card.Queue({Chunks(chunk)}, 1, id);
    for (const PlanStep* step : {&plan.now, &plan.ahead}) {
      for (const Extent& run : step->evict) {
        for (Va at = run.base; at < run.end(); at += kChunkBytes)
          sent += born.base <= at && at < born.end() ? kChunkBytes : 0;
      }
    }
    card.Finish();
  };
  for (int round = 0; round < 40; ++round) {
    if (round == 30) sent = 0;
    for (uint64_t i = 0; i < kBorn; ++i) launch(100 + i, i);
    card.residency.AddLive(born);
    for (uint64_t i = kBorn; i < kMore; ++i) launch(100 + i, i);
    for (uint64_t i = 0; i < 30; ++i) launch(200 + i, kMore - 1);  // what was used just now stays anyhow
    for (uint64_t i = kMore; i < kOthers; ++i) launch(300 + i, i);
    card.residency.RemoveLive(born, all);
    card.residency.AddLive(others);
    for (uint64_t i = 0; i < 8 * (kAll - kOthers); ++i) launch(400 + i, kOthers + i % (kAll - kOthers));
    card.residency.RemoveLive(others, all);
  }
  INFO((sent >> 20) << " MiB of what is born left in ten rounds");
  CHECK(sent <= 10 * kChunkBytes);
}

TEST_CASE("what may not leave is asked about once for a launch, however much is fetched ahead") {
  constexpr uint64_t kBusy = 60, kRound = 80;
  FakeCard card(kBusy + kRound, kBusy + kRound - 10, Prefetch::kPredict);
  card.residency.set_remote_access(false);
  card.Queue({Chunks(kRound, kBusy)}, 2);  // never done
  uint64_t most_asked = 0, most_fetched = 0;
  for (uint64_t i = 0; i < 6 * kRound; ++i) {
    if (i == 3 * kRound) card.residency.set_capacity((kBusy + kRound - 40) * kChunkBytes);
    card.time.asked = 0;
    const Plan& plan = card.Queue({Chunks(i % kRound)}, 1, 1 + i % kRound);
    uint64_t fetched = 0;
    for (const Extent& run : plan.ahead.fetch) fetched += run.bytes / kChunkBytes;
    most_asked = std::max(most_asked, card.time.asked);
    most_fetched = std::max(most_fetched, fetched);
    card.Finish();
  }
  CHECK(most_fetched >= 8);
  CHECK(most_asked <= 3 * kBusy);
}

TEST_CASE("what of an arena nobody was given goes first, and without a copy") {
  FakeCard card(8, 8);
  card.residency.AddArena(Chunks(16, 8), true);
  card.residency.AddLive(Chunks(16, 4));
  card.Queue({Chunks(16, 4)});
  card.Finish();
  const Plan& plan = card.Queue({Chunks(0, 4)});
  CHECK(plan.discard == std::vector<Extent>{Chunks(20, 4)});
  CHECK(plan.now.evict.empty());
  CHECK(card.Resident(16));
  CHECK(card.residency.resident_bytes() == 8 * kChunkBytes);
  // Given to somebody it is fetched like anything else.
  card.Finish();
  card.residency.AddLive(Chunks(20, 4));
  card.Queue({Chunks(20, 4)});
  CHECK(card.Resident(20));
  CHECK(card.residency.resident_bytes() == 8 * kChunkBytes);
}

TEST_CASE("what died makes no room for a launch once it was found that the card still uses it") {
  const auto tried = [](bool finished) {
    FakeCard card(14, 8, Prefetch::kPredict);
    for (const uint64_t at : {8, 4}) {
      card.Queue({Chunks(at, 4)});
      card.Finish();
    }
    card.Queue({Chunks(0, 4)});  // in the place of 8 to 11
    card.residency.RemoveLive(Chunks(0, 4));
    card.Queue({Chunks(12, 2)}, 2);  // would have their place: 4 and 5 leave instead
    CHECK_FALSE(card.Resident(4));
    card.Finish(2);
    if (finished) card.Finish(1);
    const LaunchProbe probe = card.Queue({Chunks(8, 4)}, 1, 100).probe;
    CHECK(card.Resident(6));
    CHECK(card.Resident(8) == finished);
    return probe.host_bytes > 0;
  };
  CHECK(tried(false));
  CHECK_FALSE(tried(true));
}

TEST_CASE("what is believed to be back by faults, and dies, is not discarded while it is still being sent away") {
  FakeCard card(12, 4);
  card.time.transfers_instant = false;
  card.Queue({Chunks(0, 4)});
  card.time.FinishTransfers(1, 1, 0);
  REQUIRE(card.Queue({Chunks(4, 4)}).now.out_op == 1);  // 0 to 3 are on their way out
  card.residency.Prepare(1, ++card.seq[1], std::vector<Extent>{Chunks(0)}, 7, false);
  card.time.Queue(1, card.seq[1]);
  REQUIRE(card.Resident(0));
  card.residency.RemoveLive(Chunks(0));
  const auto discarded = [&card] {
    card.Finish();
    const Plan& plan = card.Queue({Chunks(4 + card.seq[1] % 8)});
    return !plan.discard.empty() || !plan.stream_discard.empty();
  };
  for (int i = 0; i < 4; ++i) CHECK_FALSE(discarded());
  card.time.FinishTransfers(1, 100, 100);
  bool at_last = false;
  for (int i = 0; i < 4; ++i) at_last |= discarded();
  CHECK(at_last);
}

}  // namespace sluice::policy
