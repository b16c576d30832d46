// Who leaves, where what comes next is known.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <map>

#include "test/unit/fake_card.h"

namespace sluice::core {

TEST_CASE("what the last launches used stays, where something older is needed nearly as late") {
  constexpr uint64_t kChunks = 80;
  FakeCard card(kChunks, kChunks - 10, Prefetch::kPredict);
  card.residency.set_host_access(false);
  std::map<Va, uint64_t> used;
  uint64_t sent = 0, least = UINT64_MAX;
  for (uint64_t i = 0; i < 6 * kChunks; ++i) {
    const Plan& plan = card.Queue({Chunks(i % kChunks)}, 1, 1 + i % kChunks);
    for (const Step* step : {&plan.now, &plan.ahead}) {
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
  card.residency.set_host_access(false);
  uint64_t fetched = 0;
  for (uint64_t i = 0; i < 20 * kChunks; ++i) {
    const Plan& plan = card.Queue({Chunks(i % kChunks)}, 1, 1 + i % kChunks);
    for (const Step* step : {&plan.now, &plan.ahead}) {
      for (const Extent& run : step->fetch) fetched += i < 10 * kChunks ? 0 : run.bytes / kChunkBytes;
    }
    card.Finish();
  }
  CHECK(fetched <= 20);  // with the oldest as victim: 260
}

TEST_CASE("what may not leave is asked about once for a launch, however much is fetched ahead") {
  constexpr uint64_t kBusy = 60, kRound = 80;
  FakeCard card(kBusy + kRound, kBusy + kRound - 10, Prefetch::kPredict);
  card.residency.set_host_access(false);
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

}  // namespace sluice::core
