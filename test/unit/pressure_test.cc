#include "hooklib/policy/budget/pressure.h"

#include <catch2/catch_test_macros.hpp>

namespace sluice::policy {

namespace {

constexpr uint64_t kBlock = uint64_t{64} << 20, kLive = uint64_t{6} << 30, kRound = kLive / kBlock;

// A program whose launches name 64 MiB each.
struct Program {
  Pressure pressure;
  Pressure::Totals moved;
  uint32_t start = 100, ceiling = 100;
  uint64_t too_much = 0, changes = 0;  // launches

  // The driver leaves `room` percent of the budget: of what is held beyond, every launch loses what it names.
  void Run(uint64_t launches, uint32_t room) {
    for (uint64_t i = 0; i < launches; ++i) {
      const bool lost = pressure.FactorFrom(start) > room;
      too_much += lost;
      if (lost) {
        moved.taken += kBlock;
        moved.faults += kBlock;
      }
      const Pressure::Advice wish = pressure.NoteLaunches(kBlock, moved, kLive);
      if (wish == Pressure::Advice::kLower) changes += pressure.Lower(start, ceiling);
      if (wish == Pressure::Advice::kRaise) changes += pressure.Raise(start, ceiling);
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

TEST_CASE("what leaves and does not come back by faults is nobody's loss, nor what comes by faults and was not taken") {
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

TEST_CASE("what is lost while it says nothing does not count afterwards") {
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
    program.Run(kRound, 100);
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

TEST_CASE("a little in each of two rounds is enough") {
  Program program;
  for (uint64_t i = 0; i < 2 * kRound; ++i) {
    CHECK(!program.pressure.is_lowered());
    program.moved.taken += uint64_t{1} << 20;
    program.moved.faults += uint64_t{1} << 20;
    program.Run(1, 100);
  }
  CHECK(program.pressure.is_lowered());
}

TEST_CASE("the factor is lowered to what the driver leaves, within a few rounds, and raised when there is room again") {
  Program program;
  program.Run(kRound, 100);
  program.Run(5 * kRound, 70);
  CHECK(program.pressure.FactorFrom(100) <= 70);
  CHECK(program.pressure.FactorFrom(100) >= 50);
  CHECK(program.pressure.is_lowered());
  CHECK(program.pressure.is_persistent());
  program.Run(60 * kRound, 100);
  CHECK(program.pressure.FactorFrom(100) == 100);
  CHECK(!program.pressure.is_lowered());
}

TEST_CASE("it does not swing: while the room stays the same, attempts to hold more become rare") {
  Program program;
  program.Run(200 * kRound, 70);
  program.too_much = 0;
  program.Run(2000 * kRound, 70);
  CHECK(program.too_much < 2000 * kRound / 50);  // 2 % of the launches
  CHECK(program.pressure.FactorFrom(100) >= 50);
}

TEST_CASE("where the driver says how much room there is, that is taken at once, and not tried beyond") {
  Program program;
  program.ceiling = 64;
  program.Run(kRound, 64);
  CHECK(program.pressure.FactorFrom(100) == 64);
  program.Run(600 * kRound, 64);
  CHECK(program.pressure.FactorFrom(100) == 64);
  CHECK(program.changes == 1);
}

TEST_CASE("a factor that was set is the start, from which it is only lowered") {
  Program program;
  program.start = 80;
  program.Run(6 * kRound, 60);
  CHECK(program.pressure.FactorFrom(80) <= 60);
  program.Run(60 * kRound, 100);
  CHECK(program.pressure.FactorFrom(80) == 80);
}

TEST_CASE("there is a floor") {
  Program program;
  program.Run(100 * kRound, 0);
  CHECK(program.pressure.FactorFrom(100) == Pressure::kMinPercent);
}

TEST_CASE("after a change nothing counts before what is held could come back") {
  Program program;
  while (program.changes == 0) program.Run(1, 70);
  REQUIRE(program.pressure.FactorFrom(100) == 90);
  CHECK(program.pressure.distorts_timing());
  program.Run(kRound, 0);
  CHECK(program.pressure.FactorFrom(100) == 90);
  program.Run(kRound, 90);
  CHECK(!program.pressure.distorts_timing());
}

}  // namespace sluice::policy
