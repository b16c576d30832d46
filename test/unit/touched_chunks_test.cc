// Residency with chunks that launches name and do not touch: the fake GPU faults on absent chunks that it touches.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "test/unit/fake_gpu.h"

namespace sluice::policy {
namespace {

using memory::Touch;

constexpr uint64_t kWeights = 16, kCache = 48;  // chunks; the cache lies behind the weights
constexpr uint64_t kCapacity = 32;
constexpr uint64_t kLayers = 4, kLayerChunks = kCache / kLayers;
constexpr uint64_t kGraph = 9, kMultiply = 10, kAttend = 11;

// Weights of which everything is touched, and a cache of which the first `used` chunks are.
struct Server : FakeGpu {
  uint64_t used = 4;
  uint64_t faults = 0;  // of the newest step

  explicit Server(uint64_t capacity = kCapacity, bool enabled = true)
      : FakeGpu(kWeights + kCache, capacity, Prefetch::kPredict) {
    residency.touched().set_enabled(enabled);
    Queue({Weights()});  // loaded by copies
    Queue({Cache()});
    Finish();
  }
  static Extent Weights() { return Chunks(0, kWeights); }
  static Extent Cache() { return Chunks(kWeights, kCache); }
  void Run(const std::vector<Extent>& named, uint64_t first, uint64_t count, uint64_t id,
           std::optional<size_t> hot_extents = {}) {
    residency.MarkTouchesOver();
    residency.ConcludeTouches({}, false);
    const Plan plan = Queue(named, 1, id, 0, hot_extents);
    std::vector<Va> pages;
    for (uint64_t i = first; i < first + count; ++i) {
      if (!Resident(i) && !At(i).mapped_remote()) pages.push_back(At(i).base);
    }
    Finish();
    faults += pages.size();
    residency.ConcludeTouches(pages, false);
    moved += TotalBytes(plan.now.fetch) + TotalBytes(plan.now.evict) + TotalBytes(plan.evict_after);
    remote = residency.stats().remote_bytes;
  }
  void Replay() {
    faults = moved = 0;
    Run({Weights(), Cache()}, 0, kWeights + used, kGraph, 0);
  }
  void Step() {
    faults = moved = 0;
    Run({Weights()}, 0, kWeights, kMultiply);
    Run({Cache()}, kWeights, used, kAttend);
  }
  // A cache for each layer, of which the first chunks are touched.
  void LayeredStep() {
    faults = moved = 0;
    Run({Weights()}, 0, kWeights, kMultiply);
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      const uint64_t first = kWeights + layer * kLayerChunks;
      Run({Chunks(first, kLayerChunks)}, first, layer_used, kAttend + layer);
    }
  }
  uint64_t moved = 0, remote = 0, layer_used = 1;
};

}  // namespace

TEST_CASE("touched chunks: a graph whose touched chunks fit is served as one that fits") {
  Server server;
  for (int i = 0; i < 12; ++i) server.Replay();
  CHECK(server.CountResident(0, kWeights + server.used) == kWeights + server.used);
  const uint64_t remote = server.remote;
  server.Replay();
  CHECK(server.faults == 0);
  CHECK(server.moved == 0);
  CHECK(server.remote == remote);
  CHECK(server.residency.resident_bytes() <= kCapacity * kChunkBytes);
}

TEST_CASE(
    "touched chunks: a graph that fits by lent memory alone is sampled, so that the lender gets back what is idle") {
  constexpr uint64_t kAll = kWeights + kCache;
  Server owner(kAll);
  Server borrower(kAll);
  borrower.residency.set_share(kCapacity * kChunkBytes);
  for (int i = 0; i < 40; ++i) {
    owner.Replay();
    borrower.Replay();
  }
  CHECK(owner.residency.touched().stats().samples == 0);
  CHECK(borrower.residency.touched().stats().untouched >= kAll - kCapacity);
  CHECK(borrower.CountResident(0, kWeights + borrower.used) == kWeights + borrower.used);
  // Pages that are used next must not bring its need beyond the share: containers would take turns for ever.
  CHECK(borrower.residency.CountUsed(1, 100).since_launch <= kCapacity * 7 / 8 * kChunkBytes);
  borrower.Replay();
  CHECK(borrower.faults == 0);
  CHECK(borrower.moved == 0);
}

TEST_CASE("touched chunks: an eviction of another stream that ended long ago holds no sample up") {
  Server server;
  // Absent ones are marked: their next eviction would end it.
  for (uint64_t i = 0; i < kWeights + kCache; ++i)
    server.residency.chunks().Find(Chunks(i).base)->SetEvictingElsewhere(true);
  for (int i = 0; i < 12; ++i) server.Replay();
  CHECK(server.residency.touched().stats().untouched > 0);
  CHECK(server.CountResident(0, kWeights + server.used) == kWeights + server.used);
  server.Replay();
  CHECK(server.moved == 0);
}

