// Prefetch: far, for launches beyond the next ones, and none of memory that went with its context.
#include <catch2/catch_test_macros.hpp>
#include <cstdint>
#include <optional>

#include "test/unit/fake_gpu.h"

namespace sluice::policy {

namespace {

// A small training step. 300 launches allocate a chunk each (300 to 599), and 300 use them regrows_after, beside 300
// long-lived chunks (0 to 299), of which 200 have no room then. The allocated chunks are freed and a quiet part
// follows. Then the long-lived chunks are used in order.
struct Training : FakeGpu {
  static constexpr uint64_t kLongLived = 300, kAllocated = 300, kQuiet = 150, kQuietChunk = kLongLived + kAllocated,
                            kCapacity = 400;
  std::optional<uint64_t>
      regrows_after;         // after so many launches of the quiet part as much is allocated regrows_after, at once
  bool names_freed = false;  // launches of the quiet part use the freed chunks

  Training() : FakeGpu(kQuietChunk + 1, kCapacity, Prefetch::kPredict) {
    residency.set_remote_access(false);
    residency.set_in_order(true);
    residency.set_max_prefetch_bytes(4 * kChunkBytes);
    residency.RemoveLive(Chunks(kLongLived, kAllocated), All());
  }
  static Extent All() { return Chunks(0, kQuietChunk + 1); }
  void Launch(Extent set, uint64_t id) {
    Queue({set}, 1, id);
    Finish();
  }
  void Allocate(uint64_t first, uint64_t count) { residency.AddLive(Chunks(first, count)); }
  void Free(uint64_t first, uint64_t count) { residency.RemoveLive(Chunks(first, count), All()); }
  uint64_t LongLivedResident() { return CountResident(0, kLongLived); }
  void Forward() {
    for (uint64_t i = 0; i < kAllocated; ++i) {
      Allocate(kLongLived + i, 1);
      Launch(Chunks(kLongLived + i), 1000 + i);
    }
    for (uint64_t i = 0; i < kAllocated; ++i) Launch(Chunks(kQuietChunk - 1 - i), 1500 + i);
    Free(kLongLived, kAllocated);
  }
  void Quiet(uint64_t launches = kQuiet) {
    for (uint64_t i = 0; i < launches; ++i) {
      if (regrows_after && i == *regrows_after) Allocate(kLongLived, kAllocated);
      Launch(Chunks(names_freed ? kLongLived + i : kQuietChunk), 2000 + i);
      if (regrows_after && i == *regrows_after) Free(kLongLived, kAllocated);
    }
  }
  void Backward() {
    for (uint64_t i = 0; i < kLongLived; ++i) Launch(Chunks(i), 3000 + i);
  }
};

}  // namespace

TEST_CASE("a far prefetch takes the place of freed chunks, and a part of that room freed_resident free") {
  Training step;
  for (int i = 0; i < 4; ++i) {
    step.Forward();
    step.Quiet();
    step.Backward();
  }
  step.Forward();
  const uint64_t before = step.LongLivedResident(), out = step.residency.stats().bytes_out;
  REQUIRE(before < 150);
  step.Quiet();
  // Of the capacity 128 chunks stay free for new allocations.
  INFO(before << " resident before, " << step.LongLivedResident() << " after");
  CHECK(step.LongLivedResident() > 200);  // with the near prefetch alone it would be 107
  CHECK(step.LongLivedResident() <= Training::kCapacity - 128);
  CHECK(step.residency.stats().bytes_out == out);
}

TEST_CASE("there is no far prefetch where the live bytes grow before the use") {
  Training step;
  step.regrows_after = 140;  // of 150
  for (int i = 0; i < 4; ++i) {
    step.Forward();
    step.Quiet();
    step.Backward();
  }
  step.Forward();
  const uint64_t before = step.LongLivedResident(), out = step.residency.stats().bytes_out;
  step.Quiet(140);
  INFO(before << " resident before, " << step.LongLivedResident() << " after");
  CHECK(step.LongLivedResident() <= before + 8);
  CHECK(step.residency.stats().bytes_out == out);
}

TEST_CASE("chunks are evicted before the live bytes grow where evictions are fast") {
  for (const bool slow : {true, false}) {
    INFO((slow ? "slow" : "fast"));
    Training step;
    step.residency.link().set_slow_write_back(slow);
    for (int i = 0; i < 4; ++i) {
      step.Forward();
      step.Quiet();
      step.Backward();
    }
    step.Forward();
    step.Quiet();
    const uint64_t out = step.residency.stats().bytes_out;
    step.Backward();  // its sets have room, and soon 300 chunks are allocated
    const uint64_t evicted = (step.residency.stats().bytes_out - out) / kChunkBytes;
    CHECK((evicted > 50) == !slow);
    CHECK(evicted < 250);
  }
}

TEST_CASE("a far prefetch does not displace chunks that are used before it") {
  Training step;
  step.names_freed = true;
  for (int i = 0; i < 4; ++i) {
    step.Forward();
    step.Quiet();
    step.Backward();
  }
  step.Forward();
  const auto freed_resident = [&step] {
    return step.CountResident(Training::kLongLived + 100, Training::kQuiet - 100);
  };
  const uint64_t before = step.LongLivedResident(), named = freed_resident();
  step.Quiet(100);
  CHECK(step.LongLivedResident() > before + 50);
  CHECK(freed_resident() == named);
}

TEST_CASE("chunks of an arena that went with its context are not expected any more") {
  // Blocks that are live when their context ends are not freed before. Another stream goes on as predicted.
  FakeGpu gpu(12, 8, Prefetch::kPredict);
  const Extent other = Chunks(100, 4);
  gpu.residency.AddArena(other, false);
  gpu.residency.AddLive(other);
  const auto step = [&](bool has_other) {
    uint64_t fetched = 0;
    for (uint64_t k = 0; k < 16; ++k) {
      const bool is_other = k % 4 == 3;
      if (is_other && !has_other) continue;
      const Plan& plan = gpu.Queue({is_other ? Chunks(100 + k / 4) : Chunks(k % 12)}, 1, k + 1);
      fetched += BytesWithin(Fetched(plan), other);
      gpu.Finish();
    }
    return fetched;
  };
  for (int i = 0; i < 8; ++i) step(true);
  CHECK(step(true) > 0);
  gpu.residency.RemoveArena(other);
  CHECK(step(false) == 0);
  CHECK(step(false) == 0);
  CHECK(gpu.residency.resident_bytes() <= 8 * kChunkBytes);
}

}  // namespace sluice::policy
