// The largest working set of a day, and the sentence about a container's fraction.
#include "agent/right_size.h"

#include <catch2/catch_test_macros.hpp>

#include "node_rig.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kHour = 3600 * kSec, kStart = 300 * kSec;

// A GPU of 24 GiB for fractions.
RightSize Of(double peak, double live, double size, double unmanaged = 0, bool by_memory = false) {
  const auto bytes = [](double gib) { return static_cast<Bytes>(gib * static_cast<double>(kGiB)); };
  return FindRightSize({.peak = bytes(peak),
                        .live = bytes(live),
                        .unmanaged = bytes(unmanaged),
                        .size = bytes(size),
                        .gpu = 24 * kGiB,
                        .by_memory = by_memory});
}

struct Watched {
  DayPeak day;
  uint64_t now = kHour / 2;
  void Pass(uint64_t seconds, Bytes touched, bool works = true, bool lives = true) {
    for (uint64_t i = 0; i < seconds; ++i) day.Observe({touched, lives, works}, kStart, now += kSec);
  }
};

}  // namespace

TEST_CASE("a fraction that is too large is named with the one that is enough") {
  const RightSize large = Of(1.9, 5.6, 6);
  CHECK(large.text == "touched 1.9 of 5.6 GiB: gpu-fraction 0.09 is enough");  // 1.9 x 1.1 / 24, rounded up
  CHECK(large.needed == 0.09);
  CHECK(large.is_far_off);
  CHECK(Of(1.9, 5.6, 6, 0, true).text == "touched 1.9 of 5.6 GiB: gpu-memory 2176Mi is enough");
  CHECK(Of(0, 5.6, 6).text == "touched 0.0 of 5.6 GiB: gpu-fraction 0.01 is enough");
  CHECK(Of(0.25, 0.5, 6).text == "touched 256.0 of 512.0 MiB: gpu-fraction 0.02 is enough");
}

TEST_CASE("a fraction that is too small is named with the one that holds the working set") {
  const RightSize small = Of(7.8, 20, 6);
  CHECK(small.text == "the working set is 1.3 times the budget: give gpu-fraction 0.36");
  CHECK(small.is_far_off);
  CHECK(Of(7.8, 20, 6, 0, true).text == "the working set is 1.3 times the budget: give gpu-memory 8832Mi");
  const RightSize beyond = Of(30, 40, 6);
  CHECK(beyond.text == "the working set is 5.0 times the budget: no fraction of this GPU holds it");
  CHECK(beyond.needed > 1);
}

TEST_CASE("a fraction that fits is left alone") {
  const RightSize fits = Of(5.3, 5.6, 6);  // 5.83 with the margin
  CHECK(fits.text == "touched 5.3 of 5.6 GiB: it fits");
  CHECK(!fits.is_far_off);
  // Within the margin: neither larger nor smaller is advised.
  CHECK(Of(5.9, 6, 6).text == "touched 5.9 of 6.0 GiB: it fits");
  CHECK(!Of(5.9, 6, 6).is_far_off);
  // Somewhat larger than needed: said, and not far off.
  CHECK(Of(4, 5.6, 6).text == "touched 4.0 of 5.6 GiB: gpu-fraction 0.19 is enough");
  CHECK(!Of(4, 5.6, 6).is_far_off);
  CHECK(!Of(6.2, 8, 6).is_far_off);
}

TEST_CASE("no fraction below the memory that never leaves the GPU is advised") {
  CHECK(Of(1, 5.6, 6, 4.5).text == "touched 1.0 of 5.6 GiB: gpu-fraction 0.19 is enough");
}

TEST_CASE("nothing is said of a container without a size") {
  CHECK(Of(1, 5.6, 0).text.empty());
  CHECK(FindRightSize({}).text.empty());
}

TEST_CASE("the start of a program does not count for its peak") {
  Watched w;
  w.Pass(3600, 20 * kGiB, false);  // it loads, and does not work
  w.Pass(299, 20 * kGiB);
  CHECK(!w.day.is_known());
  w.Pass(2, 2 * kGiB);
  CHECK(w.day.is_known());
  CHECK(w.day.Peak(w.now) == 2 * kGiB);
  w.Pass(10, 3 * kGiB, false);  // time without work counts as well
  w.Pass(10, kGiB, false);
  CHECK(w.day.Peak(w.now) == 3 * kGiB);
  // Its processes end, and others start.
  w.Pass(5, 0, false, false);
  w.Pass(299, 20 * kGiB);
  CHECK(w.day.Peak(w.now) == 3 * kGiB);
  w.Pass(2, 4 * kGiB);
  CHECK(w.day.Peak(w.now) == 4 * kGiB);
}

TEST_CASE("the peak is that of the last day") {
  Watched w;
  w.Pass(300, kGiB);
  w.Pass(60, 5 * kGiB);
  for (int hour = 0; hour < 24; ++hour) {
    w.Pass(3600, kGiB);
    CHECK(w.day.Peak(w.now) == 5 * kGiB);
  }
  w.Pass(3600, kGiB);
  CHECK(w.day.Peak(w.now) == kGiB);
  w.now += 48 * kHour;  // the agent was stopped, or the clock stood still for it
  CHECK(w.day.Peak(w.now) == 0);
}

TEST_CASE("a gap in the observations is no work") {
  Watched w;
  w.Pass(10, kGiB);
  w.now += kHour;
  w.Pass(10, kGiB);
  CHECK(!w.day.is_known());
}

TEST_CASE("the status has the working set of all processes of a container, after their start") {
  World w;
  w.Allocate("a", 50);
  w.Attach(1, "a");
  w.Attach(2, "a");
  const auto work = [&](uint64_t seconds, Bytes first, Bytes second) {
    for (uint64_t i = 0; i < seconds; ++i) {
      w.Follow(1, 2 * kGiB);
      w.Follow(2, 2 * kGiB);
      w.pages[1].gpu[0].touched_bytes = first;
      w.pages[2].gpu[0].touched_bytes = second;
      w.Pass(kSec);
    }
  };
  const auto share = [&] { return w.node.Status().allocations.at(0).gpus.at(0); };
  work(290, 2 * kGiB, 2 * kGiB);
  CHECK(share().touched_peak == 0);
  CHECK(share().right_size.text.empty());
  work(20, 2 * kGiB, 2 * kGiB);
  CHECK(share().fraction == 0.5);
  CHECK(share().touched_peak == 2 * kGiB + 2 * kGiB);
  for (int hour = 0; hour < 25; ++hour) work(3600, kGiB / 2, kGiB / 4);
  CHECK(share().touched_peak == kGiB / 2 + kGiB / 4);
  CHECK(share().right_size.text == "touched 0.8 of 4.0 GiB: gpu-fraction 0.11 is enough");
  CHECK(share().right_size.is_far_off);
}

TEST_CASE("nothing is said where the hooks are older and count no use") {
  World w;
  w.Allocate("a", 50);
  w.Attach(1, "a");
  for (int i = 0; i < 400; ++i) {
    w.Follow(1, 2 * kGiB);
    w.Pass(kSec);
  }
  CHECK(w.node.Status().allocations.at(0).gpus.at(0).right_size.text.empty());
}

TEST_CASE("the start is a setting of the agent") {
  Config config;
  std::string error;
  REQUIRE(ParseConfig("sizing: {startup_s: 7}\n", "f", &config, &error));
  CHECK(config.startup_s == 7);
  CHECK(!ParseConfig("sizing: {startup_s: 0}\n", "f", &config, &error));
  CHECK(error == "f:1: sizing.startup_s: '0' is not accepted; accepted: a whole number from 1 to 86400");
}