TEST_CASE("touched chunks: without records a graph is taken to touch all that it names") {
  Server server(kCapacity, false);
  for (int i = 0; i < 12; ++i) server.Replay();
  CHECK_FALSE(server.residency.touched().leaves_out_any());
  CHECK(server.residency.touched().stats().samples == 0);
}

TEST_CASE("touched chunks: launches one by one name no chunk that a graph was found not to touch") {
  Server server;
  for (int i = 0; i < 12; ++i) server.Replay();
  for (int i = 0; i < 4; ++i) server.Step();
  CHECK(server.faults == 0);
  CHECK(server.moved == 0);
  CHECK(server.CountResident(0, kWeights + server.used) == kWeights + server.used);
}

TEST_CASE("touched chunks: launches one by one try chunks once they are settled, until all touched ones are resident") {
  Server server;
  for (int i = 0; i < 8; ++i) server.LayeredStep();
  CHECK(server.residency.touched().stats().samples == 0);
  for (int i = 0; i < 400; ++i) server.LayeredStep();
  CHECK(server.residency.touched().stats().untouched > 0);
  CHECK(server.CountResident(0, kWeights) == kWeights);
  for (uint64_t layer = 0; layer < kLayers; ++layer) CHECK(server.Resident(kWeights + layer * kLayerChunks));
  const uint64_t remote = server.remote, samples = server.residency.touched().stats().samples;
  for (int i = 0; i < 100; ++i) {
    server.LayeredStep();
    CHECK(server.faults == 0);
    CHECK(server.moved == 0);
  }
  CHECK(server.remote == remote);
  CHECK(server.residency.touched().stats().samples == samples);
  CHECK(server.residency.resident_bytes() <= kCapacity * kChunkBytes);
}

TEST_CASE("touched chunks: launches one by one that touch all operands are tried ever more rarely") {
  Server server;
  server.layer_used = kLayerChunks;
  uint64_t faults = 0;
  for (int i = 0; i < 1000; ++i) server.LayeredStep(), faults += server.faults;
  CHECK(faults < 100);
  CHECK(server.residency.touched().stats().untouched == 0);
}

