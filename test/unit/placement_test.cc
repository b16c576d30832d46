#include <catch2/catch_test_macros.hpp>
#include <functional>

#include "hooklib/policy/residency.h"
#include "test/unit/fake_card.h"

namespace sluice::policy {

namespace {

constexpr uint64_t kTable = 12, kLayers = 13, kLayer = 4, kTotal = kTable + kLayers * kLayer, kCapacity = 40;
constexpr double kLink = 50;  // GB/s

// A decoder: 12 chunks of tables, of which little is used, and 52 of weights, in 40. Its weights are passed over once.
struct Decoder : FakeCard {
  Decoder() : FakeCard(kTotal, kCapacity, Prefetch::kPredict) {}

  void Launch(uint64_t id, const std::vector<Extent>& set, double rate) {
    const LaunchProbe probe = Queue(set, 1, id).probe;
    Finish();
    if (probe.id)
      residency.NoteMeasured(probe, 5000 + static_cast<uint64_t>(static_cast<double>(probe.host_bytes) / rate));
  }
  // `named`: bytes of each chunk of the table that the lookup names; `rate`: at which it gets through them in host
  // memory.
  void PlanStep(uint64_t named, double rate, uint64_t lookup = 900) {
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

// Each launch uses four of the chunks, at the link's rate where they lie in host memory.
void PassOver(FakeCard* card, uint64_t begin, uint64_t chunks, uint64_t id) {
  for (uint64_t i = 0; i < chunks; i += 4) {
    const LaunchProbe probe = card->Queue({Chunks(begin + i, 4)}, 1, id).probe;
    card->Finish();
    if (probe.id)
      card->residency.NoteMeasured(probe, 5000 + static_cast<uint64_t>(static_cast<double>(probe.host_bytes) / kLink));
  }
}

}  // namespace

TEST_CASE("chunks of which launches name little make place for such as are used whole") {
  Decoder decoder;
  for (int i = 0; i < 3; ++i) decoder.PlanStep(kChunkBytes, kLink);  // filled: whole
  REQUIRE(decoder.TableChunks() > 0);
  for (int i = 0; i < 40; ++i) decoder.PlanStep(4096, 400);
  CHECK(decoder.TableChunks() == 0);
  CHECK(decoder.residency.resident_bytes() == kCapacity * kChunkBytes);
  const uint64_t moved = decoder.Moved();
  for (int i = 0; i < 200; ++i) decoder.PlanStep(4096, 400);
  CHECK(decoder.Moved() == moved);
}

TEST_CASE("a lookup that names its table whole, and was seen to use little of it, does not keep it on the card") {
  Decoder decoder;
  for (int i = 0; i < 60; ++i) decoder.PlanStep(kChunkBytes, 600);
  CHECK(decoder.TableChunks() == 0);
  CHECK(decoder.residency.resident_bytes() == kCapacity * kChunkBytes);
}

TEST_CASE("launches of a shape never met before use little of it where it lies, too") {
  Decoder decoder;
  for (int i = 0; i < 40; ++i) decoder.PlanStep(4096, 400);
  REQUIRE(decoder.TableChunks() == 0);
  // As a cache of keys and values grows, so does the grid of what reads it.
  for (uint64_t i = 0; i < 40; ++i) decoder.PlanStep(4096 + 512 * i, 400, 1000 + i);
  CHECK(decoder.TableChunks() == 0);
}

TEST_CASE("what made place returns to the card when launches of ever new shapes come to use much of it") {
  Decoder decoder;
  for (int i = 0; i < 3; ++i) decoder.PlanStep(kChunkBytes, kLink);
  const uint64_t before = decoder.TableChunks();
  REQUIRE(before >= 8);
  for (int i = 0; i < 40; ++i) decoder.PlanStep(4096, 400);
  REQUIRE(decoder.TableChunks() == 0);
  for (uint64_t i = 0; i < 20; ++i) {
    const uint64_t named = kChunkBytes / 4 + 512 * i;
    for (uint64_t chunk = 0; chunk < kTable; chunk += 2) {
      decoder.Launch(1000 + kTable * i + chunk, {{Chunks(chunk).base, named}, {Chunks(chunk + 1).base, named}}, 12);
    }
    decoder.PlanStep(4096, 400);
  }
  CHECK(decoder.TableChunks() >= before);
}

TEST_CASE("what is used whole keeps its place, whatever else there is") {
  Decoder decoder;
  for (int i = 0; i < 20; ++i) decoder.PlanStep(kChunkBytes, kLink);
  const uint64_t table = decoder.TableChunks(), moved = decoder.Moved();
  CHECK(table > 0);
  for (int i = 0; i < 100; ++i) decoder.PlanStep(kChunkBytes, kLink);
  CHECK(decoder.TableChunks() == table);
  CHECK(decoder.Moved() == moved);
}

TEST_CASE("what was put in host memory comes back to launches that re-read it, and stays then") {
  Decoder decoder;
  for (int i = 0; i < 60; ++i) decoder.PlanStep(4096, 400);
  REQUIRE(decoder.TableChunks() == 0);
  for (int i = 0; i < 400; ++i) decoder.PlanStep(kChunkBytes, 2);
  CHECK(decoder.TableChunks() == kTable);
  const uint64_t moved = decoder.Moved();
  for (int i = 0; i < 50; ++i) decoder.PlanStep(kChunkBytes, 2);
  CHECK(decoder.Moved() == moved);
}

// Forty layers of two chunks in a card that holds half of them, of which some are asked for in `order`; then the host
// waits.
struct Layers : FakeCard {
  static constexpr uint64_t kCount = 40;
  Layers() : FakeCard(2 * kCount, kCount, Prefetch::kPredict) {}

