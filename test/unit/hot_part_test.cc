// A launch larger than the capacity that names its hot part.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "test/unit/fake_gpu.h"

namespace sluice::policy {

namespace {

struct Gpu : FakeGpu {
  Gpu(uint64_t total, uint64_t capacity, Prefetch mode = Prefetch::kLaunch) : FakeGpu(total, capacity, mode) {
    residency.set_remote_access(false);
    for (uint64_t i = 0; i < total; ++i) Launch({Chunks(i)}, {});
  }
  // `hot_extents`: so many extents are used more than the others. To fetch the rest is the fastest strategy.
  const Plan& Launch(const std::vector<Extent>& set, std::optional<size_t> hot_extents) {
    const Plan& plan = Queue(set, 1, 7, 0, hot_extents);
    Finish();
    if (plan.graph_probe.id)
      residency.NoteMeasured(plan.graph_probe, plan.graph_probe.strategy == GraphStrategy::kFetch ? 1000 : 2000);
    return plan;
  }
  // Up to the first launch whose hot part is fetched.
  const Plan& LaunchUntilFetched(const std::vector<Extent>& set, size_t hot_extents) {
    Launch(set, hot_extents);
    Launch(set, hot_extents);
    return Launch(set, hot_extents);
  }
};

}  // namespace

TEST_CASE("the hot part of an oversized graph takes the place of the rest, and stays resident") {
  Gpu gpu(12, 4);                                             // 8 to 11 are resident
  const std::vector<Extent> set{Chunks(0, 3), Chunks(4, 8)};  // 0 to 2 by most nodes
  const Plan& first = gpu.LaunchUntilFetched(set, 1);
  REQUIRE(first.graph_probe.strategy == GraphStrategy::kFetch);
  CHECK(TotalBytes(first.now.evict) == 3 * kChunkBytes);  // of the resident ones, no matter which
  CHECK(first.wait_in == first.now.in_op);
  for (int iteration = 0; iteration < 3; ++iteration) {
    const Plan& again = gpu.Launch(set, 1);
    CHECK(again.now.evict.empty());
    CHECK(again.now.fetch == again.evict_after);
    for (uint64_t i = 0; i < 3; ++i) CHECK(gpu.Resident(i));
  }
  CHECK(gpu.residency.resident_bytes() == 4 * kChunkBytes);
}

TEST_CASE("no chunk is evicted for a graph without a hot part, under demand paging, or where all fits") {
  for (int which = 0; which < 2; ++which) {
    Gpu gpu(12, 4, which == 1 ? Prefetch::kOff : Prefetch::kLaunch);
    const Plan& plan = gpu.LaunchUntilFetched({Chunks(0, 3), Chunks(4, 8)}, which);
    CHECK(plan.now.evict.empty());
    CHECK(gpu.Resident(11));
  }
  Gpu gpu(12, 12);
  CHECK(gpu.LaunchUntilFetched({Chunks(0, 3), Chunks(4, 8)}, 1).now.empty());
}

TEST_CASE("small operands of an oversized launch that is no graph stay resident in place of the largest") {
  for (const bool small : {true, false}) {
    Gpu gpu(40, 16);  // 24 to 39 are resident
    // A table of 32 chunks, and an operand that is named behind it: far smaller, or half as large.
    const Extent other = small ? Chunks(0, 2) : Chunks(0, 16);
    const std::vector<Extent> set{Chunks(8, 32), other};
    gpu.Launch(set, {});
    CHECK(gpu.Resident(0) == small);
    CHECK(gpu.Resident(1) == small);
    CHECK(gpu.residency.resident_bytes() <= 16 * kChunkBytes);
    const ResidencyStats before = gpu.residency.stats();
    for (int i = 0; i < 10; ++i) gpu.Launch(set, {});
    CHECK(gpu.Resident(0) == small);
    CHECK(gpu.residency.stats().bytes_in - before.bytes_in == 0);  // nothing is swapped
  }
}

TEST_CASE("small operands of a graph stay resident where remote access to the largest is the fastest") {
  Gpu gpu(40, 16);  // 24 to 39 are resident
  gpu.residency.set_remote_access(true);
  // A paged cache of 32 chunks, which the graph's nodes name most, and weights of 2 x 4 chunks behind it.
  const std::vector<Extent> set{Chunks(8, 32), Chunks(0, 4), Chunks(4, 4)};
  for (int i = 0; i < 20; ++i) {
    const Plan& plan = gpu.Queue(set, 1, 7, 0, 1);
    gpu.Finish();
    if (plan.graph_probe.id)
      gpu.residency.NoteMeasured(plan.graph_probe,
                                 plan.graph_probe.strategy == GraphStrategy::kRemoteLargest ? 1000 : 2000);
  }
  CHECK(gpu.residency.graph_strategies().Best(7) == GraphStrategy::kRemoteLargest);
  for (uint64_t i = 0; i < 8; ++i) CHECK(gpu.Resident(i));
  CHECK(gpu.residency.resident_bytes() <= 16 * kChunkBytes);
}

TEST_CASE("a graph displaces chunks of other work to restore its hot part, not its own chunks") {
  Gpu gpu(12, 4);
  const std::vector<Extent> set{Chunks(0, 3), Chunks(4, 6)};
  gpu.LaunchUntilFetched(set, 1);
  gpu.Launch(set, 1);
  gpu.Launch({Chunks(11)}, {});
  const Plan& plan = gpu.Launch(set, 1);
  CHECK(TotalBytes(plan.now.evict) <= kChunkBytes);
  for (uint64_t i = 0; i < 3; ++i) CHECK(gpu.Resident(i));
}

TEST_CASE("of a graph whose hot part exceeds the capacity the most used extents stay resident") {
  Gpu gpu(12, 4);  // 8 to 11 are resident
  const std::vector<Extent> set{Chunks(0, 4), Chunks(4, 8)};
  for (int i = 0; i < 12; ++i) gpu.Launch(set, 2);
  for (uint64_t i = 0; i < 4; ++i) CHECK(gpu.Resident(i));
}

}  // namespace sluice::policy