TEST_CASE("touched chunks: launches that are left to faults are not sampled") {
  for (const bool left_to_faults : {false, true}) {
    Server server;
    server.layer_used = kLayerChunks;
    // The others lack bytes, so that chunks are tried.
    const LaunchProbe faults{.id = kAttend, .host_bytes = kLayerChunks * kChunkBytes, .by_faults = true};
    for (int i = 0; left_to_faults && i < 4; ++i) server.residency.NoteMeasured(faults, 100'000);
    bool tried = false;
    for (int step = 0; step < 400; ++step) {
      server.LayeredStep();
      for (uint64_t i = 0; i < kLayerChunks; ++i) tried |= server.At(kWeights + i).touch != Touch::kUnknown;
    }
    CHECK(server.residency.touched().stats().samples > 0);
    CHECK(tried != left_to_faults);
  }
}

TEST_CASE("touched chunks: a chunk that is touched later faults once") {
  Server server;
  for (int i = 0; i < 12; ++i) server.Replay();
  uint64_t next = server.used;
  while (next < kCache && server.At(kWeights + next).touch != Touch::kUntouched) ++next;
  REQUIRE(next < kCapacity - kWeights);
  server.used = next + 1;
  server.Replay();
  CHECK(server.faults == 1);
  server.Replay();
  CHECK(server.faults == 0);
  CHECK(server.Resident(kWeights + next));
}

TEST_CASE("touched chunks: a fault brings the same place of the other layers' caches") {
  Server server;
  for (int step = 0; step < 400; ++step) server.LayeredStep();
  const auto is_untouched = [&](uint64_t layer) {
    return server.At(kWeights + layer * kLayerChunks + 1).touch == Touch::kUntouched;
  };
  REQUIRE(is_untouched(0));
  REQUIRE(is_untouched(kLayers - 1));
  server.layer_used = 2;
  server.LayeredStep();
  CHECK(server.faults == 1);  // of the first layer alone
  server.LayeredStep();
  CHECK(server.faults == 0);
}

TEST_CASE("touched chunks: a fault brings the chunks that faulted in turn with it before") {
  Server server;
  for (int i = 0; i < 12; ++i) server.Replay();
  std::vector<uint64_t> slot;
  for (uint64_t i = kWeights + server.used; i < kWeights + kCache && slot.size() < 12; i += 2) {
    if (server.At(i).touch == Touch::kUntouched) slot.push_back(i);
  }
  REQUIRE(slot.size() == 12);
  const auto use_slot = [&] {
    server.faults = 0;
    for (const uint64_t chunk : slot) server.Run({Server::Cache()}, chunk, 1, kAttend);
    return server.faults;
  };
  CHECK(use_slot() == slot.size());
  // Idle for long, chunks of the slot are tried again, and are untouched.
  const auto left_out = [&] {
    return std::count_if(slot.begin(), slot.end(), [&](uint64_t i) { return TouchSampler::IsLeftOut(server.At(i)); });
  };
  for (int i = 0; i < 1200; ++i) server.Replay();
  REQUIRE(left_out() >= 3);
  CHECK(use_slot() == 1);
  CHECK(left_out() == 0);
}

TEST_CASE("touched chunks: where all that is named is touched, nothing is left out") {
  Server server;
  server.used = kCache;
  for (int i = 0; i < 12; ++i) server.Replay();
  uint64_t left_out = 0;
  for (uint64_t i = 0; i < kWeights + kCache; ++i) left_out += TouchSampler::IsLeftOut(server.At(i));
  CHECK(left_out == 0);
}

TEST_CASE("touched chunks: nothing is tried while everything fits") {
  Server server(kWeights + kCache);
  for (int i = 0; i < 100; ++i) server.Step(), server.Replay();
  CHECK(server.residency.touched().stats().samples == 0);
}

TEST_CASE("unnamed faults: a faulted chunk is resident and held to the capacity, a discarded one is not taken for it") {
  for (const bool discarded : {false, true}) {
    Server server;
    memory::Chunk* const chunk = server.residency.chunks().Find(server.At(0).base);
    REQUIRE_FALSE(chunk->resident());
    REQUIRE(chunk->has_contents());
    if (discarded) {
      chunk->Discard();
      chunk->NoteContents();
    }
    const Va page = chunk->base + 4096;
    server.residency.ConcludeTouches({&page, 1}, false);
    CHECK(chunk->resident() == !discarded);
    CHECK(server.residency.watches_unnamed() == !discarded);
    server.Queue({Chunks(kWeights + kCache - 1)});
    server.Finish();
    CHECK(server.residency.resident_bytes() <= kCapacity * kChunkBytes);
  }
}

TEST_CASE("touched chunks: a copy brings an untouched chunk, which is touched then") {
  Server server;
  for (int i = 0; i < 12; ++i) server.Replay();
  uint64_t untouched = kWeights;
  while (untouched < kWeights + kCache && server.At(untouched).touch != Touch::kUntouched) ++untouched;
  REQUIRE(untouched < kWeights + kCache);
  const Plan& plan = server.Queue({Chunks(untouched)});
  CHECK(TotalBytes(plan.now.fetch) == kChunkBytes);
  server.Finish();
  CHECK(server.At(untouched).touch == Touch::kTouched);
  CHECK(server.Resident(untouched));
}

// A server's inputs lie in the buffer that its graph names.
TEST_CASE("touched chunks: a chunk that a copy uses in each iteration is not tried each time") {
  constexpr uint64_t kInputs = kWeights + kCache - 1;
  Server server;
  server.used = kCapacity - kWeights - 1;  // more than samples leave
  uint64_t moved = 0;
  for (int i = 0; i < 200; ++i) {
    const Plan& copy = server.Queue({Chunks(kInputs)}, 2);
    if (i >= 100) moved += TotalBytes(copy.now.fetch) + TotalBytes(copy.now.evict);
    server.Finish(2);
    server.Replay();
    if (i >= 100) moved += server.moved;
  }
  CHECK(moved == 0);
}

TEST_CASE("touched chunks: a graph whose touched chunks are resident is steady") {
  Server server;
  for (int i = 0; i < 200; ++i) server.Replay();
  const uint64_t last = server.At(0).last_use;
  server.Replay();
  CHECK(server.At(0).last_use == last);  // noted in the set
  server.residency.set_share(server.residency.resident_bytes());
  server.Replay();
  CHECK(server.At(0).last_use == server.residency.launches());  // samples are wanted
}

TEST_CASE("touched chunks: freed bytes are forgotten") {
  Server server;
  for (int i = 0; i < 12; ++i) server.Replay();
  REQUIRE(server.residency.touched().leaves_out_any());
  server.residency.RemoveLive(Server::Cache());
  CHECK_FALSE(server.residency.touched().leaves_out_any());
  server.residency.AddLive(Server::Cache());
  CHECK(server.At(kWeights + 20).touch == Touch::kUnknown);
}

}  // namespace sluice::policy
