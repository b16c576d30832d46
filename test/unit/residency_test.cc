#include "hooklib/policy/residency.h"

#include <catch2/catch_test_macros.hpp>
#include <random>

#include "test/unit/fake_gpu.h"

namespace sluice::policy {

namespace {

// An arena of `total` chunks, all live, of which `capacity` may be resident.
struct Gpu : FakeGpu {
  using FakeGpu::FakeGpu;
  const Plan& Launch(const std::vector<Extent>& set, StreamId stream = 1, bool finish = true, uint64_t id = 0) {
    const Plan& plan = Queue(set, stream, id);
    if (finish) Finish(stream);
    return plan;
  }
};

}  // namespace

TEST_CASE("missing chunks are fetched in merged runs, and resident chunks cost nothing") {
  Gpu gpu(16, 8);
  const Plan& first = gpu.Launch({Chunks(0, 2), Chunks(2, 2)});
  CHECK(first.now.fetch == std::vector<Extent>{Chunks(0, 4)});
  CHECK(first.wait_in == first.now.in_op);
  const Plan& again = gpu.Launch({Chunks(1, 2)});
  CHECK(again.now.empty());
  CHECK(again.wait_in == 0);
  CHECK(gpu.residency.resident_bytes() == 4 * kChunkBytes);
}

TEST_CASE("resident bytes never exceed the capacity while there are victims") {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    for (Prefetch mode : {Prefetch::kOff, Prefetch::kLaunch, Prefetch::kPredict}) {
      Gpu gpu(64, 16, mode);
      std::mt19937 random(seed);
      for (int i = 0; i < 500; ++i) {
        const uint64_t first = random() % 60, count = random() % 4 + 1;
        gpu.Launch({Chunks(first, count)}, random() % 3 + 1, true, random() % 8 + 1);
        REQUIRE(gpu.residency.resident_bytes() <= 16 * kChunkBytes);
      }
      CHECK(gpu.residency.stats().over_budget_launches == 0);
      uint64_t resident = 0;
      gpu.residency.chunks().ForAll([&](Chunk& chunk) { resident += chunk.resident() ? kChunkBytes : 0; });
      CHECK(resident == gpu.residency.resident_bytes());
    }
  }
}

TEST_CASE("the least recently used chunk is evicted first where nothing is predicted") {
  Gpu gpu(8, 2);
  gpu.Launch({Chunks(0)});
  gpu.Launch({Chunks(1)});
  gpu.Launch({Chunks(0)});
  const Plan& plan = gpu.Launch({Chunks(2)});
  CHECK(plan.now.evict == std::vector<Extent>{Chunks(1)});
}

TEST_CASE("a victim is finished, or used earlier in the same stream, and its eviction waits for that use") {
  Gpu gpu(8, 2);
  gpu.Launch({Chunks(0)}, 1, false);  // unfinished
  gpu.Launch({Chunks(1)}, 1, false);
  const Plan& plan = gpu.Launch({Chunks(2)}, 1, false);
  REQUIRE(plan.now.evict == std::vector<Extent>{Chunks(0)});
  CHECK(plan.now.out_after == 1);  // the position of chunk 0's last use
  CHECK(AwaitedEviction(plan.now) == plan.now.out_op);
}

TEST_CASE("no launch waits for another stream's unfinished work: it goes over budget, and that is counted") {
  Gpu gpu(8, 2);
  gpu.Launch({Chunks(0, 2)}, 1, false);
  const Plan& plan = gpu.Launch({Chunks(2)}, 2, false);
  CHECK(plan.now.evict.empty());
  CHECK(plan.now.fetch == std::vector<Extent>{Chunks(2)});
  CHECK(gpu.residency.stats().over_budget_launches == 1);
  CHECK(gpu.residency.stats().over_budget_max == kChunkBytes);
  gpu.time.Finish(1, 1);
  const Plan& later = gpu.Launch({Chunks(3)}, 2, false);
  CHECK(TotalBytes(later.now.evict) >= kChunkBytes);
  CHECK(gpu.residency.resident_bytes() <= 2 * kChunkBytes);
}

