// The order of victims where the next launches are known.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <map>

#include "test/unit/fake_gpu.h"

namespace sluice::policy {

TEST_CASE("recently used chunks stay where an older chunk is needed nearly as late") {
  constexpr uint64_t kChunks = 80;
  FakeGpu gpu(kChunks, kChunks - 10, Prefetch::kPredict);
  gpu.residency.set_remote_access(false);
  std::map<uint64_t, uint64_t> used;
  uint64_t evicted = 0, min_age = UINT64_MAX;
  for (uint64_t i = 0; i < 6 * kChunks; ++i) {
    const Plan& plan = gpu.Queue({Chunks(i % kChunks)}, 1, 1 + i % kChunks);
    for (const uint64_t chunk : ChunksOf(Evicted(plan))) {
      if (i < 3 * kChunks) continue;
      ++evicted;
      min_age = std::min(min_age, i - used[chunk]);
    }
    used[i % kChunks] = i;
    gpu.Finish();
  }
  CHECK(evicted > 0);
  CHECK(evicted < kChunks);  // three iterations, each of which lacks ten
  CHECK(min_age >= 20);
}

TEST_CASE("chunks needed at once are not evicted in favour of chunks just used") {
  // A cyclic walk: the chunk used last is needed last, and the one used longest ago is next.
  constexpr uint64_t kChunks = 26;
  FakeGpu gpu(kChunks, kChunks - 1, Prefetch::kPredict);
  gpu.residency.set_remote_access(false);
  uint64_t fetched = 0;
  for (uint64_t i = 0; i < 20 * kChunks; ++i) {
    const Plan& plan = gpu.Queue({Chunks(i % kChunks)}, 1, 1 + i % kChunks);
    if (i >= 10 * kChunks) fetched += TotalBytes(Fetched(plan)) / kChunkBytes;
    gpu.Finish();
  }
  CHECK(fetched <= 20);  // with the oldest as victim: 260
}

TEST_CASE("chunks that are freed soon stay where others have to be evicted in any case") {
  // Twenty long-lived chunks are used, and ten are allocated beside them, which fills the room. Five more are used,
  // which need victims. The ten are freed. Then others are allocated, used in more than the room, and freed. These
  // displace the twenty in any case, which are needed no sooner than the ten are used again.
  constexpr uint64_t kAllocated = 20, kUsed = 30, kFirstOther = 35, kAll = 75, kRoom = 30;
  FakeGpu gpu(kAll, kRoom, Prefetch::kPredict);
  gpu.residency.set_remote_access(false);
  gpu.residency.set_in_order(true);
  const Extent allocated = Chunks(kAllocated, kUsed - kAllocated), others = Chunks(kFirstOther, kAll - kFirstOther),
               all = Chunks(0, kAll);
  gpu.residency.RemoveLive(allocated, all);
  gpu.residency.RemoveLive(others, all);
  uint64_t evicted = 0;
  const auto launch = [&](uint64_t id, uint64_t chunk) {
    evicted += BytesWithin(Evicted(gpu.Queue({Chunks(chunk)}, 1, id)), allocated);
    gpu.Finish();
  };
  for (int iteration = 0; iteration < 40; ++iteration) {
    if (iteration == 30) evicted = 0;
    for (uint64_t i = 0; i < kAllocated; ++i) launch(100 + i, i);
    gpu.residency.AddLive(allocated);
    for (uint64_t i = kAllocated; i < kUsed; ++i) launch(100 + i, i);
    for (uint64_t i = 0; i < 30; ++i) launch(200 + i, kUsed - 1);  // a chunk used just now stays anyhow
    for (uint64_t i = kUsed; i < kFirstOther; ++i) launch(300 + i, i);
    gpu.residency.RemoveLive(allocated, all);
    gpu.residency.AddLive(others);
    for (uint64_t i = 0; i < 8 * (kAll - kFirstOther); ++i) launch(400 + i, kFirstOther + i % (kAll - kFirstOther));
    gpu.residency.RemoveLive(others, all);
  }
  INFO((evicted >> 20) << " MiB of the ten chunks evicted in ten iterations");
  CHECK(evicted <= 10 * kChunkBytes);
}

TEST_CASE("chunks that may not be evicted are queried once for a launch, however much is prefetched") {
  constexpr uint64_t kBusy = 60, kPeriod = 80;
  FakeGpu gpu(kBusy + kPeriod, kBusy + kPeriod - 10, Prefetch::kPredict);
  gpu.residency.set_remote_access(false);
  gpu.Queue({Chunks(kPeriod, kBusy)}, 2);  // never done
  uint64_t max_queries = 0, max_fetched = 0;
  for (uint64_t i = 0; i < 6 * kPeriod; ++i) {
    if (i == 3 * kPeriod) gpu.residency.set_capacity((kBusy + kPeriod - 40) * kChunkBytes);
    gpu.time.queries = 0;
    const Plan& plan = gpu.Queue({Chunks(i % kPeriod)}, 1, 1 + i % kPeriod);
    max_queries = std::max(max_queries, gpu.time.queries);
    max_fetched = std::max(max_fetched, TotalBytes(plan.ahead.fetch) / kChunkBytes);
    gpu.Finish();
  }
  CHECK(max_fetched >= 8);
  CHECK(max_queries <= 3 * kBusy);
}

TEST_CASE("unallocated chunks of an arena are dropped first, without a copy") {
  FakeGpu gpu(8, 8);
  gpu.residency.AddArena(Chunks(16, 8), true);
  gpu.residency.AddLive(Chunks(16, 4));
  gpu.Queue({Chunks(16, 4)});
  gpu.Finish();
  const Plan& plan = gpu.Queue({Chunks(0, 4)});
  CHECK(plan.discard == std::vector<Extent>{Chunks(20, 4)});
  CHECK(plan.now.evict.empty());
  CHECK(gpu.Resident(16));
  CHECK(gpu.residency.resident_bytes() == 8 * kChunkBytes);
  // Once allocated they are fetched like any others.
  gpu.Finish();
  gpu.residency.AddLive(Chunks(20, 4));
  gpu.Queue({Chunks(20, 4)});
  CHECK(gpu.Resident(20));
  CHECK(gpu.residency.resident_bytes() == 8 * kChunkBytes);
}

TEST_CASE("free chunks that the GPU still uses make no room for a launch") {
  const auto probes = [](bool finished) {
    FakeGpu gpu(14, 8, Prefetch::kPredict);
    for (const uint64_t at : {8, 4}) {
      gpu.Queue({Chunks(at, 4)});
      gpu.Finish();
    }
    gpu.Queue({Chunks(0, 4)});  // in the place of 8 to 11
    gpu.residency.RemoveLive(Chunks(0, 4));
    gpu.Queue({Chunks(12, 2)}, 2);  // could have taken their place: 4 and 5 are evicted instead
    CHECK_FALSE(gpu.Resident(4));
    gpu.Finish(2);
    if (finished) gpu.Finish(1);
    const LaunchProbe probe = gpu.Queue({Chunks(8, 4)}, 1, 100).probe;
    CHECK(gpu.Resident(6));
    CHECK(gpu.Resident(8) == finished);
    return probe.host_bytes > 0;
  };
  CHECK(probes(false));
  CHECK_FALSE(probes(true));
}

TEST_CASE("free chunks that are used again soon stay where another chunk is needed far later") {
  // Weights of four chunks are used once in an iteration, and three temporary blocks of two in turn: ten chunks in all.
  constexpr uint64_t kCapacityChunks = 8, kTurns = 120;
  FakeGpu gpu(10, kCapacityChunks, Prefetch::kPredict);
  gpu.residency.link().set_slow_write_back(false);
  gpu.residency.set_in_order(true);
  const auto block = [](uint64_t turn) { return Chunks(4 + 2 * (turn % 3), 2); };
  for (uint64_t i = 0; i < 3; ++i) gpu.residency.RemoveLive(block(i), Chunks(4, 6));
  uint64_t saved = 0, evicted = 0;
  for (int iteration = 0; iteration < 6; ++iteration) {
    const auto before = gpu.residency.stats();
    gpu.Queue({Chunks(0, 4)}, 1, 100);
    gpu.Finish();
    for (uint64_t turn = 0; turn < kTurns; ++turn) {
      gpu.residency.AddLive(block(turn));
      gpu.Queue({block(turn)}, 1, 101 + 2 * turn);
      gpu.Finish();
      gpu.residency.RemoveLive(block(turn), Chunks(4, 6));
      CHECK(gpu.residency.resident_bytes() <= kCapacityChunks * kChunkBytes);
    }
    saved = gpu.residency.stats().bytes_saved - before.bytes_saved;
    evicted = gpu.residency.stats().bytes_out - before.bytes_out;
  }
  CHECK(saved / kChunkBytes <= kTurns / 5);  // each turn discards a block of two otherwise
  CHECK(evicted / kChunkBytes <= 4);
}

TEST_CASE("a chunk assumed resident by faults and then freed is not discarded while its eviction is in flight") {
  FakeGpu gpu(12, 4);
  gpu.time.transfers_instant = false;
  gpu.Queue({Chunks(0, 4)});
  gpu.time.FinishTransfers(1, 1, 0);
  REQUIRE(gpu.Queue({Chunks(4, 4)}).now.out_op == 1);  // the evictions of 0 to 3 are in flight
  gpu.residency.Prepare(1, ++gpu.seq[1], std::vector<Extent>{Chunks(0)}, 7, false);
  gpu.time.Queue(1, gpu.seq[1]);
  REQUIRE(gpu.Resident(0));
  gpu.residency.RemoveLive(Chunks(0));
  const auto discarded = [&gpu] {
    gpu.Finish();
    const Plan& plan = gpu.Queue({Chunks(4 + gpu.seq[1] % 8)});
    return !plan.discard.empty() || !plan.stream_discard.empty();
  };
  for (int i = 0; i < 4; ++i) CHECK_FALSE(discarded());
  gpu.time.FinishTransfers(1, 100, 100);
  bool at_last = false;
  for (int i = 0; i < 4; ++i) at_last |= discarded();
  CHECK(at_last);
}

TEST_CASE("freed bytes are not discarded while another stream's older eviction of them runs") {
  for (const bool is_over : {false, true}) {
    FakeGpu gpu(8, 3);
    const auto launch = [&gpu](Extent set, StreamId stream) {
      const std::vector<Extent> discarded = gpu.Queue({set}, stream).discard;
      gpu.Finish(stream);
      return std::ranges::any_of(discarded, [](const Extent& run) { return run.base == Chunks(0).base; });
    };
    launch(Chunks(0), 1);
    gpu.time.transfers_instant = false;
    gpu.time.FinishTransfers(1, 100, 100);
    launch(Chunks(5, 3), 2);  // evicts chunk 0 on its own queue
    gpu.time.FinishTransfers(2, 100, is_over ? 100 : 0);
    // It was evicted and fetched on stream 1 since: the chunk knows its newest eviction alone.
    Chunk* const chunk = gpu.residency.chunks().Find(Chunks(0).base);
    chunk->SetEvictingElsewhere(true);
    chunk->ForgetStream(2);
    launch(Chunks(0), 1);
    gpu.residency.RemoveLive(Chunks(0));
    bool discarded = false;
    for (uint64_t i = 1; i < 5; ++i) {
      gpu.fences.Close();
      discarded |= launch(Chunks(i), 1);
    }
    CHECK(discarded == is_over);
  }
}

}  // namespace sluice::policy
