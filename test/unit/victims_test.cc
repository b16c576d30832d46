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

}  // namespace sluice::core
