// What is fetched before the launch that needs it, beyond what the next launches need.
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <optional>

#include "test/unit/fake_card.h"

namespace sluice::policy {

namespace {

// A training step in small. 300 launches take a chunk each (300 to 599) and 300 use them again, beside 300 chunks that
// live on (0 to 299), of which 200 have no room then. All that was taken dies, a quiet part follows, and then what
// lives on is used in order.
struct Training : FakeCard {
  static constexpr uint64_t kLasting = 300, kTaken = 300, kQuiet = 150, kHot = kLasting + kTaken, kCapacity = 400;
  std::optional<uint64_t> again;  // in the quiet part so many launches on, so much is taken again, at once
  bool names = false;             // launches of the quiet part use what died

  Training() : FakeCard(kHot + 1, kCapacity, Prefetch::kPredict) {
    residency.set_remote_access(false);
    residency.set_in_order(true);
    residency.set_max_prefetch_bytes(4 * kChunkBytes);
    residency.RemoveLive(Chunks(kLasting, kTaken), All());
  }
  static Extent All() { return Chunks(0, kHot + 1); }
  void Launch(Extent set, uint64_t id) {
    Queue({set}, 1, id);
    Finish();
  }
  void Take(uint64_t first, uint64_t count) { residency.AddLive(Chunks(first, count)); }
  void Free(uint64_t first, uint64_t count) { residency.RemoveLive(Chunks(first, count), All()); }
  uint64_t OnCard() {
    uint64_t count = 0;
    for (uint64_t i = 0; i < kLasting; ++i) count += Resident(i) ? 1 : 0;
    return count;
  }
  void Forward() {
    for (uint64_t i = 0; i < kTaken; ++i) {
      Take(kLasting + i, 1);
      Launch(Chunks(kLasting + i), 1000 + i);
    }
    for (uint64_t i = 0; i < kTaken; ++i) Launch(Chunks(kHot - 1 - i), 1500 + i);
    Free(kLasting, kTaken);
  }
  void Quiet(uint64_t launches = kQuiet) {
    for (uint64_t i = 0; i < launches; ++i) {
      if (again && i == *again) Take(kLasting, kTaken);
      Launch(Chunks(names ? kLasting + i : kHot), 2000 + i);
      if (again && i == *again) Free(kLasting, kTaken);
    }
  }
  void Backward() {
    for (uint64_t i = 0; i < kLasting; ++i) Launch(Chunks(i), 3000 + i);
  }
};

}  // namespace

TEST_CASE("what is needed far ahead comes in the place of what died, and a part of that stays free") {
  Training step;
  for (int i = 0; i < 4; ++i) {
    step.Forward();
    step.Quiet();
    step.Backward();
  }
  step.Forward();
  const uint64_t before = step.OnCard(), out = step.residency.stats().bytes_out;
  REQUIRE(before < 150);
  step.Quiet();
  // Of the capacity 128 chunks stay free for what is taken anew.
  INFO(before << " on the card before, " << step.OnCard() << " after");
  CHECK(step.OnCard() > 200);  // by 4 ahead it would be 107
  CHECK(step.OnCard() <= Training::kCapacity - 128);
  CHECK(step.residency.stats().bytes_out == out);
}

TEST_CASE("what is needed far ahead does not come where what lives grows until then") {
  Training step;
  step.again = 140;  // of 150
  for (int i = 0; i < 4; ++i) {
    step.Forward();
    step.Quiet();
    step.Backward();
  }
  step.Forward();
  const uint64_t before = step.OnCard(), out = step.residency.stats().bytes_out;
  step.Quiet(140);
  INFO(before << " on the card before, " << step.OnCard() << " after");
  CHECK(step.OnCard() <= before + 8);
  CHECK(step.residency.stats().bytes_out == out);
}

TEST_CASE("room is made before what lives grows, where departures are fast") {
  for (const bool slow : {true, false}) {
    INFO((slow ? "slow" : "fast"));
    Training step;
    step.residency.set_slow_write_back(slow);
    for (int i = 0; i < 4; ++i) {
      step.Forward();
      step.Quiet();
      step.Backward();
    }
    step.Forward();
    step.Quiet();
    const uint64_t out = step.residency.stats().bytes_out;
    step.Backward();  // all that it needs has room, and soon 300 chunks are taken
    const uint64_t left = (step.residency.stats().bytes_out - out) / kChunkBytes;
    CHECK((left > 50) == !slow);
    CHECK(left < 250);
  }
}

TEST_CASE("what is needed far ahead does not come in the place of what is named before") {
  Training step;
  step.names = true;
  for (int i = 0; i < 4; ++i) {
    step.Forward();
    step.Quiet();
    step.Backward();
  }
  step.Forward();
  const auto stays = [&step] {
    uint64_t count = 0;
    for (uint64_t i = 100; i < Training::kQuiet; ++i) count += step.Resident(Training::kLasting + i) ? 1 : 0;
    return count;
  };
  const uint64_t before = step.OnCard(), named = stays();
  step.Quiet(100);
  CHECK(step.OnCard() > before + 50);
  CHECK(stays() == named);
}

}  // namespace sluice::policy
