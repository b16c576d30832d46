// Strategies of launches larger than the capacity: each is timed, and the fastest is used.
#include "hooklib/policy/fetch/graph_strategy.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <map>

#include "test/unit/fake_gpu.h"

namespace sluice::policy {

namespace {

constexpr uint64_t kMs = 1'000'000, kGiB = uint64_t{1} << 30;

// A launch that takes as long as its strategy says. Its time is reported `late` launches later.
struct Program {
  GraphStrategies strategies;
  std::map<GraphStrategy, uint64_t> ms;
  size_t late = 0;
  bool may_map_remote = true, sizes_differ = false;
  uint64_t unsettled = 0;  // launches of a strategy, after the first, that still prepare for it
  std::vector<std::pair<GraphProbe, uint64_t>> in_flight;
  std::map<GraphStrategy, uint64_t> evict_ms;  // ms for which its evictions delay the next launch
  uint64_t host_ms = 0;                        // ms of the host behind each launch, in parallel
  GraphProbe before;
  uint64_t total = 0, settlements = 0;
  GraphStrategy last = GraphStrategy::kDemandPaging;
  uint64_t run = 0;

  GraphStrategy Launch(uint64_t capacity = kGiB) {
    const GraphStrategy strategy = strategies.Next({7, 3 * kGiB / 2, capacity, may_map_remote, sizes_differ});
    run = strategy == last ? run + 1 : 1;
    last = strategy;
    const GraphProbe probe = strategies.Planned(7, run > 1 + unsettled);
    total += ms[strategy];
    if (before.id)
      strategies.NoteGapAfter(before, std::max(evict_ms[before.strategy], host_ms) * kMs,
                              evict_ms[before.strategy] * kMs);
    before = probe;
    in_flight.push_back({probe, ms[strategy]});
    while (in_flight.size() > late) {
      settlements += strategies.NoteMeasured(in_flight.front().first, in_flight.front().second * kMs);
      in_flight.erase(in_flight.begin());
    }
    return strategy;
  }
};

}  // namespace

TEST_CASE("remote access to the largest operands is timed where sizes differ, and only there") {
  for (const bool sizes_differ : {true, false}) {
    Program program;
    program.sizes_differ = sizes_differ;
    program.ms = {{GraphStrategy::kDemandPaging, 90},
                  {GraphStrategy::kFetch, 110},
                  {GraphStrategy::kRemote, 36},
                  {GraphStrategy::kRemoteLargest, 19}};
    for (int i = 0; i < 12; ++i) program.Launch();
    CHECK(program.Launch() == (sizes_differ ? GraphStrategy::kRemoteLargest : GraphStrategy::kRemote));
  }
}

TEST_CASE("each strategy is timed with two launches, then the fastest is used") {
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
    for (const GraphStrategy strategy : tried) CHECK(program.Launch() == strategy);
    // Other chunks are resident while all the rest faults: only where faults are the fastest.
    const bool faults = fastest == GraphStrategy::kDemandPaging || fastest == GraphStrategy::kFaults;
    for (int i = 0; faults && i < 2; ++i) CHECK(program.Launch() == GraphStrategy::kFaults);
    for (int i = 0; i < 20; ++i) CHECK(program.Launch() == fastest);
    CHECK(program.settlements == 1);
    CHECK(program.strategies.Best(7) == fastest);
  }
}

TEST_CASE("a strategy whose first launch is several times slower than the others gets no second one") {
  for (const uint64_t remote : {100u, 140u}) {
    Program program;
    program.ms = {{GraphStrategy::kDemandPaging, 40}, {GraphStrategy::kFetch, 30}, {GraphStrategy::kRemote, remote}};
    for (int i = 0; i < 4; ++i) program.Launch();
    CHECK(program.Launch() == GraphStrategy::kRemote);
    CHECK((program.Launch() == GraphStrategy::kRemote) == (remote == 100));
    for (int i = 0; i < 20; ++i) CHECK(program.Launch() == GraphStrategy::kFetch);
    CHECK(program.settlements == 1);
  }
  // One other strategy alone decides nothing: the first launch may do one-time work.
  Program program;
  program.ms = {{GraphStrategy::kDemandPaging, 40}, {GraphStrategy::kFetch, 200}};
  for (int i = 0; i < 2; ++i) CHECK(program.Launch() == GraphStrategy::kDemandPaging);
  for (int i = 0; i < 2; ++i) CHECK(program.Launch() == GraphStrategy::kFetch);
}

