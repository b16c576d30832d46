// Launches larger than all that may be resident: which way what does not fit comes.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <map>

#include "hooklib/policy/fetch/graph_strategy.h"
#include "test/unit/fake_card.h"

namespace sluice::policy {

namespace {

constexpr uint64_t kMs = 1'000'000, kGiB = uint64_t{1} << 30;

// A launch that takes as long as its way says. What it took is told `late` launches later.
struct Program {
  GraphStrategies ways;
  std::map<GraphStrategy, uint64_t> ms;
  size_t late = 0;
  bool may_map_remote = true;
  uint64_t unsettled = 0;  // launches of a way, after the first, that still bring things into order for it
  std::vector<std::pair<GraphProbe, uint64_t>> under_way;
  std::map<GraphStrategy, uint64_t> leaves;  // ms, for which what it sends away holds the next launch up
  uint64_t thinks = 0;                       // ms that the host takes behind every launch, at the same time
  GraphProbe before;
  uint64_t total = 0, news = 0;
  GraphStrategy last = GraphStrategy::kDemandPaging;
  uint64_t run = 0;

  GraphStrategy Launch(uint64_t capacity = kGiB) {
    const GraphStrategy way = ways.Next({7, 3 * kGiB / 2, capacity, may_map_remote});
    run = way == last ? run + 1 : 1;
    last = way;
    const GraphProbe probe = ways.Planned(7, run > 1 + unsettled);
    total += ms[way];
    if (before.id)
      ways.NoteGapAfter(before, std::max(leaves[before.strategy], thinks) * kMs, leaves[before.strategy] * kMs);
    before = probe;
    under_way.push_back({probe, ms[way]});
    while (under_way.size() > late) {
      news += ways.NoteMeasured(under_way.front().first, under_way.front().second * kMs);
      under_way.erase(under_way.begin());
    }
    return way;
  }
};

}  // namespace

TEST_CASE("each way is tried with two launches, then the fastest is taken") {
  for (const GraphStrategy fastest :
       {GraphStrategy::kDemandPaging, GraphStrategy::kFetch, GraphStrategy::kRemote, GraphStrategy::kFaults}) {
    Program program;
    program.ms = {{GraphStrategy::kDemandPaging, 90},
                  {GraphStrategy::kFetch, 110},
                  {GraphStrategy::kRemote, 140},
                  {GraphStrategy::kFaults, 120}};
    program.ms[fastest] = 40;
    const std::vector<GraphStrategy> tried{GraphStrategy::kDemandPaging, GraphStrategy::kDemandPaging,
                                           GraphStrategy::kFetch,        GraphStrategy::kFetch,
                                           GraphStrategy::kRemote,       GraphStrategy::kRemote};
    for (const GraphStrategy way : tried) CHECK(program.Launch() == way);
    // Other chunks held while all the rest faults: only where faults are the best.
    const bool faults = fastest == GraphStrategy::kDemandPaging || fastest == GraphStrategy::kFaults;
    for (int i = 0; faults && i < 2; ++i) CHECK(program.Launch() == GraphStrategy::kFaults);
    for (int i = 0; i < 20; ++i) CHECK(program.Launch() == fastest);
    CHECK(program.news == 1);
    CHECK(program.ways.Best(7) == fastest);
  }
}

TEST_CASE("a way whose first launch took several times what each other way takes is not tried with a second") {
  for (const uint64_t in_place : {100u, 140u}) {
    Program program;
    program.ms = {{GraphStrategy::kDemandPaging, 40}, {GraphStrategy::kFetch, 30}, {GraphStrategy::kRemote, in_place}};
    for (int i = 0; i < 4; ++i) program.Launch();
    CHECK(program.Launch() == GraphStrategy::kRemote);
    CHECK((program.Launch() == GraphStrategy::kRemote) == (in_place == 100));
    for (int i = 0; i < 20; ++i) CHECK(program.Launch() == GraphStrategy::kFetch);
    CHECK(program.news == 1);
  }
  // One way alone, and what its first launch does once, say nothing.
  Program program;
  program.ms = {{GraphStrategy::kDemandPaging, 40}, {GraphStrategy::kFetch, 200}};
  for (int i = 0; i < 2; ++i) CHECK(program.Launch() == GraphStrategy::kDemandPaging);
  for (int i = 0; i < 2; ++i) CHECK(program.Launch() == GraphStrategy::kFetch);
}

TEST_CASE("what the way before left, and what a way does once, does not count") {
  Program program;
  program.ms = {{GraphStrategy::kDemandPaging, 90}, {GraphStrategy::kFetch, 30}, {GraphStrategy::kRemote, 140}};
  program.unsettled = 2;
  for (int i = 0; i < 4; ++i) CHECK(program.Launch() == GraphStrategy::kDemandPaging);
  for (int i = 0; i < 4; ++i) CHECK(program.Launch() == GraphStrategy::kFetch);
  CHECK(program.Launch() == GraphStrategy::kRemote);
  Program never;  // never settled: it counts all the same in the end
  never.ms = program.ms;
  never.unsettled = 1000;
  for (int i = 0; i < 60; ++i) never.Launch();
  CHECK(never.Launch() == GraphStrategy::kFetch);
}

TEST_CASE("what a launch leaves behind is part of what its way costs") {
  // By faults 80 ms and 3 until the next, fetched 40 and then 80 more until all that was fetched has left. Where the
  // host comes back only long after that, it holds nobody up.
  for (const uint64_t thinks : {0u, 30u, 500u}) {
    Program program;
    program.ms = {{GraphStrategy::kDemandPaging, 80},
                  {GraphStrategy::kFetch, 40},
                  {GraphStrategy::kRemote, 140},
                  {GraphStrategy::kFaults, 95}};
    program.leaves = {{GraphStrategy::kDemandPaging, 3}, {GraphStrategy::kFetch, 80}, {GraphStrategy::kFaults, 3}};
    program.Launch();
    program.thinks = thinks;
    for (int i = 0; i < 40; ++i) program.Launch();
    CHECK(program.Launch() == (thinks == 500 ? GraphStrategy::kFetch : GraphStrategy::kDemandPaging));
    if (thinks == 0) CHECK(program.ways.TimesOf(7)[1] == (40 + 80 - 3) * kMs);
  }
}

TEST_CASE("one slow launch, or one that the host was late with, changes no way; two in a row do") {
  for (const int slow : {1, 2}) {
    Program program;
    program.ms = {{GraphStrategy::kDemandPaging, 40}, {GraphStrategy::kFetch, 30}, {GraphStrategy::kRemote, 140}};
    for (int i = 0; i < 20; ++i) program.Launch();
    CHECK(program.Launch() == GraphStrategy::kFetch);
    program.ms[GraphStrategy::kFetch] = 300;
    for (int i = 0; i < slow; ++i) program.Launch();
    program.ms[GraphStrategy::kFetch] = 30;
    CHECK((program.Launch() == GraphStrategy::kFetch) == (slow == 1));
  }
}

TEST_CASE("every second launch slow is a way as slow as the mean of the two, nearly") {
  Program program;
  program.ms = {{GraphStrategy::kDemandPaging, 27}, {GraphStrategy::kFetch, 24}, {GraphStrategy::kRemote, 140}};
  for (int i = 0; i < 10; ++i) program.Launch();
  CHECK(program.Launch() == GraphStrategy::kFetch);
  int fetched = 0;
  for (int i = 0; i < 40; ++i) {
    program.ms[GraphStrategy::kFetch] = i % 2 ? 46 : 24;
    fetched += program.Launch() == GraphStrategy::kFetch;
  }
  CHECK(fetched < 20);
}

TEST_CASE("what launches before a budget moved took is no answer for those behind") {
  Program program;
  program.ms = {{GraphStrategy::kDemandPaging, 90}};
  program.late = 2;
  program.Launch();
  program.Launch();
  program.Launch(kGiB / 2);
  program.Launch(kGiB / 2);  // now the second is told, which counted
  CHECK(program.ways.TimesOf(7)[0] == 0);
  program.Launch(kGiB / 2);
  program.Launch(kGiB / 2);
  CHECK(program.ways.TimesOf(7)[0] == 90 * kMs);
}

TEST_CASE("while the answer is awaited the best way known is gone; an answer that never comes is asked for again") {
  Program program;
  program.ms = {{GraphStrategy::kDemandPaging, 90},
                {GraphStrategy::kFetch, 30},
                {GraphStrategy::kRemote, 5000},
                {GraphStrategy::kFaults, 90}};
  program.late = 10;
  uint64_t slow = 0;
  for (int i = 0; i < 60; ++i) slow += program.Launch() == GraphStrategy::kRemote;
  CHECK(slow == 2);
  // A way whose next launch but one was planned before its answer was known may only have looked faster.
  CHECK(program.Launch() == GraphStrategy::kDemandPaging);
  program.late = 0;
  for (int i = 0; i < 400; ++i) program.Launch();
  CHECK(program.Launch() == GraphStrategy::kFetch);
  Program deaf;
  deaf.late = 100000;
  std::map<GraphStrategy, int> times;
  for (int i = 0; i < 300; ++i) ++times[deaf.Launch()];
  CHECK(times[GraphStrategy::kDemandPaging] == 300);
}

TEST_CASE("settled, it is no slower than the fastest by more than two in a hundred, whatever the others take") {
  for (const uint64_t slow : {31u, 60u, 140u, 3000u}) {
    Program program;
    program.ms = {{GraphStrategy::kDemandPaging, 30},
                  {GraphStrategy::kFetch, slow},
                  {GraphStrategy::kRemote, slow},
                  {GraphStrategy::kFaults, slow}};
    for (int i = 0; i < 200; ++i) program.Launch();
    program.total = 0;
    for (int i = 0; i < 4000; ++i) program.Launch();
    CHECK(program.total <= 4000 * 30 * 102 / 100);
  }
}

TEST_CASE(
    "a way that became the fastest is found, one slow launch changes nothing, and without host memory none is used") {
  Program program;
  program.may_map_remote = false;
  program.ms = {{GraphStrategy::kDemandPaging, 90}, {GraphStrategy::kFetch, 40}, {GraphStrategy::kFaults, 95}};
  for (int i = 0; i < 40; ++i) CHECK(program.Launch() != GraphStrategy::kRemote);
  program.ms[GraphStrategy::kFetch] = 400;
  program.Launch();
  program.ms[GraphStrategy::kFetch] = 40;
  for (int i = 0; i < 10; ++i) CHECK(program.Launch() == GraphStrategy::kFetch);
  program.ms[GraphStrategy::kFetch] = 200;
  for (int i = 0; i < 20; ++i) program.Launch();
  CHECK(program.Launch() == GraphStrategy::kDemandPaging);
  program.ms[GraphStrategy::kFetch] = 20;
  for (int i = 0; i < 3000; ++i) program.Launch();
  CHECK(program.Launch() == GraphStrategy::kFetch);
}

TEST_CASE("another size or another budget is another question") {
  Program program;
  program.ms = {{GraphStrategy::kDemandPaging, 90}, {GraphStrategy::kFetch, 40}, {GraphStrategy::kRemote, 100}};
  for (int i = 0; i < 20; ++i) program.Launch();
  CHECK(program.Launch(kGiB * 9 / 10) == GraphStrategy::kFetch);
  CHECK(program.Launch(kGiB / 2) == GraphStrategy::kDemandPaging);
}

namespace {

// Under the policy: `total` chunks, `capacity` of them may be there; copies wrote the last `copied`.
struct Card : FakeCard {
  std::map<GraphStrategy, uint64_t> ms{{GraphStrategy::kDemandPaging, 90},
                                       {GraphStrategy::kFetch, 100},
                                       {GraphStrategy::kRemote, 110},
                                       {GraphStrategy::kFaults, 95}};
  std::vector<Extent> set;
  GraphStrategy way = GraphStrategy::kDemandPaging;
  std::vector<Extent> drop, fetch, after, duplicate;

