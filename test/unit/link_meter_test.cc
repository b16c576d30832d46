#include "hooklib/policy/budget/link_meter.h"

#include <catch2/catch_test_macros.hpp>

using sluice::policy::LinkMeter;

namespace {

constexpr uint64_t kMs = 1'000'000, kSec = 1000 * kMs, kMb = 1'000'000;

}  // namespace

TEST_CASE("without a rate nothing waits") {
  LinkMeter meter;
  meter.Count(1000 * kMb, kSec);
  CHECK_FALSE(meter.MayOwe());
  CHECK(meter.WaitNs(kSec) == 0);
}

TEST_CASE("bytes moved before the rate was set are not owed, and later ones are paid at the rate") {
  LinkMeter meter;
  meter.SetRate(1000 * kMb, 5000 * kMb, kSec);
  CHECK(meter.WaitNs(kSec) == 0);
  meter.Count(5100 * kMb, kSec);
  CHECK(meter.WaitNs(kSec) == 100 * kMs);
  CHECK(meter.WaitNs(kSec + 60 * kMs) == 40 * kMs);
  CHECK(meter.WaitNs(kSec + 100 * kMs) == 0);
}

TEST_CASE("over any time no more than the rate is moved, whatever the pieces") {
  for (const uint64_t piece : {2 * kMb, 64 * kMb, 700 * kMb}) {
    LinkMeter meter;
    uint64_t now = kSec, total = 0;
    meter.SetRate(500 * kMb, 0, now);
    while (now < 61 * kSec) {
      now += meter.WaitNs(now);
      meter.Count(total += piece, now);
    }
    CHECK(total <= 500 * kMb * 60 + 500 * kMb / 50 + 2 * piece);
    CHECK(total >= 500 * kMb * 59);
  }
}

TEST_CASE("an idle link gives a credit of 20 ms, not more") {
  LinkMeter meter;
  meter.SetRate(1000 * kMb, 0, kSec);
  meter.Count(30 * kMb, 100 * kSec);
  CHECK(meter.WaitNs(100 * kSec) == 10 * kMs);
}

TEST_CASE("a debt is paid at the newest rate, and ends with the limit") {
  LinkMeter meter;
  meter.SetRate(100 * kMb, 0, kSec);
  meter.Count(100 * kMb, kSec);
  CHECK(meter.WaitNs(kSec) == kSec);
  meter.SetRate(1000 * kMb, 100 * kMb, kSec);
  CHECK(meter.WaitNs(kSec) == 100 * kMs);
  meter.SetRate(0, 100 * kMb, kSec);
  CHECK(meter.WaitNs(kSec) == 0);
}

TEST_CASE("no debt exceeds ten seconds, however slow the rate and however large the launch") {
  LinkMeter meter;
  meter.SetRate(1, 0, kSec);
  meter.Count(UINT64_MAX, kSec);
  CHECK(meter.WaitNs(kSec) == LinkMeter::kMaxDebtNs);
  meter.SetRate(1000 * kMb, UINT64_MAX, kSec);
  meter.SetRate(1, UINT64_MAX, kSec + kMs);
  CHECK(meter.WaitNs(kSec + kMs) <= LinkMeter::kMaxDebtNs);
}

TEST_CASE("bytes that are reclaimed for others are not owed") {
  LinkMeter meter;
  meter.SetRate(1000 * kMb, 0, kSec);
  meter.Forgive(500 * kMb);
  meter.Count(600 * kMb, kSec);
  CHECK(meter.WaitNs(kSec) == 100 * kMs);
}
