// Chunks that copies alone wrote: which are duplicated, which are dropped without a copy, and which writes end it.
#include <bitset>
#include <catch2/catch_test_macros.hpp>
#include <random>

#include "test/unit/fake_gpu.h"

namespace sluice::policy {

namespace {

using Runs = std::vector<Extent>;

// An arena of `total` chunks, all live, of which `capacity` may be resident. Copies wrote all of it, and each chunk was
// evicted once; the last ones are resident.
struct Gpu : FakeGpu {
  Gpu(uint64_t total, uint64_t capacity, Prefetch mode = Prefetch::kLaunch) : FakeGpu(total, capacity, mode) {
    residency.set_remote_access(false);
    residency.set_read_mostly(true);
    for (int iteration = 0; iteration < 2; ++iteration) {
      for (uint64_t i = 0; i < total; ++i) Launch({Chunks(i)});
    }
    residency.NoteCopied(Chunks(0, total));
  }
  const Plan& Launch(const Runs& set, uint64_t id = 0) {
    const Plan& plan = Queue(set, 1, id);
    Finish();
    return plan;
  }
  // Larger than the capacity, with a hot first extent; to fetch the rest is the fastest strategy.
  const Plan& LaunchLarger(const Runs& set) {
    residency.DropExcessDuplicates();
    const Plan& plan = Queue(set, 1, 7, 0, 1);
    Finish();
    residency.NoteMeasured(plan.graph_probe, plan.graph_probe.strategy == GraphStrategy::kFetch ? 1000 : 2000);
    return plan;
  }
  // Makes the chunk resident, as a duplicate if it may be. Whether it is one.
  bool IsDuplicated(uint64_t chunk) {
    if (!Resident(chunk)) Launch({Chunks(chunk)});
    return At(chunk).duplicate() && Resident(chunk);
  }
  // All of [0, 4) are duplicates; the others are evicted.
  void Fill() {
    Launch({Chunks(0, 4)});
    for (uint64_t i = 0; i < 4; ++i) REQUIRE(IsDuplicated(i));
  }
};

}  // namespace

TEST_CASE("a chunk that copies wrote is fetched as a duplicate, dropped without a copy, and duplicated again") {
  Gpu gpu(8, 4);
  const Plan& first = gpu.Launch({Chunks(0, 4)});
  CHECK(first.now.duplicate == Runs{Chunks(0, 4)});
  CHECK(first.now.fetch == Runs{Chunks(0, 4)});
  CHECK(first.now.evict == Runs{Chunks(4, 4)});  // these were fetched before it was known
  const uint64_t out = gpu.residency.stats().bytes_out, in = gpu.residency.stats().bytes_in;
  const Plan& second = gpu.Launch({Chunks(4, 4)});
  CHECK(second.now.drop == Runs{Chunks(0, 4)});
  CHECK(second.now.evict.empty());
  CHECK(AwaitedEviction(second.now) == 0);  // the room is free at once
  CHECK(gpu.residency.stats().bytes_out == out);
  CHECK(gpu.residency.stats().bytes_dropped == 4 * kChunkBytes);
  CHECK(gpu.residency.stats().bytes_in == in + 4 * kChunkBytes);
  CHECK(gpu.residency.resident_bytes() == 4 * kChunkBytes);
  CHECK(gpu.Launch({Chunks(0, 4)}).now.duplicate == Runs{Chunks(0, 4)});
  CHECK(gpu.residency.TakeWithdrawn().empty());
}

TEST_CASE("a chunk whose eviction is in flight is not duplicated: it would stay resident") {
  Gpu gpu(8, 4);
  gpu.time.transfers_instant = false;
  gpu.Launch({Chunks(0, 4)});
  const Plan& back = gpu.Launch({Chunks(4, 4)});  // evicted by the launch before
  CHECK(back.now.fetch == Runs{Chunks(4, 4)});
  CHECK(back.now.duplicate.empty());
  gpu.time.transfers_instant = true;
  gpu.Launch({Chunks(0, 4)});
  CHECK(gpu.Launch({Chunks(4, 4)}).now.duplicate == Runs{Chunks(4, 4)});
}

TEST_CASE("only chunks of which copies wrote every live byte are duplicated") {
  Gpu gpu(8, 4);
  gpu.residency.NoteWritten({kBase + kChunkBytes - 1, 2});  // the last byte of the first, the first of the second
  gpu.residency.RemoveLive({kBase + 3 * kChunkBytes + 512, 512});
  CHECK_FALSE(gpu.IsDuplicated(0));
  CHECK_FALSE(gpu.IsDuplicated(1));
  CHECK(gpu.IsDuplicated(2));
  CHECK(gpu.IsDuplicated(3));  // free bytes need not be copied
  gpu.Launch({Chunks(4, 4)});
  gpu.residency.NoteCopied({kBase + kChunkBytes, 1});
  CHECK_FALSE(gpu.IsDuplicated(0));
  CHECK(gpu.IsDuplicated(1));  // whole again
  gpu.Launch({Chunks(4, 4)});
  gpu.residency.AddLive({kBase + 3 * kChunkBytes + 512, 512});
  CHECK_FALSE(gpu.IsDuplicated(3));  // no copy has written that yet
}

TEST_CASE("nothing is duplicated under demand paging, or where it is switched off") {
  Gpu gpu(8, 4);
  gpu.residency.set_prefetch(Prefetch::kOff);
  CHECK_FALSE(gpu.IsDuplicated(0));
  gpu.residency.set_prefetch(Prefetch::kLaunch);
  CHECK(gpu.IsDuplicated(1));
  gpu.residency.set_read_mostly(false);
  CHECK(gpu.residency.TakeWithdrawn() == Runs{Chunks(1)});
  CHECK_FALSE(gpu.IsDuplicated(1));
  gpu.residency.NoteCopied(Chunks(2));
  CHECK_FALSE(gpu.IsDuplicated(2));
}

TEST_CASE("a write withdraws a duplicate, until a copy writes the chunk whole") {
  Gpu gpu(8, 4);
  gpu.Fill();
  gpu.residency.NoteWritten({kBase + kChunkBytes + 4096, 16});
  CHECK(gpu.residency.TakeWithdrawn() == Runs{Chunks(1)});
  CHECK_FALSE(gpu.Resident(1));  // the resident copy is dropped with the advice
  const Plan& plan = gpu.Launch({Chunks(1)});
  CHECK(plan.now.fetch == Runs{Chunks(1)});
  CHECK(plan.now.duplicate.empty());
  gpu.Launch({Chunks(4, 4)});
  CHECK_FALSE(gpu.IsDuplicated(1));
  CHECK(gpu.IsDuplicated(2));
  CHECK(gpu.residency.TakeWithdrawn().empty());
}

TEST_CASE("a chunk that is written while a duplicate is not duplicated for ever longer") {
  Gpu gpu(8, 4);
  for (int n = 0; n < 3; ++n) {
    gpu.Launch({Chunks(4, 4)});
    uint64_t launches = 0;
    while (!gpu.IsDuplicated(0)) {
      gpu.Launch({Chunks(4, 4)});
      REQUIRE(++launches < 40000);
    }
    CHECK(launches >= (n == 0 ? 0u : n == 1 ? 256u : 4096u));
    gpu.residency.NoteWritten(Chunks(0));
    CHECK(gpu.residency.TakeWithdrawn() == Runs{Chunks(0)});
    gpu.residency.NoteCopied(Chunks(0));
  }
}

TEST_CASE("bytes freed or allocated in a duplicate withdraw it") {
  Gpu gpu(8, 4);
  gpu.Fill();
  gpu.residency.RemoveLive({kBase + 4096, 512});
  CHECK(gpu.residency.TakeWithdrawn() == Runs{Chunks(0)});
  gpu.residency.RemoveLive(Chunks(1));
  CHECK(gpu.residency.TakeWithdrawn() == Runs{Chunks(1)});
  CHECK(gpu.IsDuplicated(0));
  gpu.residency.AddLive({kBase + 4096, 512});
  CHECK(gpu.residency.TakeWithdrawn() == Runs{Chunks(0)});
  CHECK(gpu.Resident(2));
  CHECK(gpu.Resident(3));
}

TEST_CASE("unseen work withdraws all duplicates, and a removed arena is forgotten") {
  Gpu gpu(8, 4);
  gpu.Fill();
  gpu.residency.ForgetAllCopies();
  CHECK(gpu.residency.TakeWithdrawn() == Runs{Chunks(0, 4)});
  CHECK_FALSE(gpu.IsDuplicated(0));
  gpu.residency.NoteCopied(Chunks(0, 8));
  gpu.Launch({Chunks(4, 4)});
  CHECK(gpu.IsDuplicated(0));
  gpu.residency.NoteWritten(Chunks(0));
  gpu.residency.RemoveArena(Chunks(0, 8));
  CHECK(gpu.residency.TakeWithdrawn().empty());
  gpu.residency.AddArena(Chunks(0, 8), false);
  gpu.residency.AddLive(Chunks(0, 8));
  gpu.Launch({Chunks(0, 4)});
  gpu.Launch({Chunks(4, 4)});
  CHECK_FALSE(gpu.IsDuplicated(0));
}

TEST_CASE("a duplicate that is withdrawn during its fetch is resident all the same") {
  Gpu gpu(8, 4);
  gpu.time.transfers_instant = false;
  gpu.time.FinishTransfers(1, 100, 100);
  gpu.Launch({Chunks(0)});
  gpu.time.FinishTransfers(1, 0, 100);
  gpu.residency.NoteWritten(Chunks(0));
  CHECK(gpu.residency.TakeWithdrawn() == Runs{Chunks(0)});
  CHECK(gpu.Resident(0));
  CHECK_FALSE(gpu.At(0).duplicate());
}

TEST_CASE(
    "duplicates in use are not dropped: the launch exceeds the budget, and they are dropped once that work is over") {
  Gpu gpu(12, 4);
  gpu.Fill();
  gpu.Queue({Chunks(0, 4)}, 1);  // unfinished
  const Plan& over = gpu.Queue({Chunks(4, 2)}, 1);
  CHECK(over.now.drop.empty());
  CHECK(over.now.evict.empty());
  CHECK(gpu.residency.resident_bytes() == 6 * kChunkBytes);
  CHECK(gpu.residency.has_excess_duplicates());
  CHECK(gpu.residency.DropExcessDuplicates().now.drop.empty());
  CHECK(gpu.residency.has_excess_duplicates());
  gpu.Finish();
  CHECK(gpu.residency.DropExcessDuplicates().now.drop.size() == 1);
  CHECK(gpu.residency.resident_bytes() == 4 * kChunkBytes);
  CHECK(gpu.Resident(4));
  CHECK(gpu.Resident(5));
  CHECK_FALSE(gpu.residency.has_excess_duplicates());
}

TEST_CASE("the cold rest of an oversized launch is fetched, and dropped behind it") {
  Gpu gpu(12, 4);
  const Runs set{Chunks(8, 3), Chunks(0, 8)};
  for (int i = 0; i < 12; ++i) gpu.LaunchLarger(set);
  gpu.residency.DropExcessDuplicates();
  const uint64_t faults = gpu.residency.stats().fault_bytes, launches = gpu.residency.stats().over_budget_launches;
  for (int iteration = 0; iteration < 4; ++iteration) {
    const Plan& plan = gpu.LaunchLarger(set);
    CHECK(plan.evict_after.empty());
    CHECK(gpu.residency.resident_bytes() == 11 * kChunkBytes);
    CHECK(gpu.residency.stats().over_budget_launches == launches + static_cast<uint64_t>(iteration) + 1);
    CHECK(gpu.residency.has_excess_duplicates());
    const Plan& after = gpu.residency.DropExcessDuplicates();
    CHECK(after.now.evict.empty());
    CHECK(gpu.residency.resident_bytes() == 4 * kChunkBytes);
    for (uint64_t i = 8; i < 11; ++i) CHECK(gpu.Resident(i));  // the hot part stays
  }
  CHECK(gpu.residency.stats().fault_bytes == faults);
  CHECK(gpu.residency.stats().over_budget_max == 7 * kChunkBytes);
}

TEST_CASE("duplicates may exceed the capacity, but not the GPU's memory") {
  Gpu gpu(12, 4);
  gpu.residency.set_max_resident(6 * kChunkBytes);
  const Runs set{Chunks(8, 3), Chunks(0, 8)};
  for (int i = 0; i < 12; ++i) gpu.LaunchLarger(set);
  const Plan& plan = gpu.LaunchLarger(set);
  CHECK(gpu.residency.resident_bytes() == 6 * kChunkBytes);
  CHECK(TotalBytes(plan.evict_after) == 5 * kChunkBytes);
}

TEST_CASE("of chunks with about the same next use a duplicate is dropped first") {
  for (const bool duplicate : {true, false}) {
    Gpu gpu(8, 3, Prefetch::kPredict);
    gpu.residency.set_max_prefetch_bytes(0);
    if (!duplicate) gpu.residency.NoteWritten(Chunks(0, 8));
    gpu.residency.NoteWritten(Chunks(1));  // once, so that it is no duplicate
    uint64_t dropped = 0, evicted = 0;
    for (int iteration = 0; iteration < 24; ++iteration) {
      for (uint64_t i = 0; i < 6; ++i) {
        const Plan& plan = gpu.Launch({Chunks(i)}, 100 + i);
        if (iteration <= 8) continue;
        dropped += TotalBytes(plan.now.drop);
        evicted += BytesWithin(plan.now.evict, Chunks(1));
      }
    }
    CHECK((dropped > 0) == duplicate);
    CHECK((evicted == 0) == duplicate);
  }
}

TEST_CASE("a budget that shrinks drops duplicates, and writes back other chunks") {
  Gpu gpu(8, 4);
  gpu.Launch({Chunks(0, 2)});
  gpu.residency.NoteWritten(Chunks(2));
  gpu.Launch({Chunks(2)});
  const Plan& plan = gpu.residency.Shrink(2, 0);
  CHECK(plan.now.drop == Runs{Chunks(0, 2)});
  CHECK(plan.now.evict == Runs{Chunks(2), Chunks(7)});
}

TEST_CASE("the ranges that copies wrote agree with a map of bytes") {
  constexpr size_t kBytes = 256;
  std::mt19937 random(1);
  CopiedRanges ranges;
  std::bitset<kBytes> truth;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t begin = random() % kBytes, bytes = random() % (kBytes - begin) / (1 + random() % 8);
    const bool add = random() % 2;
    std::bitset<kBytes> changed, expected;
    const auto note = [&](Extent part) {
      REQUIRE(part.bytes > 0);
      for (Va at = part.base; at < part.end(); ++at) {
        REQUIRE_FALSE(changed[at]);
        changed[at] = true;
      }
    };
    for (uint64_t at = begin; at < begin + bytes; ++at) {
      expected[at] = truth[at] != add;
      truth[at] = add;
    }
    add ? ranges.Add({begin, bytes}, note) : ranges.Remove({begin, bytes}, note);
    REQUIRE(changed == expected);
    REQUIRE(ranges.empty() == truth.none());
  }
}

}  // namespace sluice::policy
