// Remote access of streaming launches: which of their chunks are mapped remotely, and which are fetched.
#include <catch2/catch_test_macros.hpp>

#include "test/unit/launches.h"

namespace sluice::policy {

namespace {

// One training step: 30 chunks of weights that the layers read, 30 of state that only the optimizer streams over.
void Train(TimedGpu* gpu, double optimizer_rate) {
  for (uint64_t layer = 0; layer < 10; ++layer) gpu->Launch(100 + layer, {Chunks(layer * 3, 3)}, 2);
  for (uint64_t layer = 10; layer-- > 0;) gpu->Launch(200 + layer, {Chunks(layer * 3, 3)}, 2);
  for (uint64_t part = 0; part < 3; ++part) {
    gpu->Launch(300, {Chunks(30 + part * 10, 10), Chunks(part * 10, 10)}, optimizer_rate);
    gpu->Launch(301, {Chunks(30 + part * 10, 10), Chunks(part * 10, 10)}, optimizer_rate);
  }
}

}  // namespace

TEST_CASE("chunks that only streaming launches use settle in host memory, and nothing moves any more") {
  TimedGpu gpu(60, 40);
  for (int i = 0; i < 400; ++i) Train(&gpu, 42);
  const ResidencyStats before = gpu.residency.stats();
  for (int i = 0; i < 100; ++i) Train(&gpu, 42);
  const ResidencyStats& after = gpu.residency.stats();
  CHECK(after.bytes_in == before.bytes_in);
  CHECK(after.bytes_out == before.bytes_out);
  CHECK(after.remote_bytes > before.remote_bytes);
  CHECK(gpu.residency.resident_bytes() <= 40 * kChunkBytes);
}

// A training step whose 60 chunks of activations are allocated in the forward pass and freed in the backward pass.
// There a streaming kernel uses them (300, which also updates the 12 chunks of state), and then one that re-reads them.
void TrainOnActivations(TimedGpu* gpu) {
  const auto live = [](uint64_t layer) { return Chunks(12 + layer * 6, 6); };
  for (uint64_t layer = 0; layer < 10; ++layer) {
    gpu->residency.AddLive(live(layer));
    gpu->Launch(100 + layer, {live(layer)}, 2);
  }
  for (uint64_t part = 0; part < 2; ++part) gpu->Launch(300, {Chunks(part * 6, 6)}, 42);
  for (uint64_t layer = 10; layer-- > 0;) {
    gpu->Launch(300, {live(layer)}, 42);
    gpu->Launch(200 + layer, {live(layer)}, 2);
    gpu->residency.RemoveLive(live(layer));
  }
}

TEST_CASE("chunks that are soon required resident, or freed in the iteration, are not mapped remotely for one use") {
  TimedGpu gpu(72, 30);
  gpu.residency.RemoveLive(Chunks(12, 60));
  for (int i = 0; i < 200; ++i) TrainOnActivations(&gpu);
  CHECK(gpu.residency.stats().bytes_in > 0);
  CHECK(gpu.residency.stats().remote_bytes > 0);  // the state: launch 300 does stream
  CHECK(gpu.mapped_remote <= 24 * kChunkBytes);   // the state, and not each step's activations
  uint64_t mapped = 0;
  gpu.residency.chunks().ForAll([&](const Chunk& chunk) { mapped += chunk.mapped_remote(); });
  CHECK(mapped <= 12);
}

TEST_CASE("before an iteration is known only older chunks are probed remotely") {
  TimedGpu gpu(60, 40);
  gpu.residency.RemoveLive(Chunks(30, 30));
  gpu.Launch(99, {Chunks(0)}, 2);
  gpu.residency.AddLive(Chunks(30, 30));
  const auto state_mapped = [&] {
    uint64_t chunks = 0;
    gpu.residency.chunks().ForAll([&](const Chunk& c) { chunks += c.mapped_remote() && c.base >= Chunks(30).base; });
    return chunks;
  };
  Train(&gpu, 42);
  CHECK(state_mapped() == 0);
  for (int i = 0; i < 10; ++i) Train(&gpu, 42);
  CHECK(state_mapped() > 0);
}

TEST_CASE("chunks that launches begin to re-read are no longer mapped remotely") {
  TimedGpu gpu(60, 40);
  for (int i = 0; i < 100; ++i) Train(&gpu, 42);
  REQUIRE(gpu.mapped_remote > 0);
  const auto mapped = [&] {
    uint64_t chunks = 0;
    gpu.residency.chunks().ForAll([&](const Chunk& chunk) { chunks += chunk.mapped_remote() && !chunk.resident(); });
    return chunks;
  };
  REQUIRE(mapped() > 5);
  for (int i = 0; i < 400; ++i) Train(&gpu, 2);  // the optimizer re-reads from now on
  CHECK(mapped() == 0);
  CHECK(gpu.unmapped > 0);
}

TEST_CASE("the cost of probes is counted, not the time of launches that are timed again") {
  TimedGpu gpu(60, 40);
  for (int i = 0; i < 100; ++i) Train(&gpu, 42);
  const ProbeStats before = gpu.residency.probe_stats();
  CHECK(before.probes > before.slow_probes);
  CHECK(before.slow_probes > 0);  // the layers
  REQUIRE(gpu.residency.UsesRemoteAccess({.id = 300}));
  for (int i = 0; i < 25; ++i) Train(&gpu, 2);
  REQUIRE(!gpu.residency.UsesRemoteAccess({.id = 300}));  // found by timing it again; its next probe comes later
  CHECK(gpu.residency.probe_stats().slow_probes == before.slow_probes);
  CHECK(gpu.residency.probe_stats().lost_ns == before.lost_ns);
}

TEST_CASE("chunks that were used remotely once and fetched ever since are no longer mapped remotely") {
  TimedGpu gpu(60, 40);
  for (int i = 0; i < 100; ++i) Train(&gpu, 42);
  const auto mapped = [&] {
    uint64_t chunks = 0;
    gpu.residency.chunks().ForAll([&](const Chunk& chunk) { chunks += chunk.mapped_remote() && !chunk.resident(); });
    return chunks;
  };
  REQUIRE(mapped() > 5);
  for (int i = 0; i < 100; ++i) {
    for (uint64_t part = 0; part < 6; ++part) gpu.Launch(0, {Chunks(part * 10, 10)}, 42);  // copies
  }
  CHECK(mapped() == 0);
}

TEST_CASE("chunks are prefetched in place of freed ones for launches that were never probed remotely") {
  TimedGpu gpu(32, 16);
  gpu.residency.RemoveLive(Chunks(16, 16));
  const auto step = [&gpu] {
    for (uint64_t layer = 0; layer < 8; ++layer) {
      gpu.residency.AddLive(Chunks(16 + 2 * layer, 2));
      gpu.Launch(100 + layer, {Chunks(16 + 2 * layer, 2)}, 2);
    }
    gpu.residency.RemoveLive(Chunks(16, 16));
    // So often that a fetch pays (swapped_placement_test.cc).
    for (uint64_t layer = 0; layer < 32; ++layer) gpu.Launch(200 + layer / 4, {Chunks(layer / 4 * 2, 2)}, 2);
  };
  for (int i = 0; i < 40; ++i) step();
  const uint64_t before = gpu.late_bytes;
  for (int i = 0; i < 10; ++i) step();
  CHECK(gpu.residency.stats().remote_bytes == 0);
  CHECK(gpu.late_bytes - before <= 20 * kChunkBytes);
}

TEST_CASE("launches that are slow over the link are probed a few times and then always fetched for") {
  TimedGpu gpu(60, 40);
  for (int i = 0; i < 3000; ++i) Train(&gpu, 2);
  const uint64_t before = gpu.residency.stats().remote_bytes;
  CHECK(before > 0);
  for (int i = 0; i < 300; ++i) Train(&gpu, 2);
  CHECK(gpu.residency.stats().remote_bytes == before);
}

TEST_CASE("room that stays free is filled with host-resident chunks") {
  TimedGpu gpu(60, 40);
  for (int i = 0; i < 400; ++i) Train(&gpu, 42);
  CHECK(gpu.residency.resident_bytes() <= 40 * kChunkBytes);
  gpu.residency.set_capacity(200 * kChunkBytes);  // beyond the margin that is kept free
  for (int i = 0; i < 100; ++i) Train(&gpu, 42);
  CHECK(gpu.residency.resident_bytes() == 60 * kChunkBytes);
}

TEST_CASE("with remote access off everything is fetched") {
  TimedGpu gpu(60, 40);
  gpu.residency.set_remote_access(false);
  for (int i = 0; i < 50; ++i) Train(&gpu, 42);
  CHECK(gpu.residency.stats().remote_bytes == 0);
}

}  // namespace sluice::policy
