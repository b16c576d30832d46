#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>
#include <functional>
#include <numeric>

#include "hooklib/policy/fetch/link_bytes.h"
#include "hooklib/policy/residency.h"
#include "test/unit/fake_gpu.h"

namespace sluice::policy {

namespace {

constexpr uint64_t kTable = 12, kLayers = 13, kLayer = 4, kTotal = kTable + kLayers * kLayer, kCapacity = 40;
constexpr double kLink = 50;  // GB/s

// A decoder with room for 40 chunks: 12 of tables, of which little is used, and 52 of weights, passed over once a step.
struct Decoder : FakeGpu {
  Decoder() : FakeGpu(kTotal, kCapacity, Prefetch::kPredict) {}

  // `named`: bytes of each chunk of the table that the lookup names; `rate`: GB/s at which it uses them remotely.
  void PlanStep(uint64_t named, double rate, uint64_t lookup = 900) {
    std::vector<Extent> rows;
    for (uint64_t i = 0; i < kTable; ++i) rows.push_back({Chunks(i).base, named});
    RunTimed(lookup, rows, rate);
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      RunTimed(100, {Chunks(kTable + layer * kLayer, kLayer)}, kLink);
    }
  }
  uint64_t ResidentTableChunks() { return CountResident(0, kTable); }
  uint64_t Moved() const { return residency.stats().bytes_in + residency.stats().bytes_out; }
};

// Each launch uses four of the chunks, at the link's rate where they are host-resident.
void PassOver(FakeGpu* gpu, uint64_t begin, uint64_t chunks, uint64_t id) {
  for (uint64_t i = 0; i < chunks; i += 4) {
    gpu->RunTimed(id, {Chunks(begin + i, 4)}, kLink);
  }
}

}  // namespace

TEST_CASE("chunks of which launches use little are demoted for chunks that are used whole") {
  Decoder decoder;
  for (int i = 0; i < 3; ++i) decoder.PlanStep(kChunkBytes, kLink);  // filled, and used whole
  REQUIRE(decoder.ResidentTableChunks() > 0);
  for (int i = 0; i < 40; ++i) decoder.PlanStep(4096, 400);
  CHECK(decoder.ResidentTableChunks() == 0);
  CHECK(decoder.residency.resident_bytes() == kCapacity * kChunkBytes);
  const uint64_t moved = decoder.Moved();
  for (int i = 0; i < 200; ++i) decoder.PlanStep(4096, 400);
  CHECK(decoder.Moved() == moved);
}

TEST_CASE("a table that a lookup names whole but uses little does not stay resident") {
  Decoder decoder;
  for (int i = 0; i < 60; ++i) decoder.PlanStep(kChunkBytes, 600);
  CHECK(decoder.ResidentTableChunks() == 0);
  CHECK(decoder.residency.resident_bytes() == kCapacity * kChunkBytes);
}

TEST_CASE("launches of a new shape use a demoted table remotely, too") {
  Decoder decoder;
  for (int i = 0; i < 40; ++i) decoder.PlanStep(4096, 400);
  REQUIRE(decoder.ResidentTableChunks() == 0);
  // As a cache of keys and values grows, so does the grid of the launch that reads it.
  for (uint64_t i = 0; i < 40; ++i) decoder.PlanStep(4096 + 512 * i, 400, 1000 + i);
  CHECK(decoder.ResidentTableChunks() == 0);
}

TEST_CASE("demoted chunks are promoted when launches of ever new shapes use much of them") {
  Decoder decoder;
  for (int i = 0; i < 3; ++i) decoder.PlanStep(kChunkBytes, kLink);
  REQUIRE(decoder.ResidentTableChunks() >= 8);
  for (int i = 0; i < 40; ++i) decoder.PlanStep(4096, 400);
  REQUIRE(decoder.ResidentTableChunks() == 0);
  for (uint64_t i = 0; i < 20; ++i) {
    const uint64_t named = kChunkBytes * 3 / 4 + 512 * i;
    for (uint64_t chunk = 0; chunk < kTable; chunk += 2) {
      decoder.RunTimed(1000 + kTable * i + chunk, {{Chunks(chunk).base, named}, {Chunks(chunk + 1).base, named}}, 12);
    }
    decoder.PlanStep(4096, 400);
  }
  CHECK(decoder.ResidentTableChunks() >= kTable / 2);
}