TEST_CASE("a part of a launch larger than the budget is fetched, and the rest is evicted right behind it") {
  Gpu gpu(16, 4);
  gpu.Launch({Chunks(0, 3)});
  gpu.Launch({Chunks(3, 3)});
  gpu.Launch({Chunks(12, 4)});
  const Plan& plan = gpu.Launch({Chunks(0, 6)});
  CHECK(TotalBytes(plan.now.fetch) == 4 * kChunkBytes);
  CHECK(TotalBytes(plan.evict_after) == 2 * kChunkBytes);
  CHECK(plan.evict_after_op != 0);
  CHECK(gpu.residency.stats().over_budget_launches == 1);
  CHECK(gpu.residency.resident_bytes() <= 4 * kChunkBytes);
  CHECK(gpu.residency.stats().fault_bytes == 2 * kChunkBytes);
}

TEST_CASE("evictions behind a launch have the last number of its plan, and only later launches wait for them") {
  SECTION("beside evictions for a shrunken capacity") {
    Gpu gpu(16, 8);
    gpu.Launch({Chunks(0, 8)});
    gpu.residency.NoteFaultResidue(Chunks(12, 2));
    gpu.residency.set_capacity(6 * kChunkBytes);
    const Plan& plan = gpu.Launch({Chunks(0)});
    CHECK(plan.evict_after == std::vector<Extent>{Chunks(12, 2)});
    CHECK(plan.now.out_op == 1);
    CHECK(plan.evict_after_op == 2);
  }
  SECTION("beside prefetches") {
    // Iterations of 12 launches with room for 10; before each, faults may have brought any missing chunk.
    Gpu gpu(16, 10, Prefetch::kPredict);
    gpu.residency.set_remote_access(false);
    uint64_t newest = 0, both = 0;
    for (uint64_t i = 0; i < 60; ++i) {
      if (i % 2) gpu.residency.NoteFaultResidue(Chunks(i % 4 == 1 ? 13 : 0, 12));
      const Plan& plan = gpu.Launch({Chunks(i % 12)}, 1, true, i % 12 + 1);
      for (const uint64_t op : {plan.now.out_op, plan.ahead.out_op, plan.evict_after_op}) {
        if (op) CHECK(op == ++newest);
      }
      if (!plan.evict_after_op || !plan.ahead.in_op) continue;
      ++both;
      CHECK(AwaitedEviction(plan.ahead) < plan.evict_after_op);
      for (const Extent& gone : plan.evict_after) CHECK(BytesWithin(plan.ahead.fetch, gone) == 0);
    }
    CHECK(both > 0);
  }
}

TEST_CASE("freed bytes are discarded only behind the fence of their free, with a launch between") {
  Gpu gpu(8, 2);
  gpu.Launch({Chunks(0)}, 1, false);
  gpu.residency.RemoveLive(Chunks(0));
  CHECK(gpu.Launch({Chunks(1)}, 1, false).discard.empty());
  // Room is needed, but the kernel that used chunk 0 has not finished: it is written back, not discarded.
  const Plan& copied = gpu.Launch({Chunks(2)}, 1, false);
  CHECK(copied.discard.empty());
  CHECK(TotalBytes(copied.now.evict) == kChunkBytes);

  gpu.time.Finish(1, gpu.seq[1]);
  gpu.residency.RemoveLive(Chunks(2));
  gpu.Launch({Chunks(3)});
  gpu.Launch({Chunks(4)});
  gpu.fences.Close();
  bool discarded = false;
  for (uint64_t i = 5; i < 8; ++i) discarded |= gpu.Launch({Chunks(i)}).discard == std::vector<Extent>{Chunks(2)};
  if (!discarded) CHECK_FALSE(gpu.residency.chunks().Find(Chunks(2).base)->resident());
  // A discarded chunk that is allocated again is fetched without a copy.
  Gpu other(8, 2);
  other.Launch({Chunks(0)});
  other.residency.RemoveLive(Chunks(0));
  other.Launch({Chunks(1)});
  other.fences.Close();
  REQUIRE(other.Launch({Chunks(2)}).discard == std::vector<Extent>{Chunks(0)});
  CHECK(other.residency.stats().bytes_out == 0);
  other.residency.AddLive(Chunks(0));
  other.Launch({Chunks(0)});
  CHECK(other.residency.stats().bytes_in == 0);
}