  void PlanStep(bool backwards, bool waits, const std::function<void()>& after_each = [] {}) {
    for (uint64_t i = 0; i < kCount; ++i) {
      const uint64_t layer = backwards ? kCount - 1 - i : i;
      const LaunchProbe probe = Queue({Chunks(2 * layer, 2)}, 1, 100 + layer % 4).probe;
      Finish();
      if (probe.id)
        residency.NoteMeasured(probe, 5000 + static_cast<uint64_t>(static_cast<double>(probe.host_bytes) / kLink));
      after_each();
    }
    if (waits) residency.NoteHostSync();
  }
  // Of the half that a step uses first, how many chunks lie in host memory.
  uint64_t FirstInHost(bool backwards) {
    uint64_t chunks = 0;
    for (uint64_t i = 0; i < kCount; ++i) chunks += !Resident(backwards ? 2 * kCount - 1 - i : i);
    return chunks;
  }
  uint64_t Moved() const { return residency.stats().bytes_in + residency.stats().bytes_out; }
};

TEST_CASE("what is used first after the host has waited lies in host memory, and what is used last on the card") {
  Layers layers;
  for (int i = 0; i < 60; ++i) layers.PlanStep(false, true);
  CHECK(layers.FirstInHost(false) >= 28);
  CHECK(layers.residency.resident_bytes() == Layers::kCount * kChunkBytes);
  // The other way round.
  for (int i = 0; i < 400; ++i) layers.PlanStep(true, true);
  CHECK(layers.FirstInHost(true) >= 28);
  const uint64_t moved = layers.Moved();
  for (int i = 0; i < 400; ++i) layers.PlanStep(true, true);
  CHECK(layers.Moved() == moved);
}

TEST_CASE("where the host waits, but not once a round, nothing moves for the order in which it is used") {
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

TEST_CASE("where the host never waits, nothing moves for the order in which it is used") {
  Layers layers;
  for (int i = 0; i < 20; ++i) layers.PlanStep(false, false);
  const uint64_t moved = layers.Moved();
  for (int i = 0; i < 200; ++i) layers.PlanStep(true, false);
  CHECK(layers.Moved() - moved <= 16 * kChunkBytes);
}

// A table of 16 chunks that came first, beside 52 of weights in 44: nothing ever misses it.
struct TableFirst : FakeCard {
  static constexpr uint64_t kRows = 16;
  TableFirst() : FakeCard(kRows + kLayers * kLayer, kRows + 28, Prefetch::kPredict) {
    for (int i = 0; i < 12; ++i) PlanStep([this] { Launch(800, Twice(), kLink); }, [] {});
    for (int i = 0; i < 12; ++i) PlanStep([] {}, [this] { Launch(800, Twice(), kLink); });
  }
  void Launch(uint64_t id, const std::vector<Extent>& set, double rate) {
    const LaunchProbe probe = Queue(set, 1, id).probe;
    Finish();
    if (probe.id)
      residency.NoteMeasured(probe, 5000 + static_cast<uint64_t>(static_cast<double>(probe.host_bytes) / rate));
  }
  void PlanStep(const std::function<void()>& after_each, const std::function<void()>& first) {
    first();
    for (uint64_t layer = 0; layer < kLayers; ++layer) {
      Launch(100, {Chunks(kRows + layer * kLayer, kLayer)}, kLink);
      after_each();
    }
  }
  // All of it, and beside it much, which is the same here.
  static std::vector<Extent> Twice() { return {Chunks(0, kRows), Chunks(kRows - 4, 4)}; }
  uint64_t Rows() {
    uint64_t there = 0;
    for (uint64_t i = 0; i < kRows; ++i) there += Resident(i);
    return there;
  }
};

TEST_CASE("a table that was on the card first, and of which a lookup uses little, leaves it for what is used whole") {
  TableFirst card;
  REQUIRE(card.Rows() == TableFirst::kRows);
  for (int i = 0; i < 60; ++i) card.PlanStep([] {}, [&] { card.Launch(900, {Chunks(0, TableFirst::kRows)}, 600); });
  CHECK(card.Rows() == 0);
}

// Which of a launch's operands is large is known of the last one that was looked at; one that stands may be smaller.
TEST_CASE("a launch that stands is not asked for what another one names") {
  uint64_t asked = 0;
  for (int often = 60; often < 100; ++often) {  // windows begin with one launch or another
    TableFirst card;
    std::vector<Extent> small;
    for (uint64_t i = 8; i < 16; ++i) small.push_back(Chunks(i));
    for (int i = 0; i < 20; ++i) {
      card.PlanStep([] {},
                    [&] {
                      card.Launch(900, {Chunks(0, TableFirst::kRows)}, 600);
                      for (int n = 0; n < often; ++n) card.Launch(950, small, 600);
                    });
      for (uint64_t at = 8; at < 16; ++at) asked += card.At(at).probe_victim;
    }
  }
  CHECK(asked == 0);
}

TEST_CASE("of what a launch names beside as much else nothing leaves to find out whether it uses little of it") {
  TableFirst card;
  for (int i = 0; i < 60; ++i) card.PlanStep([] {}, [&] { card.Launch(900, TableFirst::Twice(), 600); });
  CHECK(card.Rows() == TableFirst::kRows);
}

TEST_CASE("of a table beside which a launch names little the trial leaves all in host memory, of others a few chunks") {
  for (const bool alone : {true, false}) {
    // 20 chunks of others' fill the card; the table, alive as long, was never there.
    FakeCard card(16 + 20, 20, Prefetch::kPredict);
    for (int i = 0; i < 8; ++i) {
      card.Queue({Chunks(0, 16)}, 1, 700);
      card.Queue({Chunks(16, 20)}, 1, 710);
      card.Finish();
    }
    std::vector<Extent> set = {Chunks(0, 16)};
    if (!alone) set.push_back(Chunks(12, 4));
    const LaunchProbe probe = card.Queue(set, 1, 900).probe;
    CHECK(probe.id == 900);
    CHECK(probe.host_bytes == (alone ? 16 : 4) * kChunkBytes);
    // Once a launch has re-read what it was tried with, of others' tables little is tried, too.
    card.Finish();
    card.residency.NoteMeasured(probe, 50'000'000);
    card.Queue({Chunks(16, 20)}, 1, 710);
    card.Finish();
    const LaunchProbe next = card.Queue({Chunks(0, 16)}, 1, 910).probe;
    CHECK(next.id == 910);
    CHECK(next.host_bytes == 4 * kChunkBytes);
  }
}

TEST_CASE("what is passed over once in each round makes place for what is passed over three times") {
  constexpr uint64_t kEach = 40;
  FakeCard card(2 * kEach, kEach + 4, Prefetch::kPredict);
  const auto pass = [&](uint64_t begin, uint64_t id) { PassOver(&card, begin, kEach, id); };
  const auto round = [&](uint64_t times) {
    pass(0, 200);
    for (uint64_t i = 0; i < times; ++i) pass(kEach, 300 + i);
  };
  const auto there = [&](uint64_t begin) {
    uint64_t chunks = 0;
    for (uint64_t i = begin; i < begin + kEach; ++i) chunks += card.Resident(i);
    return chunks;
  };
  for (int i = 0; i < 20; ++i) pass(0, 200);
  REQUIRE(there(0) == kEach);
  for (int i = 0; i < 100; ++i) round(3);
  CHECK(there(0) <= 4);
  CHECK(there(kEach) == kEach);
  const uint64_t moved = card.residency.stats().bytes_in;
  for (int i = 0; i < 100; ++i) round(3);
  CHECK(card.residency.stats().bytes_in == moved);
}

TEST_CASE(
    "what is passed over twice in each round makes place for what is passed over three times, all of it at once") {
  constexpr uint64_t kEach = 120;
  FakeCard card(2 * kEach, kEach + 4, Prefetch::kPredict);
  const auto pass = [&](uint64_t begin, uint64_t id) { PassOver(&card, begin, kEach, id); };
  // In how many pieces places are changed.
  const auto changes = [&](uint64_t begin, uint64_t other) {
    std::vector<uint64_t> changed;
    uint64_t window = 0;
    for (int i = 0; i < 150; ++i) {
      for (uint64_t id = 0; id < 3; ++id) pass(begin, 200 + id);
      for (uint64_t id = 0; id < 2; ++id) pass(other, 200 + id);
      const PlacementStats& places = card.residency.placement_stats();
      if (places.demoted_bytes && places.iteration != window) changed.push_back(places.demoted_bytes / kChunkBytes);
      window = places.iteration;
    }
    for (uint64_t i = begin; i < begin + kEach; ++i) CHECK(card.Resident(i));
    return changed;
  };
  changes(0, kEach);
  CHECK(changes(kEach, 0) == std::vector<uint64_t>{kEach - 4});
}

TEST_CASE("one round in which nothing moved says that all has come to rest") {
  Decoder decoder;
  uint32_t before = 0, at_once = 0;
  for (uint64_t i = 0, window = 0; i < 40; ++i) {
    decoder.PlanStep(kChunkBytes, kLink);
    const PlacementStats& places = decoder.residency.placement_stats();
    if (places.iteration == window) continue;
    at_once += before == 0 && places.moved_bytes == 0 && places.still_iterations >= 2;
    before = places.still_iterations;
    window = places.iteration;
  }
  CHECK(at_once > 0);
}

TEST_CASE("what was changed between host memory and card does not count as movement: the next may be changed at once") {
  Decoder decoder;
  for (int i = 0; i < 3; ++i) decoder.PlanStep(kChunkBytes, kLink);
  uint64_t changed = 0;
  for (int i = 0; i < 40 && !changed; ++i) {
    decoder.PlanStep(4096, 400);
    if (decoder.residency.placement_stats().demoted_bytes) changed = decoder.residency.placement_stats().iteration;
  }
  REQUIRE(changed);
  while (decoder.residency.placement_stats().iteration == changed) decoder.PlanStep(4096, 400);
  CHECK(decoder.residency.placement_stats().moved_bytes > uint64_t{16} << 20);
  CHECK(decoder.residency.placement_stats().still_iterations > 2);
}

}  // namespace sluice::policy