TEST_CASE("chunks that are used whole stay resident") {
  Decoder decoder;
  for (int i = 0; i < 20; ++i) decoder.PlanStep(kChunkBytes, kLink);
  const uint64_t table = decoder.ResidentTableChunks(), moved = decoder.Moved();
  CHECK(table > 0);
  for (int i = 0; i < 100; ++i) decoder.PlanStep(kChunkBytes, kLink);
  CHECK(decoder.ResidentTableChunks() == table);
  CHECK(decoder.Moved() == moved);
}

TEST_CASE("demoted chunks are fetched for launches that re-read them, and stay resident") {
  Decoder decoder;
  for (int i = 0; i < 60; ++i) decoder.PlanStep(4096, 400);
  REQUIRE(decoder.ResidentTableChunks() == 0);
  for (int i = 0; i < 400; ++i) decoder.PlanStep(kChunkBytes, 2);
  CHECK(decoder.ResidentTableChunks() == kTable);
  const uint64_t moved = decoder.Moved();
  for (int i = 0; i < 50; ++i) decoder.PlanStep(kChunkBytes, 2);
  CHECK(decoder.Moved() == moved);
}

// Forty layers of two chunks, with room for half of them, used forwards or backwards; then the host may wait.
struct Layers : FakeGpu {
  static constexpr uint64_t kCount = 40;
  Layers() : FakeGpu(2 * kCount, kCount, Prefetch::kPredict) {}

  void PlanStep(bool backwards, bool waits, const std::function<void()>& after_each = [] {}) {
    for (uint64_t i = 0; i < kCount; ++i) {
      const uint64_t layer = backwards ? kCount - 1 - i : i;
      RunTimed(100 + layer % 4, {Chunks(2 * layer, 2)}, kLink);
      after_each();
    }
    if (waits) residency.NoteHostSync();
  }
  // The number of host-resident chunks in the half that a step uses first.
  uint64_t FirstInHost(bool backwards) {
    uint64_t chunks = 0;
    for (uint64_t i = 0; i < kCount; ++i) chunks += !Resident(backwards ? 2 * kCount - 1 - i : i);
    return chunks;
  }
  uint64_t Moved() const { return residency.stats().bytes_in + residency.stats().bytes_out; }
};

TEST_CASE("chunks used first after a host synchronization are host-resident, and those used last are resident") {
  Layers layers;
  for (int i = 0; i < 60; ++i) layers.PlanStep(false, true);
  CHECK(layers.FirstInHost(false) >= 28);
  CHECK(layers.residency.resident_bytes() == Layers::kCount * kChunkBytes);
  // In reverse order.
  for (int i = 0; i < 400; ++i) layers.PlanStep(true, true);
  CHECK(layers.FirstInHost(true) >= 28);
  const uint64_t moved = layers.Moved();
  for (int i = 0; i < 400; ++i) layers.PlanStep(true, true);
  CHECK(layers.Moved() == moved);
}

TEST_CASE("where the host does not wait once an iteration, nothing moves for the order of use") {
  Layers layers;
  for (int i = 0; i < 20; ++i) layers.PlanStep(false, false);
  const uint64_t moved = layers.Moved();
  uint64_t launches = 0;
  for (int i = 0; i < 200; ++i) {
    layers.PlanStep(true, false, [&] {
      if (++launches % 64 == 0) layers.residency.NoteHostSync();
    });
  }
  CHECK(layers.Moved() - moved <= 16 * kChunkBytes);
}

TEST_CASE("where the host never waits, nothing moves for the order of use") {
  Layers layers;
  for (int i = 0; i < 20; ++i) layers.PlanStep(false, false);
  const uint64_t moved = layers.Moved();
  for (int i = 0; i < 200; ++i) layers.PlanStep(true, false);
  CHECK(layers.Moved() - moved <= 16 * kChunkBytes);
}