  Card(uint64_t total, uint64_t capacity, uint64_t copied) : FakeCard(total, capacity), set{Chunks(0, total)} {
    residency.set_read_mostly(true);
    for (uint64_t i = 0; i < total; ++i) {
      Queue({Chunks(i)});
      Finish();
    }
    residency.NoteCopied(Chunks(total - copied, copied));
  }
  void Launch(size_t hotter = 0) {
    drop = residency.DropExcessDuplicates().now.drop;
    const Plan& plan = Queue(set, 1, 7, 0, hotter);
    Finish();
    REQUIRE(plan.graph_probe.id == 7);
    way = plan.graph_probe.strategy;
    fetch = plan.now.fetch;
    after = plan.evict_after;
    duplicate = plan.now.duplicate;
    residency.NoteMeasured(plan.graph_probe, ms[way] * kMs);
  }
  void Settle(GraphStrategy best) {
    ms[best] = 10;
    for (int i = 0; i < 16; ++i) Launch();
    REQUIRE(way == best);
  }
  static uint64_t Count(const std::vector<Extent>& runs) {
    uint64_t bytes = 0;
    for (const Extent& run : runs) bytes += run.bytes;
    return bytes / kChunkBytes;
  }
};

}  // namespace

TEST_CASE("by faults nothing is fetched, and what did not fit leaves behind the launch") {
  Card card(12, 4, 0);
  card.Settle(GraphStrategy::kDemandPaging);
  CHECK(card.fetch.empty());
  CHECK(Card::Count(card.after) == 8);
  CHECK(card.residency.stats().demand_paged_launches > 0);
}

TEST_CASE("fetched: what copies alone wrote is dropped behind the launch, the rest is sent away") {
  Card card(12, 4, 5);
  card.Settle(GraphStrategy::kFetch);
  CHECK(Card::Count(card.fetch) == 8);
  CHECK(Card::Count(card.duplicate) + Card::Count(card.after) == 8);
  CHECK(Card::Count(card.drop) == Card::Count(card.duplicate));
  CHECK(Card::Count(card.duplicate) >= 4);
  const ResidencyStats before = card.residency.stats();
  for (int i = 0; i < 5; ++i) card.Launch();
  CHECK(card.residency.stats().fault_bytes == before.fault_bytes);
  CHECK(card.residency.resident_bytes() <= 12 * kChunkBytes);
  card.residency.DropExcessDuplicates();
  CHECK(card.residency.resident_bytes() <= 4 * kChunkBytes);
}

TEST_CASE("fetched, but never more than the card itself holds") {
  Card card(12, 4, 0);
  card.residency.set_max_resident(6 * kChunkBytes);
  card.Settle(GraphStrategy::kFetch);
  CHECK(Card::Count(card.fetch) == 2);
  CHECK(Card::Count(card.after) == 8);
}

TEST_CASE("in host memory nothing moves") {
  Card card(12, 4, 6);
  card.Settle(GraphStrategy::kRemote);
  const ResidencyStats before = card.residency.stats();
  for (int i = 0; i < 5; ++i) card.Launch();
  const ResidencyStats& after = card.residency.stats();
  CHECK(after.bytes_in == before.bytes_in);
  CHECK(after.bytes_out == before.bytes_out);
  CHECK(after.fault_bytes == before.fault_bytes);
  CHECK(after.remote_bytes == before.remote_bytes + 5 * 8 * kChunkBytes);
}

TEST_CASE("why what is not held cannot be duplicated is told") {
  Card card(12, 4, 12);
  card.residency.Pin(Chunks(5), true);
  card.residency.RemoveLive(Chunks(5));
  card.residency.NoteWritten(Chunks(0, 5));  // four of them are held
  card.Settle(GraphStrategy::kFetch);
  const GraphRemainder& rest = card.residency.graph_remainder();
  CHECK(rest.freed == kChunkBytes);
  CHECK(rest.written == kChunkBytes);
  CHECK(rest.copied == 6 * kChunkBytes);
}

}  // namespace sluice::policy
