// The pages of many processes are read in slices.
#include "node_rig.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

namespace {

constexpr SessionId kMany = 200;

struct Crowd : World {
  Crowd() {
    Allocate("many", 50);
    Allocate("one", 50);
    for (SessionId s = 1; s <= kMany; ++s) Attach(s, "many");
    while (port.soon > 0) {
      port.soon = 0;
      node.SendDue();
    }
    for (SessionId s = 1; s <= kMany; ++s) Follow(s, 1 << 20);
    Pass(kSec);
  }
  Bytes held() const { return node.LedgerOf("GPU-a")->held(); }
};

}  // namespace

TEST_CASE("the pages of many processes are read in slices, and budgets move after the last") {
  Crowd w;
  const Bytes before = w.held();
  for (SessionId s = 1; s <= kMany; ++s) w.pages[s].gpu[0].resident_bytes += 1 << 20;
  int slices = 1;
  Bytes last = before;
  for (w.now += kSec; w.node.Tick(w.now) == 0; ++slices) {
    CHECK(w.held() > last);
    CHECK(w.held() - last <= Bytes{64} << 20);
    last = w.held();
    REQUIRE(slices < 100);
  }
  CHECK(slices == 4);
  CHECK(w.held() == before + (Bytes{kMany} << 20));
}

TEST_CASE("processes that end, attach and are parked between slices") {
  Crowd w;
  w.now += kSec;
  REQUIRE(w.node.Tick(w.now) == 0);
  w.node.Closed(65, w.now);  // the next to be read
  w.node.Closed(3, w.now);
  for (SessionId s = 190; s <= kMany; ++s) w.node.Closed(s, w.now);  // the last ones
  w.Attach(1000, "one");
  std::string error;
  REQUIRE(w.node.ParkNow("many", "test", w.now, &error));
  int slices = 1;
  while (w.node.Tick(w.now) == 0) REQUIRE(++slices < 100);
  CHECK(w.node.sessions() == kMany - 13 + 1);
  REQUIRE(w.port.Budget(1000) != nullptr);
  CHECK(w.port.Budget(1000)->budget_bytes > 0);
  for (SessionId s = 1; s < 190; ++s) w.node.Closed(s, w.now);
  w.Pass(kSec);
  CHECK(w.held() == 0);
}