TEST_CASE("bytes freed and allocated again keep their contents unless they were discarded in between") {
  Gpu gpu(8, 2);
  gpu.Launch({Chunks(0)});
  gpu.residency.RemoveLive(Chunks(0));
  gpu.residency.AddLive(Chunks(0));
  for (uint64_t i = 1; i < 6; ++i) CHECK(gpu.Launch({Chunks(i)}).discard.empty());
  const uint64_t in = gpu.residency.stats().bytes_in;
  gpu.Launch({Chunks(0)});
  CHECK(gpu.residency.stats().bytes_in == in + kChunkBytes);
}

TEST_CASE("pinned bytes (captured, or the host's too) are never discarded") {
  Gpu gpu(8, 2);
  gpu.Launch({Chunks(0)});
  gpu.residency.Pin(Chunks(0), true);
  gpu.residency.RemoveLive(Chunks(0));
  for (uint64_t i = 1; i < 7; ++i) CHECK(gpu.Launch({Chunks(i)}).discard.empty());
}

TEST_CASE("with the order known, less is moved than by least recently used") {
  // A cyclic walk over 12 chunks in room for 8: LRU misses every time.
  uint64_t moved[2] = {};
  for (int i = 0; i < 2; ++i) {
    Gpu gpu(12, 8, i ? Prefetch::kPredict : Prefetch::kLaunch);
    for (int step = 0; step < 20; ++step) {
      for (uint64_t k = 0; k < 12; ++k) gpu.Launch({Chunks(k)}, 1, true, i ? k + 1 : 0);
    }
    moved[i] = gpu.residency.stats().bytes_in + gpu.residency.stats().bytes_out;
  }
  CHECK(moved[1] * 2 < moved[0]);
}

TEST_CASE("a change of phase or shape is learned within two steps") {
  // Train, evaluate, generate, and again: other launches, other orders, other chunks, in room for 8.
  Gpu gpu(18, 8, Prefetch::kPredict);
  gpu.residency.set_remote_access(false);
  const auto moved = [&gpu] { return gpu.residency.stats().bytes_in + gpu.residency.stats().bytes_out; };
  for (uint64_t phase = 0; phase < 6; ++phase) {
    uint64_t third = 0, last = 0;
    for (int step = 0; step < 12; ++step) {
      const uint64_t before = moved();
      for (uint64_t k = 0; k < 12; ++k) {
        const uint64_t chunk = phase % 3 == 0 ? k : phase % 3 == 1 ? 17 - k : (k * 5) % 12 + 3;
        gpu.Launch({Chunks(chunk)}, 1, true, 100 * (phase % 3) + k + 1);
      }
      last = moved() - before;
      if (step == 2) third = last;
    }
    INFO("phase " << phase << ": the third step moves " << third / kChunkBytes << " chunks, the last "
                  << last / kChunkBytes);
    CHECK(third <= 2 * last);
    CHECK(last <= 16 * kChunkBytes);  // by least recently used 12 are fetched and 12 evicted
  }
}

TEST_CASE("room of another stream's evictions in flight is not counted") {
  Gpu gpu(8, 2);
  gpu.time.transfers_instant = false;
  gpu.Launch({Chunks(0, 2)}, 1);
  gpu.time.FinishTransfers(1, 1, 0);
  gpu.Launch({Chunks(2)}, 1, false);  // evicts one; the eviction is in flight
  gpu.Launch({Chunks(3)}, 2, false);
  // Stream 2 may count neither on that room nor on chunk 2, which stream 1 still uses: only one finished chunk may be
  // evicted.
  CHECK(gpu.residency.resident_bytes() <= 2 * kChunkBytes);
}