// A table of 16 chunks that was resident first, beside 52 chunks of weights, with room for 44: no launch misses it.
struct TableFirst : FakeGpu {
  static constexpr uint64_t kRows = 16;
  TableFirst() : FakeGpu(kRows + kLayers * kLayer, kRows + 28, Prefetch::kPredict) {
    for (int i = 0; i < 12; ++i) PlanStep([this] { RunTimed(800, Twice(), kLink); }, [] {});
    for (int i = 0; i < 12; ++i) PlanStep([] {}, [this] { RunTimed(800, Twice(), kLink); });
  }
  void PlanStep(const std::function<void()>& after_each, const std::function<void()>& first) {
    first();
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      RunTimed(100, {Chunks(kRows + layer * kLayer, kLayer)}, kLink);
      after_each();
    }
  }
  // The whole table, and a large second operand, here a part of the table.
  static std::vector<Extent> Twice() { return {Chunks(0, kRows), Chunks(kRows - 4, 4)}; }
  uint64_t ResidentRows() { return CountResident(0, kRows); }
};

TEST_CASE("a table that was resident first but is used little is demoted for chunks that are used whole") {
  TableFirst gpu;
  REQUIRE(gpu.ResidentRows() == TableFirst::kRows);
  for (int i = 0; i < 60; ++i) gpu.PlanStep([] {}, [&] { gpu.RunTimed(900, {Chunks(0, TableFirst::kRows)}, 600); });
  CHECK(gpu.ResidentRows() == 0);
}

// The operands are known of the newest launch that was planned. A launch with a steady-state set may have smaller ones.
TEST_CASE("a steady-state launch gets no probe victims for another launch's operands") {
  uint64_t victims = 0;
  for (int repeats = 60; repeats < 100; ++repeats) {  // iterations begin with one launch or another
    TableFirst gpu;
    std::vector<Extent> small;
    for (uint64_t i = 8; i < 16; ++i) small.push_back(Chunks(i));
    for (int i = 0; i < 20; ++i) {
      gpu.PlanStep([] {},
                   [&] {
                     gpu.RunTimed(900, {Chunks(0, TableFirst::kRows)}, 600);
                     for (int n = 0; n < repeats; ++n) gpu.RunTimed(950, small, 600);
                   });
      for (uint64_t at = 8; at < 16; ++at) victims += gpu.At(at).probe_victim;
    }
  }
  CHECK(victims == 0);
}

TEST_CASE("no victims are taken to probe a launch without a dominant operand") {
  TableFirst gpu;
  for (int i = 0; i < 60; ++i) gpu.PlanStep([] {}, [&] { gpu.RunTimed(900, TableFirst::Twice(), 600); });
  CHECK(gpu.ResidentRows() == TableFirst::kRows);
}

TEST_CASE("a probe uses a dominant table remotely as a whole, and a few chunks of other sets") {
  for (const bool alone : {true, false}) {
    // 20 chunks of other launches fill the capacity. The table, live as long, was never resident.
    FakeGpu gpu(16 + 20, 20, Prefetch::kPredict);
    for (int i = 0; i < 8; ++i) {
      gpu.Queue({Chunks(0, 16)}, 1, 700);
      gpu.Queue({Chunks(16, 20)}, 1, 710);
      gpu.Finish();
    }
    std::vector<Extent> set = {Chunks(0, 16)};
    if (!alone) set.push_back(Chunks(12, 4));
    const LaunchProbe probe = gpu.Queue(set, 1, 900).probe;
    CHECK(probe.id == 900);
    CHECK(probe.host_bytes == (alone ? 16 : 4) * kChunkBytes);
    // Once a launch has re-read its probe's chunks, probes of other launches' tables are small, too.
    gpu.Finish();
    gpu.residency.NoteMeasured(probe, 50'000'000);
    gpu.Queue({Chunks(16, 20)}, 1, 710);
    gpu.Finish();
    const LaunchProbe next = gpu.Queue({Chunks(0, 16)}, 1, 910).probe;
    CHECK(next.id == 910);
    CHECK(next.host_bytes == 4 * kChunkBytes);
  }
}

