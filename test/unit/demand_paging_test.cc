// Launches left to demand faults: oversized tables, and the residue that the faults of oversized launches leave.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "test/unit/launches.h"

namespace sluice::policy {

namespace {

// A table of 400 chunks in a capacity of 80. Each launch touches a 2,000th of it, `passes` times.
struct Table : FakeGpu {
  uint64_t mapped = 0, longest_ns = 0, all_ns = 0;
  double passes = 1;

  Table() : FakeGpu(401, 80, Prefetch::kPredict) {}
  // Returns the launch's time in ns.
  uint64_t LookUp(uint64_t id = 7) {
    const Plan& plan = Queue({Chunks(0, 400)}, 1, id);
    const LaunchProbe probe = plan.probe;
    mapped += TotalBytes(plan.map_remote);
    Finish();
    double remote = 0;
    for (uint64_t i = 0; i < 400; ++i) remote += At(i).mapped_remote() && !At(i).resident();
    const double bytes = 0x1p21 / 2000;
    const auto ns = static_cast<uint64_t>(20'000 + (400 - remote) * bytes / 2 + remote * bytes * passes / 50);
    if (probe.id) {
      residency.NoteMeasured(probe, ns);
      residency.NoteAnswered(probe);
    }
    all_ns += ns;
    longest_ns = std::max(longest_ns, ns);
    return ns;
  }
  uint64_t RemoteChunks() {
    uint64_t chunks = 0;
    for (uint64_t i = 0; i < 400; ++i) chunks += At(i).mapped_remote();
    return chunks;
  }
};

}  // namespace

TEST_CASE("launches that repeatedly touch little of their set are left to demand faults") {
  TimedGpu gpu(60, 20);
  const auto step = [&gpu](double touched) {
    for (uint64_t table = 0; table < 4; ++table) gpu.Launch(400, {Chunks(table * 15, 15)}, 1, touched);
  };
  for (int i = 0; i < 8000; ++i) step(0.02);  // they are probed remotely first, ever more rarely
  const ResidencyStats before = gpu.residency.stats();
  for (int i = 0; i < 50; ++i) step(0.02);
  CHECK(gpu.residency.stats().bytes_in == before.bytes_in);
  CHECK(gpu.residency.stats().demand_paged_launches > before.demand_paged_launches);
  CHECK(gpu.residency.resident_bytes() <= 20 * kChunkBytes);
  // From now on they touch all of it: this is noticed, and their sets are fetched.
  for (int i = 0; i < 200; ++i) step(1);
  const ResidencyStats later = gpu.residency.stats();
  for (int i = 0; i < 20; ++i) step(1);
  CHECK(gpu.residency.stats().bytes_in > later.bytes_in);
}

TEST_CASE("an oversized table left to faults is used remotely once that is found to be faster") {
  Table table;
  const uint64_t by_faults = table.LookUp();
  for (int i = 0; i < 3000; ++i) {
    table.LookUp();
    // Mapping costs little beside the time spent by faults, until a part has shown that it pays.
    if (table.RemoteChunks() < 200) CHECK(table.mapped / kChunkBytes * 100'000 <= table.all_ns / 7);
  }
  CHECK(table.RemoteChunks() >= 300);
  CHECK(table.LookUp() < by_faults / 2);
  CHECK(table.longest_ns <= by_faults);
  CHECK(table.residency.resident_bytes() <= 80 * kChunkBytes);
  const uint64_t before = table.mapped;
  for (int i = 0; i < 1000; ++i) table.LookUp();
  CHECK(table.mapped == before);
  // From now on it reads the touched rows repeatedly: faults are faster.
  table.passes = 256;
  for (int i = 0; i < 200; ++i) table.LookUp();
  CHECK(table.RemoteChunks() == 0);
  CHECK(table.LookUp() <= by_faults);
}

TEST_CASE("rows that are read repeatedly are probed remotely ever more rarely, a small part of them") {
  for (const double passes : {256, 2048}) {
    Table table;
    const uint64_t by_faults = table.LookUp();
    table.passes = passes;
    uint64_t max_remote = 0;
    for (int i = 0; i < 20'000; ++i) {
      table.LookUp();
      max_remote = std::max(max_remote, table.RemoteChunks());
    }
    CHECK(max_remote > 0);
    CHECK(max_remote <= (passes > 256 ? 400 / 64 : 400 / 4));
    CHECK(table.all_ns < 20'001 * by_faults * 1.05);
    CHECK(table.RemoteChunks() <= 400 / 64);
  }
}

TEST_CASE("a table's fault residue is evicted before the table is used remotely") {
  Table table;
  uint64_t evicted_bytes = 0, probed = 0;
  for (int i = 0; i < 3000; ++i) {
    evicted_bytes = table.residency.stats().bytes_out;
    table.LookUp();
    if (table.RemoteChunks() > probed) CHECK(evicted_bytes >= 320 * kChunkBytes);
    probed = table.RemoteChunks();
    for (uint64_t at = 0; at < 400; ++at)
      CHECK_FALSE((table.At(at).mapped_remote() && table.At(at).has_fault_residue()));
  }
  CHECK(probed >= 300);
}

TEST_CASE("chunks used beside a table that is left to faults stay resident, and unused ones are evicted") {
  // As lookups of a hundredth of a 3 GiB table on an H200. A lookup's result (chunk 1501) is live until the next launch
  // adds it to sums (1502 and 1503).
  for (const Prefetch mode : {Prefetch::kLaunch, Prefetch::kPredict}) {
    FakeGpu gpu(1544, 400, mode);
    gpu.residency.RemoveLive(Chunks(1501));
    gpu.Queue({Chunks(1504, 40)}, 1, 6);  // used once
    gpu.Finish();
    const auto launch = [&gpu](uint64_t id, const std::vector<Extent>& set, uint64_t ns) {
      const LaunchProbe probe = gpu.Queue(set, 1, id).probe;
      gpu.Finish();
      if (!probe.id) return;
      gpu.residency.NoteMeasured(probe, ns);
      gpu.residency.NoteAnswered(probe);
    };
    const auto step = [&] {
      for (int i = 0; i < 32; ++i) {
        gpu.residency.AddLive(Chunks(1501));
        launch(7, {Chunks(1501), Chunks(0, 1500)}, 100'000);
        launch(8, {Chunks(1502, 2), Chunks(1501)}, 160'000);
        gpu.residency.RemoveLive(Chunks(1501));
      }
    };
    for (int i = 0; i < 8; ++i) step();
    const ResidencyStats before = gpu.residency.stats();
    uint64_t absent = 0;
    for (int i = 0; i < 8; ++i) {
      step();
      for (uint64_t at = 1501; at < 1504; ++at) absent += !gpu.Resident(at);
    }
    CHECK(absent == 0);
    CHECK(gpu.residency.stats().bytes_in == before.bytes_in);
    CHECK(gpu.residency.stats().remote_bytes == before.remote_bytes);
    CHECK(gpu.residency.resident_bytes() <= 400 * kChunkBytes);
    for (int i = 0; i < 200; ++i) step();
    for (uint64_t at = 1504; at < 1544; ++at) CHECK_FALSE(gpu.Resident(at));
  }
}

TEST_CASE("fault residue of an oversized launch is evicted once it is large, not behind each launch") {
  for (const Prefetch mode : {Prefetch::kOff, Prefetch::kPredict}) {
    TimedGpu gpu(400, 80);
    gpu.residency.set_prefetch(mode);
    for (int i = 0; i < 20; ++i) gpu.Launch(7, {Chunks(0, 400)}, 1, 0.001);
    gpu.sweeps = gpu.swept = 0;
    for (int i = 0; i < 3000; ++i) gpu.Launch(7, {Chunks(0, 400)}, 1, 0.001);  // some 0.7 MiB each
    CHECK(gpu.sweeps >= 10);
    CHECK(gpu.sweeps <= 60);
    CHECK(gpu.swept >= gpu.sweeps * 300 * kChunkBytes);
    CHECK(gpu.residency.resident_bytes() <= 80 * kChunkBytes);
    // A capacity that shrinks has it evicted at once.
    for (int i = 0; i < 3; ++i) gpu.Launch(7, {Chunks(0, 400)}, 1, 0.001);
    gpu.residency.set_capacity(70 * kChunkBytes);
    gpu.sweeps = 0;
    gpu.Launch(8, {Chunks(0, 2)}, 11);
    CHECK(gpu.sweeps == 1);
    gpu.Launch(8, {Chunks(0, 2)}, 11);
    CHECK(gpu.sweeps == 1);
    for (int i = 0; i < 3; ++i) gpu.Launch(7, {Chunks(0, 400)}, 1, 0.001);
    // It is launched no more: other launches evict its residue.
    gpu.sweeps = 0;
    for (int i = 0; i < 2000; ++i) gpu.Launch(8, {Chunks(0, 2)}, 11);
    CHECK(gpu.sweeps == 1);
    // It touches all of it from now on.
    gpu.sweeps = 0;
    for (int i = 0; i < 200; ++i) gpu.Launch(7, {Chunks(0, 400)}, 1, 1);
    CHECK(gpu.sweeps >= 100);
  }
}

TEST_CASE("chunks populated by faults are evicted though no timed launch shows them") {
  for (const Prefetch mode : {Prefetch::kOff, Prefetch::kPredict}) {
    TimedGpu gpu(400, 80);
    gpu.residency.set_prefetch(mode);
    std::vector<int> at;
    for (int i = 0; i < 5000; ++i) {
      const uint64_t sweeps = gpu.sweeps;
      gpu.Launch(7, {Chunks(0, 400)}, 1, 0);
      if (gpu.sweeps != sweeps) at.push_back(i);
    }
    REQUIRE(at.size() >= 8);
    CHECK(at[0] < 64);
    for (size_t i = 1; i < at.size(); ++i) CHECK(at[i] - at[i - 1] <= 1024);
    CHECK(at.size() < 16);  // a sweep takes as long as ten such launches
    CHECK(gpu.swept >= at.size() * 300 * kChunkBytes);
  }
}

TEST_CASE("where nothing can be queued, chunks that do not fit do not count as resident") {
  FakeGpu gpu(12, 4);
  const std::vector<Extent> set{Chunks(0, 12)};
  gpu.residency.Prepare(1, ++gpu.seq[1], set, 7, false);
  CHECK(gpu.residency.resident_bytes() == 4 * kChunkBytes);
  CHECK(gpu.residency.stats().over_budget_launches == 1);
  const Plan& plan = gpu.residency.Prepare(1, ++gpu.seq[1], std::vector<Extent>{Chunks(0)}, 8);
  CHECK(TotalBytes(plan.evict_after) == 0);  // 16 MiB: the sweep waits for more
}

TEST_CASE("chunks that another queue evicts are not swept, nor are free chunks") {
  FakeGpu gpu(12, 4);
  gpu.time.transfers_instant = false;
  gpu.Queue({Chunks(0, 4)}, 2);
  gpu.Finish(2);
  gpu.time.FinishTransfers(2, 1, 0);
  REQUIRE(gpu.Queue({Chunks(4, 4)}, 2).now.out_op == 1);  // the evictions of 0 to 3 are in flight
  gpu.Finish(2);
  gpu.time.FinishTransfers(2, 2, 0);
  const auto swept = [&gpu](uint64_t capacity) {
    gpu.residency.set_capacity(capacity * kChunkBytes);
    const std::vector<uint64_t> chunks = ChunksOf(gpu.Queue({Chunks(4)}, 1, 8).evict_after);
    gpu.Finish();
    return chunks;
  };
  gpu.residency.Prepare(1, ++gpu.seq[1], std::vector<Extent>{Chunks(0, 12)}, 7, false);
  gpu.residency.RemoveLive(Chunks(11));
  CHECK(swept(3) == std::vector<uint64_t>{8, 9, 10});
  gpu.time.FinishTransfers(2, 2, 1);
  CHECK(swept(2) == std::vector<uint64_t>{0, 1, 2, 3});
  CHECK(swept(1).empty());
}

TEST_CASE("an oversized launch that re-reads is left to faults, and no longer mapped remotely") {
  TimedGpu gpu(12, 4);
  gpu.residency.link().set_slow_write_back(false);
  // 7 GB/s: to fault in and evict is no slower.
  for (int i = 0; i < 400; ++i) gpu.Launch(7, {Chunks(0, 12)}, 7);
  CHECK(gpu.residency.stats().remote_bytes > 0);  // it was probed
  const ResidencyStats before = gpu.residency.stats();
  gpu.Launch(7, {Chunks(0, 12)}, 7);
  CHECK(gpu.residency.stats().remote_bytes == before.remote_bytes);
  CHECK(gpu.residency.stats().fault_bytes > before.fault_bytes);
  gpu.residency.chunks().ForAll([](const Chunk& chunk) { CHECK_FALSE(chunk.mapped_remote()); });
}

}  // namespace sluice::policy
