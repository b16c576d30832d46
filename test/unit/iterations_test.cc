// The length of iterations, and which chunks are long-lived.
#include "hooklib/policy/predict/iterations.h"

#include <catch2/catch_test_macros.hpp>

namespace sluice::policy {

namespace {

// Launches until the iteration is over.
uint64_t LaunchesToEnd(Iterations* iterations, uint64_t* now, uint64_t period, bool confident = true) {
  for (uint64_t n = 1;; ++n) {
    ++*now;
    if (!iterations->NoteLaunch(*now, period) || !iterations->IsOver(*now, confident)) continue;
    iterations->Begin(*now);
    return n;
  }
}

}  // namespace

TEST_CASE("the first iteration ends as soon as a period is known, and the next are a little longer than it") {
  Iterations iterations;
  uint64_t now = 0;
  CHECK(iterations.number() == 1);
  CHECK(LaunchesToEnd(&iterations, &now, 800) == 800);
  CHECK(iterations.number() == 2);
  CHECK(iterations.length() == 900);
  CHECK(LaunchesToEnd(&iterations, &now, 800) == 900);
}

TEST_CASE("without a known period iterations keep their length, and an uncertain one does not end the first") {
  for (const uint64_t period : {0, 800}) {
    Iterations iterations;
    uint64_t now = 0;
    CHECK(LaunchesToEnd(&iterations, &now, period, false) == 4096);
  }
}

TEST_CASE("iterations grow with the longest period at once, and shrink to half at most") {
  Iterations iterations;
  uint64_t now = 0;
  LaunchesToEnd(&iterations, &now, 800);
  LaunchesToEnd(&iterations, &now, 1600);
  CHECK(iterations.length() == 1800);
  LaunchesToEnd(&iterations, &now, 80);
  CHECK(iterations.length() == 900);
  for (int i = 0; i < 10; ++i) LaunchesToEnd(&iterations, &now, 8);
  CHECK(iterations.length() == 16);
  LaunchesToEnd(&iterations, &now, 1 << 20);
  CHECK(iterations.length() == 1 << 14);
}

TEST_CASE("a chunk is long-lived if it was live at first, or for an iteration, unless a launch requires it") {
  Iterations iterations;
  uint64_t now = 100;
  iterations.NoteLaunch(now, 0);
  Chunk chunk;
  CHECK(iterations.IsLongLived(chunk, 0, now));
  chunk.live_since = 100;
  CHECK_FALSE(iterations.IsLongLived(chunk, 0, 5000));
  LaunchesToEnd(&iterations, &now, 800);
  chunk.live_since = now;
  CHECK_FALSE(iterations.IsLongLived(chunk, 0, now + iterations.length() * 8 / 9 - 1));
  now += iterations.length() * 8 / 9;
  CHECK(iterations.IsLongLived(chunk, 0, now));
  chunk.required_until = now + 1;
  chunk.required_by = 7;
  CHECK_FALSE(iterations.IsLongLived(chunk, 0, now));
  CHECK(iterations.IsLongLived(chunk, 7, now));
  CHECK(iterations.IsLongLived(chunk, 0, now + 1));
}

}  // namespace sluice::policy
