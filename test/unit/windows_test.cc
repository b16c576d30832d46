// How long windows of launches are, and what has lived through one.
#include <catch2/catch_test_macros.hpp>

#include "hooklib/policy/predict/iterations.h"

namespace sluice::policy {

namespace {

// Launches until the window is over.
uint64_t Last(Iterations* windows, uint64_t* now, uint64_t period, bool confident = true) {
  for (uint64_t n = 1;; ++n) {
    ++*now;
    if (!windows->NoteLaunch(*now, period) || !windows->IsOver(*now, confident)) continue;
    windows->Begin(*now);
    return n;
  }
}

}  // namespace

TEST_CASE("the first window ends as soon as a round is known, and the next are a little longer than one") {
  Iterations windows;
  uint64_t now = 0;
  CHECK(windows.number() == 1);
  CHECK(Last(&windows, &now, 800) == 800);
  CHECK(windows.number() == 2);
  CHECK(windows.length() == 900);
  CHECK(Last(&windows, &now, 800) == 900);
}

TEST_CASE("where no round is known windows keep their length, and one nobody is sure of does not end the first") {
  for (const uint64_t period : {0, 800}) {
    Iterations windows;
    uint64_t now = 0;
    CHECK(Last(&windows, &now, period, false) == 4096);
  }
}

TEST_CASE("windows grow with the longest round at once, and shrink to half at most") {
  Iterations windows;
  uint64_t now = 0;
  Last(&windows, &now, 800);
  Last(&windows, &now, 1600);
  CHECK(windows.length() == 1800);
  Last(&windows, &now, 80);
  CHECK(windows.length() == 900);
  for (int i = 0; i < 10; ++i) Last(&windows, &now, 8);
  CHECK(windows.length() == 16);
  Last(&windows, &now, 1 << 20);
  CHECK(windows.length() == 1 << 14);
}

TEST_CASE("a chunk lasts that was there at first, later one that has lived for a round, unless it is needed") {
  Iterations windows;
  uint64_t now = 100;
  windows.NoteLaunch(now, 0);
  Chunk chunk;
  CHECK(windows.IsLongLived(chunk, 0, now));
  chunk.live_since = 100;
  CHECK_FALSE(windows.IsLongLived(chunk, 0, 5000));
  Last(&windows, &now, 800);
  chunk.live_since = now;
  CHECK_FALSE(windows.IsLongLived(chunk, 0, now + windows.length() * 8 / 9 - 1));
  now += windows.length() * 8 / 9;
  CHECK(windows.IsLongLived(chunk, 0, now));
  chunk.required_until = now + 1;
  chunk.required_by = 7;
  CHECK_FALSE(windows.IsLongLived(chunk, 0, now));
  CHECK(windows.IsLongLived(chunk, 7, now));
  CHECK(windows.IsLongLived(chunk, 0, now + 1));
}

}  // namespace sluice::policy