TEST_CASE("bytes by faults are those with contents that are not fetched") {
  Gpu gpu(16, 4, Prefetch::kOff);
  gpu.Launch({Chunks(0, 4)});  // new: populated where it is written
  CHECK(gpu.residency.stats().fault_bytes == 0);
  gpu.Launch({Chunks(4, 4)});
  gpu.Launch({Chunks(0, 4)});
  CHECK(gpu.residency.stats().fault_bytes == 4 * kChunkBytes);

  // Chunks that unseen work used have contents, too.
  Gpu late(16, 16);
  late.residency.NoteUnseenUse();
  late.Launch({Chunks(0, 4)});
  CHECK(late.residency.stats().bytes_in == 4 * kChunkBytes);
  late.residency.Prepare(1, ++late.seq[1], std::vector<Extent>{Chunks(4, 4)}, 0, false);  // nothing could be queued
  CHECK(late.residency.stats().fault_bytes == 4 * kChunkBytes);

  Gpu denied(16, 4);
  denied.Launch({Chunks(0, 4)});
  denied.Launch({Chunks(4, 4)});
  const uint64_t in = denied.residency.stats().bytes_in;
  const Plan& plan = denied.Launch({Chunks(0, 2), Chunks(8, 2)});  // the driver refuses
  denied.residency.NoteNotFetched(plan.now.pieces.front());
  CHECK(denied.residency.stats().bytes_in == in);
  CHECK(denied.residency.stats().fault_bytes == 2 * kChunkBytes);
}

TEST_CASE("a shrunken budget evicts finished chunks at once") {
  Gpu gpu(16, 8);
  gpu.Launch({Chunks(0, 8)});
  gpu.residency.set_capacity(3 * kChunkBytes);
  const PlanStep& step = gpu.residency.Shrink(3, 3 * kChunkBytes).now;
  CHECK(TotalBytes(step.evict) == 5 * kChunkBytes);
  CHECK(gpu.residency.resident_bytes() == 3 * kChunkBytes);
}

TEST_CASE("a parked working set leaves as a whole, and returns in the order of its last use") {
  Gpu gpu(16, 12);
  for (const uint64_t chunk : {9, 5, 2, 7, 0}) gpu.Launch({Chunks(chunk)});
  gpu.residency.set_capacity(0);
  while (TotalBytes(gpu.residency.Shrink(3, 0).now.evict) > 0) {
  }
  CHECK(gpu.residency.resident_bytes() == 0);
  gpu.residency.set_capacity(12 * kChunkBytes);
  const uint64_t since = gpu.At(5).last_use;  // chunk 9 is older
  std::vector<uint64_t> order;
  for (int i = 0; i < 6; ++i) {
    for (const uint64_t chunk : ChunksOf(Fetched(gpu.residency.RestoreWorkingSet(3, kChunkBytes, since))))
      order.push_back(chunk);
  }
  CHECK(order == std::vector<uint64_t>{5, 2, 7, 0});
}

TEST_CASE("BytesToEvict counts live chunks alone") {
  Gpu gpu(8, 4);
  gpu.Launch({Chunks(0, 3)});
  CHECK(gpu.residency.BytesToEvict(std::vector{Chunks(1, 3)}) == 0);
  CHECK(gpu.residency.BytesToEvict(std::vector{Chunks(3, 3)}) == 2 * kChunkBytes);
  // Chunks that several extents share count once.
  CHECK(gpu.residency.BytesToEvict(std::vector{Chunks(3, 3), Chunks(4, 2), Chunks(5, 1)}) == 2 * kChunkBytes);
  gpu.residency.RemoveLive(Chunks(0));
  CHECK(gpu.residency.BytesToEvict(std::vector{Chunks(3, 3)}) == kChunkBytes);
  gpu.residency.set_capacity(8 * kChunkBytes);
  CHECK(gpu.residency.BytesToEvict(std::vector{Chunks(3, 3)}) == 0);
}

TEST_CASE("while the capacity is being raised nothing is evicted for a prefetch") {
  uint64_t evicted[2] = {};
  for (const bool filling : {false, true}) {
    Gpu gpu(48, 32, Prefetch::kPredict);
    gpu.residency.set_remote_access(false);
    for (uint64_t i = 0; i < 48 * 20; ++i) {
      gpu.residency.set_budget_rising(filling);
      const Plan& plan = gpu.Launch({Chunks(i % 48)}, 1, true, i % 48 + 1);
      evicted[filling] += TotalBytes(plan.ahead.evict);
    }
  }
  CHECK(evicted[false] > 0);
  CHECK(evicted[true] == 0);
}

