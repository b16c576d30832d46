// When fault residue is due for eviction, and how residue that is still in use then is treated.
#include "hooklib/policy/evict/fault_residue.h"

#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "test/unit/fake_gpu.h"

namespace sluice::policy {

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

struct SweptTable {
  ChunkTable table;
  FaultResidue residue;
  uint64_t now = 1000;

  SweptTable() { table.AddArena(Chunks(0, 8)); }
  Chunk* At(uint64_t chunk) { return table.Find(Chunks(chunk).base); }
  std::vector<Va> Sweep() {
    std::vector<Va> swept;
    residue.Sweep(&table, now, [&swept](Chunk* chunk) {
      swept.push_back(chunk->base);
      return true;
    });
    return swept;
  }
};

}  // namespace

TEST_CASE("fault residue is due once it is 64 MiB, by launch times or by the driver's count") {
  for (const bool counted : {false, true}) {
    SweptTable gpu;
    gpu.At(0)->NoteContents();
    gpu.residue.Add(gpu.At(0));
    gpu.residue.NoteBytes(kMiB, gpu.now);
    gpu.Sweep();
    gpu.residue.Add(gpu.At(0));
    gpu.residue.NoteBytes(kMiB, gpu.now);
    CHECK_FALSE(gpu.residue.IsDue(gpu.now));
    if (counted) {
      gpu.residue.set_counted_bytes(64 * kMiB);
    } else {
      gpu.residue.NoteBytes(63 * kMiB, gpu.now);
    }
    CHECK(gpu.residue.IsDue(gpu.now));
    gpu.Sweep();
    gpu.residue.NoteBytes(kMiB, gpu.now);
    CHECK_FALSE(gpu.residue.IsDue(gpu.now));  // both counts start again
  }
}

TEST_CASE("fault residue is due at growing intervals, and soon again once a new chunk is named") {
  SweptTable gpu;
  const auto launches_to_sweep = [&gpu] {
    for (uint64_t n = 1;; ++n) {
      ++gpu.now;
      gpu.residue.NoteBytes(0, gpu.now);
      if (!gpu.residue.IsDue(gpu.now)) continue;
      gpu.Sweep();
      return n;
    }
  };
  gpu.residue.Add(gpu.At(0));
  gpu.residue.NoteBytes(0, gpu.now);
  gpu.Sweep();
  CHECK(launches_to_sweep() == 16);
  CHECK(launches_to_sweep() == 32);
  CHECK(launches_to_sweep() == 64);
  gpu.residue.Add(gpu.At(0));  // named before: it changes nothing
  CHECK(launches_to_sweep() == 128);
  gpu.residue.Add(gpu.At(1));
  CHECK(launches_to_sweep() == 16);
}

TEST_CASE("fault residue is due once no launch has added any for 1,024 launches") {
  SweptTable gpu;
  gpu.At(0)->NoteContents();
  gpu.residue.NoteBytes(kMiB, gpu.now);
  gpu.Sweep();
  gpu.residue.Add(gpu.At(0));
  gpu.residue.NoteBytes(kMiB, gpu.now);
  CHECK(gpu.residue.IsRecent(gpu.now + 1023));
  CHECK_FALSE(gpu.residue.IsRecent(gpu.now + 1024));
  CHECK(gpu.residue.IsDue(gpu.now + 1024));
}

TEST_CASE("faulted pages count by the chunk, and only while there is fault residue") {
  SweptTable gpu;
  std::vector<Va> pages;
  for (uint64_t i = 0; i < 33; ++i) pages.push_back(kBase + i * kChunkBytes);
  const auto faulted_in = [&](const std::vector<Va>& of) {
    gpu.residue.NoteBytes(0, gpu.now);
    gpu.residue.NoteFaultedIn(of);
    return gpu.residue.IsDue(gpu.now);
  };
  gpu.Sweep();
  CHECK_FALSE(faulted_in(pages));
  gpu.At(0)->NoteContents();
  gpu.residue.Add(gpu.At(0));
  CHECK_FALSE(faulted_in(std::vector<Va>(40, kBase)));
  CHECK(faulted_in(pages));
}

