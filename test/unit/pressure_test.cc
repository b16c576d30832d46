#include "hooklib/core/pressure.h"

#include <catch2/catch_test_macros.hpp>

namespace sluice::core {

namespace {

constexpr uint64_t kMs = 1'000'000, kLive = uint64_t{6} << 30;

// A program whose launches take 1 ms and name 64 MiB; a look that is made is over at once.
struct Program {
  Pressure pressure;
  uint64_t now = 0, looks = 0;
  uint32_t start = 100, ceiling = 100;

  // Until `until` (ns). The driver leaves `room` percent of the budget: what is held beyond faults at every launch.
  void Run(uint64_t until, uint32_t room) {
    while (now < until) {
      now += kMs;
      if (!pressure.Due(uint64_t{64} << 20, kLive)) continue;
      ++looks;
      const Pressure::Wish wish = pressure.Looked(pressure.Begin(), pressure.Of(start) > room, now);
      if (wish == Pressure::Wish::kLower) pressure.Lower(start, ceiling, now);
      if (wish == Pressure::Wish::kRaise) pressure.Raise(start, ceiling, now);
    }
  }
};

}  // namespace

TEST_CASE("where looks find everything there, the factor stays as it is and looks are rare") {
  Program program;
  program.Run(20'000 * kMs, 100);
  CHECK(program.pressure.Of(100) == 100);
  CHECK(program.pressure.Of(60) == 60);
  CHECK(!program.pressure.lowered());
  CHECK(program.looks < 20'000 / 18);
}

TEST_CASE("one look that took long changes nothing, nor do two") {
  Pressure pressure;
  uint64_t now = 0;
  for (int i = 0; i < 1000; ++i) {
    now += 20 * kMs;
    CHECK(pressure.Looked(pressure.Begin(), i % 16 < 2, now) == Pressure::Wish::kNothing);
  }
}

TEST_CASE("the factor is lowered to what the driver leaves, and raised when there is room again") {
  Program program;
  program.Run(5'000 * kMs, 70);
  CHECK(program.pressure.Of(100) <= 70);
  CHECK(program.pressure.Of(100) >= 50);
  CHECK(program.pressure.lowered());
  program.Run(20'000 * kMs, 100);
  CHECK(program.pressure.Of(100) == 100);
  CHECK(!program.pressure.lowered());
}

TEST_CASE("it does not swing: while the room stays the same, attempts to hold more become rare") {
  Program program;
  program.Run(20'000 * kMs, 70);
  uint64_t too_much = 0;
  const uint64_t from = program.now;
  while (program.now < from + 200'000 * kMs) {
    program.Run(program.now + kMs, 70);
    too_much += program.pressure.Of(100) > 70;
  }
  CHECK(too_much < 200'000 / 50);  // 2 % of the time
  CHECK(program.pressure.Of(100) >= 50);
}

TEST_CASE("where the driver says how much room there is, that is taken at once, and not tried beyond") {
  Program program;
  program.ceiling = 64;
  program.Run(2'000 * kMs, 64);
  CHECK(program.pressure.Of(100) == 64);
  program.Run(60'000 * kMs, 64);
  CHECK(program.pressure.Of(100) == 64);
}

TEST_CASE("a factor that was set is the start, from which it is only lowered") {
  Program program;
  program.start = 80;
  program.Run(5'000 * kMs, 60);
  CHECK(program.pressure.Of(80) <= 60);
  program.Run(40'000 * kMs, 100);
  CHECK(program.pressure.Of(80) == 80);
}

TEST_CASE("there is a floor") {
  Program program;
  program.Run(100'000 * kMs, 0);
  CHECK(program.pressure.Of(100) == Pressure::kFloor);
}

TEST_CASE("looks from before a change say nothing about what is") {
  Pressure pressure;
  uint64_t now = 0;
  const Pressure::Look old = pressure.Begin();
  for (int i = 0; i < 2; ++i) CHECK(pressure.Looked(old, true, now += 5 * kMs) == Pressure::Wish::kNothing);
  CHECK(pressure.Looked(old, true, now += 5 * kMs) == Pressure::Wish::kLower);
  CHECK(pressure.Lower(100, 100, now));
  for (int i = 0; i < 16; ++i) CHECK(pressure.Looked(old, true, now += 5 * kMs) == Pressure::Wish::kNothing);
  CHECK(pressure.Of(100) == 90);
}

TEST_CASE("after a change no look is made before what is held could come back") {
  Pressure pressure;
  uint64_t now = 0;
  for (int i = 0; i < 3; ++i) pressure.Looked(pressure.Begin(), true, now += 5 * kMs);
  REQUIRE(pressure.Lower(100, 100, now));
  CHECK(pressure.doubtful());
  uint64_t named = 0;
  while (!pressure.Due(uint64_t{64} << 20, kLive)) named += uint64_t{64} << 20;
  CHECK(named >= kLive);
  CHECK(!pressure.doubtful());
}

TEST_CASE("a fetch of what is there is told from one of what is not (H200, driver 580)") {
  CHECK(!Pressure::Gone(2 << 20, 4'600));
  CHECK(!Pressure::Gone(8 << 20, 100'000));  // the driver's thread had to wake up
  CHECK(Pressure::Gone(2 << 20, 110'000 + 140'000));
  CHECK(Pressure::Gone(8 << 20, 280'000 + 560'000));
}

}  // namespace sluice::core