TEST_CASE("extents that are named twice count twice in a chunk's named bytes, up to its size") {
  constexpr uint64_t kHalf = kChunkBytes / 2, kQuarter = kChunkBytes / 4;
  FakeGpu gpu(8, 8);
  const auto named = [&gpu](const std::vector<Extent>& set) {
    gpu.Queue(set);
    std::vector<uint64_t> quarters;
    for (uint64_t i = 0; i < 4; ++i) quarters.push_back(gpu.At(i).named_bytes / kQuarter);
    return quarters;
  };
  const Extent middle{kBase + kHalf + kQuarter, 2 * kChunkBytes + kHalf}, first{kBase, kQuarter};
  using Quarters = std::vector<uint64_t>;
  CHECK(named({middle}) == Quarters{1, 4, 4, 1});
  CHECK(named({middle, middle}) == Quarters{2, 4, 4, 2});
  CHECK(named({middle, middle, middle, middle, middle}) == Quarters{4, 4, 4, 4});
  CHECK(named({first, first, middle}) == Quarters{3, 4, 4, 1});
  CHECK(named({Chunks(1), middle, first}) == Quarters{2, 4, 4, 1});
  CHECK(named({Chunks(0, 2), Chunks(0, 2), Chunks(3)}) == Quarters{4, 4, 4, 4});  // 2 as before
}

// The eviction order is not read while nothing is evicted.
TEST_CASE("the eviction order does not grow while the sets of launches are resident") {
  for (const Prefetch mode : {Prefetch::kOff, Prefetch::kLaunch, Prefetch::kPredict}) {
    FakeGpu gpu(24, 16, mode);
    gpu.residency.set_remote_access(false);
    for (uint64_t i = 0; i < 24; ++i) gpu.Queue({Chunks(i)});
    gpu.Finish();
    for (int iteration = 0; iteration < 1000; ++iteration) {
      for (uint64_t i = 0; i < 4; ++i) gpu.Queue({Chunks(8 + 4 * i, 4)}, 1, 1 + i);
      gpu.Finish();
    }
    CHECK(gpu.residency.ranked_entries() <= 2 * 24);
    // The least recently used chunks are evicted first all the same.
    gpu.Queue({Chunks(12, 12)}, 1, 9);
    gpu.Finish();
    gpu.Queue({Chunks(0, 4)}, 1, 10);
    for (uint64_t i = 8; i < 12; ++i) CHECK_FALSE(gpu.Resident(i));
    for (uint64_t i = 12; i < 24; ++i) CHECK(gpu.Resident(i));
  }
}

TEST_CASE("a host that never waits has to wait once where all chunks to probe are always being evicted") {
  FakeGpu gpu(40, 20, Prefetch::kPredict);
  gpu.time.transfers_instant = false;
  uint64_t in = 0, out = 0;
  bool probed = false;
  const auto step = [&](uint64_t i) {
    const Plan& plan = gpu.Queue({Chunks(i % 4 * 10, 10)}, 1, 7);
    probed |= plan.probe.exploratory;
    in = std::max({in, plan.now.in_op, plan.ahead.in_op});
    out = std::max({out, plan.now.out_op, plan.ahead.out_op});
    gpu.Finish();
    // Eight evictions are in flight.
    gpu.time.FinishTransfers(1, in, out - std::min<uint64_t>(out, 8));
  };
  uint64_t n = 0;
  for (; n < 100 && !gpu.residency.ShouldAwaitProbes(7); ++n) step(n);
  CHECK_FALSE(probed);
  REQUIRE(n < 100);
  CHECK_FALSE(gpu.residency.ShouldAwaitProbes(8));
  for (int i = 0; i < 4; ++i) {
    REQUIRE(gpu.residency.ShouldAwaitProbes(7));
    gpu.residency.NoteAwaitedProbes(7);  // without effect
  }
  CHECK_FALSE(gpu.residency.ShouldAwaitProbes(7));
  for (n = 0; n < 200 && !gpu.residency.ShouldAwaitProbes(7); ++n) step(n);
  CHECK(n > 40);  // the next time later
  REQUIRE(n < 200);
  CHECK_FALSE(probed);
  // A launch that misses nothing answers nothing.
  for (int i = 0; i < 4 && gpu.residency.ShouldAwaitProbes(7); ++i) {
    gpu.time.FinishTransfers(1, in, out);
    gpu.residency.NoteAwaitedProbes(7);
    step(n++);
  }
  CHECK(probed);
  CHECK_FALSE(gpu.residency.ShouldAwaitProbes(7));
}

}  // namespace sluice::policy