TEST_CASE("a sweep visits each chunk once, but none that was evicted or whose arena was removed") {
  SweptTable gpu;
  for (int twice = 0; twice < 2; ++twice) {
    for (const uint64_t chunk : {0, 1, 2}) gpu.residue.Add(gpu.At(chunk));
  }
  gpu.At(1)->EndFaultResidue();
  CHECK(gpu.Sweep() == std::vector<Va>{Chunks(0).base, Chunks(2).base});
  CHECK(gpu.residue.empty());
  gpu.At(0)->EndFaultResidue();
  gpu.residue.Add(gpu.At(0));
  gpu.table.RemoveArena(kBase);
  CHECK(gpu.Sweep().empty());
  CHECK(gpu.residue.empty());
}

TEST_CASE("residue in use by several streams is evicted by the first launch after that work is over") {
  FakeGpu gpu(64, 16, Prefetch::kOff);
  const std::vector<Extent> all{Chunks(0, 64)};
  for (const StreamId stream : {1, 2, 3}) {
    const Plan& plan = gpu.Queue(all, stream, 7);
    CHECK(plan.evict_after.empty() == (stream != 1));  // the first stream works alone
  }
  CHECK(gpu.residency.ResidueSweepPending());
  for (const StreamId stream : {1, 2, 3}) gpu.Finish(stream);
  CHECK_FALSE(gpu.residency.ResidueSweepPending());
  CHECK(TotalBytes(gpu.Queue({Chunks(0)}, 1, 8).evict_after) == 48 * kChunkBytes);
}

TEST_CASE("residue that is in use at each sweep is not waited for again and again") {
  FakeGpu gpu(64, 16, Prefetch::kOff);
  const std::vector<Extent> all{Chunks(0, 64)};
  for (const StreamId stream : {1, 2}) gpu.Queue(all, stream, 7);
  int waits = 0;
  while (gpu.residency.ResidueSweepPending()) {
    REQUIRE(++waits <= 8);
    gpu.Queue(all, 2, 7);  // it did not wait
    gpu.Finish(1);
    gpu.time.Finish(2, gpu.seq[2] - 1);
    CHECK_FALSE(gpu.residency.ResidueSweepPending());
    CHECK(gpu.Queue(all, 1, 7).evict_after.empty());
  }
  CHECK(waits == 4);
  const auto launches_to_wait = [&] {
    uint64_t launches = 0;
    for (; !gpu.residency.ResidueSweepPending(); ++launches) gpu.Queue(all, 1, 7);
    return launches;
  };
  CHECK(launches_to_wait() == 16);
  gpu.residency.PauseResidueSweep();
  CHECK(launches_to_wait() == 1024);
  // The next launch evicts it all the same, once that work is over.
  for (const StreamId stream : {1, 2}) gpu.Finish(stream);
  CHECK_FALSE(gpu.Queue(all, 1, 7).evict_after.empty());
}

TEST_CASE("residue in use is not waited for while a capture forbids queries") {
  FakeGpu gpu(64, 16, Prefetch::kOff);
  for (const StreamId stream : {1, 2}) gpu.Queue({Chunks(0, 64)}, stream, 7);
  gpu.time.capturing = true;
  CHECK_FALSE(gpu.residency.ResidueSweepPending());
  gpu.time.capturing = false;
  CHECK(gpu.residency.ResidueSweepPending());
}

TEST_CASE(
    "estimates of fault residue that the driver's count does not confirm count for ever less, but never nothing") {
  SweptTable gpu;
  gpu.At(0)->NoteContents();
  gpu.residue.Add(gpu.At(0));
  gpu.residue.set_counted_bytes(0);
  // Launches that take 4 ms beside a sweep, and fault on nothing.
  const auto sweeps = [&gpu](uint64_t launches, uint64_t counted) {
    uint64_t n = 0, all = 1000 * kMiB;
    for (uint64_t i = 0; i < launches; ++i) {
      gpu.residue.Add(gpu.At(0));
      gpu.residue.NoteBytes(48 * kMiB, gpu.now);
      if (counted) gpu.residue.set_counted_bytes(all += counted);
      if (gpu.residue.IsDue(++gpu.now)) ++n, gpu.Sweep();
    }
    return n;
  };
  CHECK(sweeps(128, 0) <= 64);
  const uint64_t settled = sweeps(1024, 0);
  CHECK(settled <= 32);
  CHECK(settled >= 8);
  // Once they are true they count in full.
  sweeps(64, 48 * kMiB);
  CHECK(sweeps(128, 48 * kMiB) >= 60);
}

}  // namespace sluice::policy
