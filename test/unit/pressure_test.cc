#include "hooklib/policy/budget/pressure.h"

#include <catch2/catch_test_macros.hpp>

namespace sluice::policy {

namespace {

constexpr uint64_t kBlock = uint64_t{64} << 20, kLive = uint64_t{6} << 30, kPeriod = kLive / kBlock;

// A program whose launches name 64 MiB each.
struct Program {
  Pressure pressure;
  Pressure::Totals moved;
  uint32_t start = 100, ceiling = 100;
  uint64_t too_much = 0, changes = 0;  // launches

  // The driver leaves `room` percent of the budget: where more is resident, each launch loses the chunks that it names.
  void Run(uint64_t launches, uint32_t room) {
    for (uint64_t i = 0; i < launches; ++i) {
      const bool lost = pressure.FactorFrom(start) > room;
      too_much += lost;
      if (lost) {
        moved.taken += kBlock;
        moved.faults += kBlock;
      }
      const Pressure::Advice advice = pressure.NoteLaunches(kBlock, moved, kLive);
      if (advice == Pressure::Advice::kLower) changes += pressure.Lower(start, ceiling);
      if (advice == Pressure::Advice::kRaise) changes += pressure.Raise(start, ceiling);
    }
  }
};

}  // namespace

TEST_CASE("where launches lose nothing the factor stays as it is") {
  Program program;
  program.Run(20'000, 100);
  CHECK(program.pressure.FactorFrom(100) == 100);
  CHECK(program.pressure.FactorFrom(60) == 60);
  CHECK(!program.pressure.is_lowered());
  CHECK(!program.pressure.distorts_timing());
}

TEST_CASE("evicted bytes that are not faulted in are no loss, nor are faults on bytes that were not evicted") {
  Program program;
  for (int i = 0; i < 2000; ++i) {
    program.moved.taken += kBlock;
    program.Run(1, 100);
  }
  CHECK(!program.pressure.is_lowered());
  for (int i = 0; i < 2000; ++i) {
    program.moved.faults += kBlock;
    program.Run(1, 100);
  }
  CHECK(!program.pressure.is_lowered());
}

TEST_CASE("losses while the estimate is paused do not count afterwards") {
  Program program;
  for (int i = 0; i < 2000; ++i) {
    program.moved.taken += kBlock;
    program.moved.faults += kBlock;
    program.pressure.Skip(program.moved);
  }
  program.Run(2000, 100);
  CHECK(program.changes == 0);
}

TEST_CASE("a loss now and then, or a small one, changes nothing") {
  Program program;
  for (int i = 0; i < 100; ++i) {
    program.Run(kPeriod, 100);
    program.moved.taken += kBlock;
    program.moved.faults += kBlock;
    program.Run(1, 100);
  }
  for (int i = 0; i < 10'000; ++i) {
    program.moved.taken += uint64_t{256} << 10;
    program.moved.faults += uint64_t{256} << 10;
    program.Run(1, 100);
  }
  CHECK(!program.pressure.is_lowered());
}

TEST_CASE("a little loss in each of two iterations is enough") {
  Program program;
  for (uint64_t i = 0; i < 2 * kPeriod; ++i) {
    CHECK(!program.pressure.is_lowered());
    program.moved.taken += uint64_t{1} << 20;
    program.moved.faults += uint64_t{1} << 20;
    program.Run(1, 100);
  }
  CHECK(program.pressure.is_lowered());
}

TEST_CASE("the factor is lowered to the share that the driver leaves, and raised when there is room again") {
  Program program;
  program.Run(kPeriod, 100);
  program.Run(5 * kPeriod, 70);
  CHECK(program.pressure.FactorFrom(100) <= 70);
  CHECK(program.pressure.FactorFrom(100) >= 50);
  CHECK(program.pressure.is_lowered());
  CHECK(program.pressure.is_persistent());
  program.Run(60 * kPeriod, 100);
  CHECK(program.pressure.FactorFrom(100) == 100);
  CHECK(!program.pressure.is_lowered());
}

TEST_CASE("while the room stays the same, attempts to raise the factor become rare") {
  Program program;
  program.Run(200 * kPeriod, 70);
  program.too_much = 0;
  program.Run(2000 * kPeriod, 70);
  CHECK(program.too_much < 2000 * kPeriod / 50);  // 2 % of the launches
  CHECK(program.pressure.FactorFrom(100) >= 50);
}

TEST_CASE("a ceiling that the driver reports is adopted at once, and not exceeded") {
  Program program;
  program.ceiling = 64;
  program.Run(kPeriod, 64);
  CHECK(program.pressure.FactorFrom(100) == 64);
  program.Run(600 * kPeriod, 64);
  CHECK(program.pressure.FactorFrom(100) == 64);
  CHECK(program.changes == 1);
}

TEST_CASE("a factor that was set is the start, from which it is only lowered") {
  Program program;
  program.start = 80;
  program.Run(6 * kPeriod, 60);
  CHECK(program.pressure.FactorFrom(80) <= 60);
  program.Run(60 * kPeriod, 100);
  CHECK(program.pressure.FactorFrom(80) == 80);
}

TEST_CASE("the factor has a floor") {
  Program program;
  program.Run(100 * kPeriod, 0);
  CHECK(program.pressure.FactorFrom(100) == Pressure::kMinPercent);
}

TEST_CASE("after a change no loss counts until the resident bytes could be fetched again") {
  Program program;
  while (program.changes == 0) program.Run(1, 70);
  REQUIRE(program.pressure.FactorFrom(100) == 90);
  CHECK(program.pressure.distorts_timing());
  program.Run(kPeriod, 0);
  CHECK(program.pressure.FactorFrom(100) == 90);
  program.Run(kPeriod, 90);
  CHECK(!program.pressure.distorts_timing());
}

}  // namespace sluice::policy