TEST_CASE("chunks passed over once an iteration are demoted for chunks passed over three times") {
  constexpr uint64_t kEach = 40;
  FakeGpu gpu(2 * kEach, kEach + 4, Prefetch::kPredict);
  const auto pass = [&](uint64_t begin, uint64_t id) { PassOver(&gpu, begin, kEach, id); };
  const auto iteration = [&](uint64_t times) {
    pass(0, 200);
    for (uint64_t i = 0; i < times; ++i) pass(kEach, 300 + i);
  };
  const auto resident = [&](uint64_t begin) { return gpu.CountResident(begin, kEach); };
  for (int i = 0; i < 20; ++i) pass(0, 200);
  REQUIRE(resident(0) == kEach);
  for (int i = 0; i < 100; ++i) iteration(3);
  CHECK(resident(0) <= 4);
  CHECK(resident(kEach) == kEach);
  const uint64_t moved = gpu.residency.stats().bytes_in;
  for (int i = 0; i < 100; ++i) iteration(3);
  CHECK(gpu.residency.stats().bytes_in == moved);
}

TEST_CASE("chunks passed over twice an iteration are demoted for chunks passed over three times, in two exchanges") {
  constexpr uint64_t kEach = 120;
  FakeGpu gpu(2 * kEach, kEach + 4, Prefetch::kPredict);
  const auto pass = [&](uint64_t begin, uint64_t id) { PassOver(&gpu, begin, kEach, id); };
  // The sizes of the exchanges, in chunks.
  const auto exchanges = [&](uint64_t begin, uint64_t other) {
    std::vector<uint64_t> exchanged;
    uint64_t last_iteration = 0;
    for (int i = 0; i < 150; ++i) {
      for (uint64_t id = 0; id < 3; ++id) pass(begin, 200 + id);
      for (uint64_t id = 0; id < 2; ++id) pass(other, 200 + id);
      const PlacementStats& placement = gpu.residency.placement_stats();
      if (placement.demoted_bytes && placement.iteration != last_iteration)
        exchanged.push_back(placement.demoted_bytes / kChunkBytes);
      last_iteration = placement.iteration;
    }
    for (uint64_t i = begin; i < begin + kEach; ++i) CHECK(gpu.Resident(i));
    return exchanged;
  };
  exchanges(0, kEach);
  const std::vector<uint64_t> exchanged = exchanges(kEach, 0);
  CHECK(exchanged.size() <= 2);
  CHECK(std::accumulate(exchanged.begin(), exchanged.end(), uint64_t{0}) <= kEach + 4);
}

TEST_CASE("chunks that a pass over the link touches half make room for chunks that it touches whole") {
  constexpr uint64_t kLayersOf = 10, kEach = 4, kWeights = kLayersOf * kEach, kAll = 2 * kWeights;
  const bool waits = GENERATE(false, true);
  FakeGpu gpu(kAll, kAll - 5 * kEach, Prefetch::kPredict);
  const auto step = [&](bool weights) {
    if (waits) gpu.residency.NoteHostSync();
    for (uint64_t layer = 0; layer < kLayersOf; ++layer) {
      if (weights) gpu.RunTimed(200, {Chunks(layer * kEach, kEach)}, kLink);
      gpu.RunTimed(300, {Chunks(kWeights + layer * kEach, kEach)}, 2 * kLink);
    }
  };
  for (int i = 0; i < 5; ++i) step(false);
  REQUIRE(gpu.CountResident(kWeights, kWeights) == kWeights);
  for (int i = 0; i < 200; ++i) step(true);
  CHECK(gpu.CountResident(0, kWeights) == kWeights);
  const uint64_t moved = gpu.residency.stats().bytes_in;
  for (int i = 0; i < 200; ++i) step(true);
  CHECK(gpu.residency.stats().bytes_in == moved);
  // Where the host waits once a step, it queues the launches on resident chunks while the first ones use the link.
  if (waits) CHECK(gpu.CountResident(kWeights + kWeights / 2, kWeights / 2) + kEach >= kWeights / 2);
}

