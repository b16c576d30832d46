// Chunks that a launch overwrites whole: which of them are repopulated without a fetch.
#include <catch2/catch_test_macros.hpp>

#include "test/unit/fake_gpu.h"

namespace sluice::policy {

namespace {

// An arena of `total` chunks, all live and written, of which `capacity` may be resident; the last ones are.
struct Gpu : FakeGpu {
  Gpu(uint64_t total, uint64_t capacity, Prefetch mode = Prefetch::kLaunch) : FakeGpu(total, capacity, mode) {
    residency.set_remote_access(false);
    for (uint64_t i = 0; i < total; ++i) Launch({Chunks(i)});
  }
  // The last `overwritten` of the set are overwritten whole.
  const Plan& Launch(const std::vector<Extent>& set, size_t overwritten = 0, uint64_t id = 0, StreamId stream = 1) {
    const Plan& plan = Queue(set, stream, id, overwritten);
    Finish(stream);
    return plan;
  }
};

}  // namespace

TEST_CASE("a chunk that is overwritten whole is repopulated in an evicted chunk's place, and counts as used") {
  Gpu gpu(8, 4);
  const uint64_t saved = gpu.residency.stats().bytes_saved;
  const Plan& plan = gpu.Launch({Chunks(0, 2)}, 1);
  CHECK(plan.repopulate == std::vector<Extent>{Chunks(0, 2)});
  CHECK(plan.now.fetch.empty());
  CHECK(plan.wait_in == 0);
  CHECK(plan.now.evict == std::vector<Extent>{Chunks(4, 2)});
  CHECK(plan.repopulate_after == plan.now.out_op);
  CHECK(gpu.residency.stats().bytes_saved == saved + 2 * kChunkBytes);
  CHECK(gpu.Launch({Chunks(0, 2)}, 1).repopulate.empty());  // resident
  gpu.residency.NoteNotRepopulated(plan);
  CHECK(gpu.residency.stats().bytes_saved == saved + 2 * kChunkBytes);
  gpu.Launch({Chunks(4, 4)});
  // It holds the launch's results: a launch that does not overwrite it fetches it.
  const Plan& back = gpu.Launch({Chunks(0, 2)});
  CHECK(back.repopulate.empty());
  CHECK(back.now.fetch == std::vector<Extent>{Chunks(0, 2)});
}

TEST_CASE("only whole live chunks of allocations that only launches write are repopulated") {
  Gpu gpu(8, 4);
  const Extent middle{kBase + kChunkBytes / 2, 2 * kChunkBytes};
  const Plan& edges = gpu.Launch({middle}, 1);
  CHECK(edges.repopulate == std::vector<Extent>{Chunks(1)});
  CHECK(edges.now.fetch == std::vector<Extent>{Chunks(0), Chunks(2)});
  gpu.Launch({Chunks(4, 4)});
  gpu.residency.RemoveLive({kBase + 4096, 512});
  CHECK(gpu.Launch({Chunks(0, 2)}, 1).repopulate == std::vector<Extent>{Chunks(1)});
  gpu.Launch({Chunks(4, 4)});
  gpu.residency.Pin(Chunks(1), true);
  CHECK(gpu.Launch({Chunks(1, 2)}, 1).repopulate == std::vector<Extent>{Chunks(2)});
}

TEST_CASE("chunks that the launch also names otherwise are fetched, in any order of its ranges") {
  Gpu gpu(8, 4);
  const Plan& plan = gpu.Launch({{kBase + kChunkBytes + 100, 8}, Chunks(0, 3)}, 1);
  CHECK(plan.repopulate == std::vector<Extent>{Chunks(0), Chunks(2)});
  CHECK(plan.now.fetch == std::vector<Extent>{Chunks(1)});
}

TEST_CASE("a chunk whose eviction may still run is fetched, since no launch waits for that eviction") {
  Gpu gpu(8, 4);
  gpu.time.transfers_instant = false;
  gpu.time.FinishTransfers(1, 100, 100);
  gpu.Launch({Chunks(0, 4)});                                                            // 4 to 7 are evicted
  CHECK(gpu.Launch({Chunks(4, 2)}, 1).repopulate == std::vector<Extent>{Chunks(4, 2)});  // evicted long ago
  gpu.time.FinishTransfers(1, 100, 0);
  gpu.Launch({Chunks(0, 4)});
  const Plan& pending = gpu.Launch({Chunks(4, 2)}, 1);
  CHECK(pending.repopulate.empty());
  CHECK(pending.now.fetch == std::vector<Extent>{Chunks(4, 2)});
}

TEST_CASE("chunks evicted behind an oversized launch count as evictions in flight, too") {
  Gpu gpu(8, 4);
  gpu.time.transfers_instant = false;
  gpu.time.FinishTransfers(1, 100, 100);
  const Plan over = gpu.Launch({Chunks(0, 6)});
  REQUIRE(over.evict_after.size() == 1);
  gpu.time.FinishTransfers(1, 100, over.evict_after_op - 1);
  const Extent first_evicted{over.evict_after[0].base, kChunkBytes};
  CHECK(gpu.Launch({first_evicted}, 1, 0, 2).repopulate.empty());
}

TEST_CASE("nothing is repopulated without discard, switched off, by faults, or where nothing can be queued") {
  for (int which = 0; which < 3; ++which) {
    Gpu gpu(8, 4, which == 2 ? Prefetch::kOff : Prefetch::kLaunch);
    if (which == 0) gpu.residency.set_can_discard(false);
    if (which == 1) gpu.residency.set_repopulates(false);
    CHECK(gpu.Launch({Chunks(0, 2)}, 1).repopulate.empty());
  }
  Gpu gpu(8, 4);
  const Extent set[] = {Chunks(0, 2)};
  CHECK(gpu.residency.Prepare(1, 99, set, 0, false, 1).repopulate.empty());
}

TEST_CASE("chunks that the predicted launch overwrites are not prefetched for it") {
  uint64_t fetched[2] = {}, repopulated[2] = {};
  for (const bool repopulates : {false, true}) {
    Gpu gpu(24, 16, Prefetch::kPredict);
    gpu.residency.set_repopulates(repopulates);
    for (int iteration = 0; iteration < 20; ++iteration) {
      for (uint64_t i = 0; i < 12; ++i) {
        // Reads one chunk, overwrites another one.
        const Plan& plan = gpu.Launch({Chunks(i), Chunks(12 + i)}, 1, 2 * i + 3);
        if (iteration > 2) fetched[repopulates] += BytesWithin(Fetched(plan), Chunks(12, 12)) / kChunkBytes;
        repopulated[repopulates] += TotalBytes(plan.repopulate) / kChunkBytes;
      }
    }
  }
  CHECK(fetched[false] > 50);
  CHECK(fetched[true] < fetched[false] / 4);
  CHECK(repopulated[true] > 50);
  CHECK(repopulated[false] == 0);
}

}  // namespace sluice::policy