TEST_CASE("launches that still prepare for their strategy do not count") {
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

TEST_CASE("the evictions behind a launch are part of its strategy's cost") {
  // By faults 80 ms, and 3 until the next launch; fetched 40, and 80 more for the evictions. Where the host launches
  // only long after that, the evictions delay nothing.
  for (const uint64_t host_ms : {0u, 30u, 500u}) {
    Program program;
    program.ms = {{GraphStrategy::kDemandPaging, 80},
                  {GraphStrategy::kFetch, 40},
                  {GraphStrategy::kRemote, 140},
                  {GraphStrategy::kFaults, 95}};
    program.evict_ms = {{GraphStrategy::kDemandPaging, 3}, {GraphStrategy::kFetch, 80}, {GraphStrategy::kFaults, 3}};
    program.Launch();
    program.host_ms = host_ms;
    for (int i = 0; i < 40; ++i) program.Launch();
    CHECK(program.Launch() == (host_ms == 500 ? GraphStrategy::kFetch : GraphStrategy::kDemandPaging));
    if (host_ms == 0) CHECK(program.strategies.TimesOf(7)[1] == (40 + 80 - 3) * kMs);
  }
}

TEST_CASE("one slow launch changes no strategy; two in a row do") {
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

TEST_CASE("a strategy with every second launch slow counts as nearly the mean of the two") {
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

TEST_CASE("times of launches before a change of budget do not count behind it") {
  Program program;
  program.ms = {{GraphStrategy::kDemandPaging, 90}};
  program.late = 2;
  program.Launch();
  program.Launch();
  program.Launch(kGiB / 2);
  program.Launch(kGiB / 2);  // now the time of the second is known, which counted
  CHECK(program.strategies.TimesOf(7)[0] == 0);
  program.Launch(kGiB / 2);
  program.Launch(kGiB / 2);
  CHECK(program.strategies.TimesOf(7)[0] == 90 * kMs);
}

TEST_CASE("while a time is awaited the best known strategy is used; a lost time is measured again") {
  Program program;
  program.ms = {{GraphStrategy::kDemandPaging, 90},
                {GraphStrategy::kFetch, 30},
                {GraphStrategy::kRemote, 5000},
                {GraphStrategy::kFaults, 90}};
  program.late = 10;
  uint64_t slow = 0;
  for (int i = 0; i < 60; ++i) slow += program.Launch() == GraphStrategy::kRemote;
  CHECK(slow == 2);
  // A strategy whose next launch but one was planned before its time was known may only have looked faster.
  CHECK(program.Launch() == GraphStrategy::kDemandPaging);
  program.late = 0;
  for (int i = 0; i < 400; ++i) program.Launch();
  CHECK(program.Launch() == GraphStrategy::kFetch);
  Program unanswered;
  unanswered.late = 100000;
  std::map<GraphStrategy, int> times;
  for (int i = 0; i < 300; ++i) ++times[unanswered.Launch()];
  CHECK(times[GraphStrategy::kDemandPaging] == 300);
}

TEST_CASE("once settled, launches are at most 2 % slower than with the fastest strategy alone") {
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

TEST_CASE("a strategy that became the fastest is found, and remote access is not used where it is off") {
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

TEST_CASE("a much smaller budget starts the measurements again") {
  Program program;
  program.ms = {{GraphStrategy::kDemandPaging, 90}, {GraphStrategy::kFetch, 40}, {GraphStrategy::kRemote, 100}};
  for (int i = 0; i < 20; ++i) program.Launch();
  CHECK(program.Launch(kGiB * 9 / 10) == GraphStrategy::kFetch);
  CHECK(program.Launch(kGiB / 2) == GraphStrategy::kDemandPaging);
}

namespace {

// Under the policy: `total` chunks, of which `capacity` may be resident; copies wrote the last `copied`.
struct Gpu : FakeGpu {
  std::map<GraphStrategy, uint64_t> ms{{GraphStrategy::kDemandPaging, 90},
                                       {GraphStrategy::kFetch, 100},
                                       {GraphStrategy::kRemote, 110},
                                       {GraphStrategy::kFaults, 95}};
  std::vector<Extent> set;
  GraphStrategy strategy = GraphStrategy::kDemandPaging;
  std::vector<Extent> drop, fetch, after, duplicate;

  Gpu(uint64_t total, uint64_t capacity, uint64_t copied) : FakeGpu(total, capacity), set{Chunks(0, total)} {
    residency.set_read_mostly(true);
    for (uint64_t i = 0; i < total; ++i) {
      Queue({Chunks(i)});
      Finish();
    }
    residency.NoteCopied(Chunks(total - copied, copied));
  }
  void Launch(size_t hot_extents = 0) {
    drop = residency.DropExcessDuplicates().now.drop;
    const Plan& plan = Queue(set, 1, 7, 0, hot_extents);
    Finish();
    REQUIRE(plan.graph_probe.id == 7);
    strategy = plan.graph_probe.strategy;
    fetch = plan.now.fetch;
    after = plan.evict_after;
    duplicate = plan.now.duplicate;
    residency.NoteMeasured(plan.graph_probe, ms[strategy] * kMs);
  }
  void Settle(GraphStrategy best) {
    ms[best] = 10;
    for (int i = 0; i < 16; ++i) Launch();
    REQUIRE(strategy == best);
  }
  static uint64_t Count(const std::vector<Extent>& runs) { return TotalBytes(runs) / kChunkBytes; }
};

}  // namespace

TEST_CASE("under demand paging nothing is fetched, and chunks that do not fit are evicted behind the launch") {
  Gpu gpu(12, 4, 0);
  gpu.Settle(GraphStrategy::kDemandPaging);
  CHECK(gpu.fetch.empty());
  CHECK(Gpu::Count(gpu.after) == 8);
  CHECK(gpu.residency.stats().demand_paged_launches > 0);
}

TEST_CASE("with the fetch strategy duplicates are dropped behind the launch, and other chunks are written back") {
  Gpu gpu(12, 4, 5);
  gpu.Settle(GraphStrategy::kFetch);
  CHECK(Gpu::Count(gpu.fetch) == 8);
  CHECK(Gpu::Count(gpu.duplicate) + Gpu::Count(gpu.after) == 8);
  CHECK(Gpu::Count(gpu.drop) == Gpu::Count(gpu.duplicate));
  CHECK(Gpu::Count(gpu.duplicate) >= 4);
  const ResidencyStats before = gpu.residency.stats();
  for (int i = 0; i < 5; ++i) gpu.Launch();
  CHECK(gpu.residency.stats().fault_bytes == before.fault_bytes);
  CHECK(gpu.residency.resident_bytes() <= 12 * kChunkBytes);
  gpu.residency.DropExcessDuplicates();
  CHECK(gpu.residency.resident_bytes() <= 4 * kChunkBytes);
}

TEST_CASE("the fetch strategy never exceeds the GPU's memory") {
  Gpu gpu(12, 4, 0);
  gpu.residency.set_max_resident(6 * kChunkBytes);
  gpu.Settle(GraphStrategy::kFetch);
  CHECK(Gpu::Count(gpu.fetch) == 2);
  CHECK(Gpu::Count(gpu.after) == 8);
}

TEST_CASE("with the remote strategy nothing moves") {
  Gpu gpu(12, 4, 6);
  gpu.Settle(GraphStrategy::kRemote);
  const ResidencyStats before = gpu.residency.stats();
  for (int i = 0; i < 5; ++i) gpu.Launch();
  const ResidencyStats& after = gpu.residency.stats();
  CHECK(after.bytes_in == before.bytes_in);
  CHECK(after.bytes_out == before.bytes_out);
  CHECK(after.fault_bytes == before.fault_bytes);
  CHECK(after.remote_bytes == before.remote_bytes + 40 * kChunkBytes);
}

TEST_CASE("the reasons why chunks cannot be duplicated are counted") {
  Gpu gpu(12, 4, 12);
  gpu.residency.Pin(Chunks(5), true);
  gpu.residency.RemoveLive(Chunks(5));
  gpu.residency.NoteWritten(Chunks(0, 5));  // four of them are resident
  gpu.Settle(GraphStrategy::kFetch);
  const GraphRemainder& rest = gpu.residency.graph_remainder();
  CHECK(rest.freed == kChunkBytes);
  CHECK(rest.written == kChunkBytes);
  CHECK(rest.copied == 6 * kChunkBytes);
}

}  // namespace sluice::policy
