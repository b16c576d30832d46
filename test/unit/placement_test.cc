#include <catch2/catch_test_macros.hpp>

#include "hooklib/core/residency.h"
#include "test/unit/fake_card.h"

namespace sluice::core {

namespace {

constexpr uint64_t kTable = 12, kLayers = 13, kLayer = 4, kTotal = kTable + kLayers * kLayer, kCapacity = 40;
constexpr double kLink = 50;  // GB/s

// A decoder: 12 chunks of tables, of which little is used, and 52 of weights, in 40. Its weights are passed over once.
struct Decoder : FakeCard {
  Decoder() : FakeCard(kTotal, kCapacity, Prefetch::kPredict) {}

  void Launch(uint64_t id, const std::vector<Extent>& set, double rate) {
    const HostProbe probe = Queue(set, 1, id).probe;
    Finish();
    if (probe.id) residency.Measured(probe, 5000 + static_cast<uint64_t>(static_cast<double>(probe.host) / rate));
  }
  // `named`: bytes of each chunk of the table that the lookup names; `rate`: at which it gets through them in host
  // memory.
  void Step(uint64_t named, double rate, uint64_t lookup = 900) {
    std::vector<Extent> rows;
    for (uint64_t i = 0; i < kTable; ++i) rows.push_back({Chunks(i).base, named});
    Launch(lookup, rows, rate);
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      Launch(100, {Chunks(kTable + layer * kLayer, kLayer)}, kLink);
    }
  }
  uint64_t TableChunks() {
    uint64_t there = 0;
    for (uint64_t i = 0; i < kTable; ++i) there += Resident(i);
    return there;
  }
  uint64_t Moved() const { return residency.stats().bytes_in + residency.stats().bytes_out; }
};

}  // namespace

TEST_CASE("chunks of which launches name little make place for such as are used whole") {
  Decoder decoder;
  for (int i = 0; i < 3; ++i) decoder.Step(kChunkBytes, kLink);  // filled: whole
  REQUIRE(decoder.TableChunks() > 0);
  for (int i = 0; i < 40; ++i) decoder.Step(4096, 400);
  CHECK(decoder.TableChunks() == 0);
  CHECK(decoder.residency.resident_bytes() == kCapacity * kChunkBytes);
  const uint64_t moved = decoder.Moved();
  for (int i = 0; i < 200; ++i) decoder.Step(4096, 400);
  CHECK(decoder.Moved() == moved);
}

TEST_CASE("a lookup that names its table whole, and was seen to use little of it, does not keep it on the card") {
  Decoder decoder;
  for (int i = 0; i < 60; ++i) decoder.Step(kChunkBytes, 600);
  CHECK(decoder.TableChunks() == 0);
  CHECK(decoder.residency.resident_bytes() == kCapacity * kChunkBytes);
}

TEST_CASE("launches of a shape never met before use little of it where it lies, too") {
  Decoder decoder;
  for (int i = 0; i < 40; ++i) decoder.Step(4096, 400);
  REQUIRE(decoder.TableChunks() == 0);
  // As a cache of keys and values grows, so does the grid of what reads it.
  for (uint64_t i = 0; i < 40; ++i) decoder.Step(4096 + 512 * i, 400, 1000 + i);
  CHECK(decoder.TableChunks() == 0);
}

TEST_CASE("what is used whole keeps its place, whatever else there is") {
  Decoder decoder;
  for (int i = 0; i < 20; ++i) decoder.Step(kChunkBytes, kLink);
  const uint64_t table = decoder.TableChunks(), moved = decoder.Moved();
  CHECK(table > 0);
  for (int i = 0; i < 100; ++i) decoder.Step(kChunkBytes, kLink);
  CHECK(decoder.TableChunks() == table);
  CHECK(decoder.Moved() == moved);
}

TEST_CASE("what was put in host memory comes back to launches that re-read it, and stays then") {
  Decoder decoder;
  for (int i = 0; i < 60; ++i) decoder.Step(4096, 400);
  REQUIRE(decoder.TableChunks() == 0);
  for (int i = 0; i < 400; ++i) decoder.Step(kChunkBytes, 2);
  CHECK(decoder.TableChunks() == kTable);
  const uint64_t moved = decoder.Moved();
  for (int i = 0; i < 50; ++i) decoder.Step(kChunkBytes, 2);
  CHECK(decoder.Moved() == moved);
}

}  // namespace sluice::core