TEST_CASE("resident chunks that no launch uses any more make room for those that are used remotely") {
  FakeGpu gpu(80, 40, Prefetch::kPredict);
  for (int i = 0; i < 20; ++i) PassOver(&gpu, 0, 40, 200);
  REQUIRE(gpu.CountResident(0, 40) == 40);
  for (int i = 0; i < 60; ++i) PassOver(&gpu, 40, 20, 300), PassOver(&gpu, 20, 20, 200);
  CHECK(gpu.CountResident(20, 40) == 40);
  const uint64_t moved = gpu.residency.stats().bytes_in;
  for (int i = 0; i < 60; ++i) PassOver(&gpu, 40, 20, 300), PassOver(&gpu, 20, 20, 200);
  CHECK(gpu.residency.stats().bytes_in == moved);
}

TEST_CASE("notes of the iteration before may come late, and older ones do not count") {
  Chunk chunk{};
  CountLinkBytes(&chunk, 5, 3);
  CountLinkBytes(&chunk, 7, 4);
  CountLinkBytes(&chunk, 2, 3);
  CountLinkBytes(&chunk, 1, 2);
  CHECK(chunk.link_bytes == 7);
  CHECK(chunk.previous_link_bytes == 7);
  CountLinkBytes(&chunk, UINT32_MAX, 4);
  CHECK(chunk.link_bytes == UINT32_MAX);
}

TEST_CASE("each iteration counts a chunk's uses over whole periods, wherever it begins, steady or not") {
  constexpr uint64_t kLaunches = 18;
  for (const uint64_t capacity : {kLaunches, kLaunches - 2}) {
    FakeGpu gpu(kLaunches, capacity, Prefetch::kPredict);
    uint64_t iterations = 0;
    std::vector<uint64_t> iteration(kLaunches);
    for (uint64_t i = 0; i < 300 * kLaunches; ++i) {
      gpu.RunTimed(100 + i % kLaunches, {Chunks(i % kLaunches)}, kLink);
      gpu.residency.CountUsed(0, 1);  // settles the notes of steady launches
      const Chunk& chunk = gpu.At(i % kLaunches);
      if (std::exchange(iteration[i % kLaunches], chunk.link_iteration) == chunk.link_iteration || i < 100 * kLaunches)
        continue;
      ++iterations;
      CHECK(chunk.previous_link_bytes == kChunkBytes);
    }
    CHECK(iterations > 100);
  }
}

TEST_CASE("one iteration without movement settles the placement") {
  Decoder decoder;
  uint32_t before = 0, at_once = 0;
  for (uint64_t i = 0, last_iteration = 0; i < 40; ++i) {
    decoder.PlanStep(kChunkBytes, kLink);
    const PlacementStats& placement = decoder.residency.placement_stats();
    if (placement.iteration == last_iteration) continue;
    at_once += before == 0 && placement.moved_bytes == 0 && placement.still_iterations >= 2;
    before = placement.still_iterations;
    last_iteration = placement.iteration;
  }
  CHECK(at_once > 0);
}

TEST_CASE("exchanges do not count as movement, so that the next exchange may follow at once") {
  Decoder decoder;
  for (int i = 0; i < 3; ++i) decoder.PlanStep(kChunkBytes, kLink);
  uint64_t exchanged = 0;
  for (int i = 0; i < 40 && !exchanged; ++i) {
    decoder.PlanStep(4096, 400);
    if (decoder.residency.placement_stats().demoted_bytes) exchanged = decoder.residency.placement_stats().iteration;
  }
  REQUIRE(exchanged);
  while (decoder.residency.placement_stats().iteration == exchanged) decoder.PlanStep(4096, 400);
  CHECK(decoder.residency.placement_stats().moved_bytes > uint64_t{16} << 20);
  CHECK(decoder.residency.placement_stats().still_iterations > 2);
}

}  // namespace sluice::policy
