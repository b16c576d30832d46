// What lives on, but leaves in each step and comes back: a convolution net's parameters and momenta.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "hooklib/policy/residency.h"
#include "test/unit/fake_card.h"

namespace sluice::policy {

namespace {

constexpr uint64_t kState = 12, kLayers = 10, kLayer = 6, kTotal = kState + kLayers * kLayer, kCapacity = 40;

// A step whose activations need more than the card, so that the state leaves for them; when it is used again they are
// dead, and there is room for it.
struct Net : FakeCard {
  double rate = 42;    // GB/s at which the kernels that use the state get through it in host memory
  int uses = 1;        // of the state, when all activations are dead
  uint64_t tried = 0;  // launches that were tried with it
  bool leaves = true;  // whether the activations need more than the card

  Net() : FakeCard(kTotal, kCapacity, Prefetch::kPredict) { residency.RemoveLive(Chunks(kState, kLayers * kLayer)); }

  void Launch(uint64_t id, Extent extent, double at) {
    const LaunchProbe probe = Queue({extent}, 1, id).probe;
    Finish();
    tried += probe.exploratory && extent.base < Chunks(kState).base;
    if (probe.id)
      residency.NoteMeasured(probe, 5000 + static_cast<uint64_t>(static_cast<double>(probe.host_bytes) / at));
  }
  void PlanStep() {
    const auto live = [](uint64_t layer) { return Chunks(kState + layer * kLayer, kLayer); };
    const uint64_t layers = leaves ? kLayers : kLayers / 3;
    for (uint64_t layer = 0; layer < layers; ++layer) {
      residency.AddLive(live(layer));
      Launch(100 + layer, live(layer), 2);
    }
    for (uint64_t layer = layers; layer-- > 0;) {
      Launch(200 + layer, live(layer), 2);
      residency.RemoveLive(live(layer));
    }
    for (int use = 0; use < uses; ++use) {
      for (uint64_t part = 0; part < kState; part += 4) Launch(300 + part, Chunks(part, 4), rate);
    }
  }
  uint64_t MappedState() {
    uint64_t chunks = 0;
    for (uint64_t i = 0; i < kState; ++i) chunks += At(i).mapped_remote && !At(i).resident;
    return chunks;
  }
  uint64_t StepIn() {
    const uint64_t before = residency.stats().bytes_in;
    PlanStep();
    return residency.stats().bytes_in - before;
  }
};

}  // namespace

TEST_CASE("what lives on, but leaves and comes back in each step, is used in host memory") {
  Net net;
  for (int i = 0; i < 20; ++i) net.PlanStep();
  CHECK(net.MappedState() == kState);
  const uint64_t with = net.StepIn();
  Net without;
  without.residency.set_remote_access(false);
  for (int i = 0; i < 20; ++i) without.PlanStep();
  CHECK(with + kState * kChunkBytes <= without.StepIn());
  // And stays: it is not mapped anew.
  const uint64_t tried = net.tried;
  for (int i = 0; i < 100; ++i) {
    net.PlanStep();
    CHECK(net.MappedState() == kState);
  }
  CHECK(net.tried == tried);
}

TEST_CASE("what comes back to be used again and again is brought") {
  Net net;
  net.uses = 4;  // to send it away and bring it costs less than to pass over it so often
  for (int i = 0; i < 40; ++i) net.PlanStep();
  CHECK(net.MappedState() == 0);
  CHECK(net.tried == 0);
  CHECK(net.StepIn() >= kState * kChunkBytes);
}

TEST_CASE("what comes back for launches that re-read it is tried in host memory a few times, and then brought") {
  Net net;
  net.rate = 2;
  for (int i = 0; i < 400; ++i) net.PlanStep();
  CHECK(net.tried > 0);
  CHECK(net.tried <= 3 * 4);
  const uint64_t tried = net.tried;
  for (int i = 0; i < 100; ++i) net.PlanStep();
  CHECK(net.tried == tried);
  CHECK(net.MappedState() == 0);
}

TEST_CASE("what left once is brought back where there is room") {
  Net net;
  net.leaves = false;
  for (int i = 0; i < 20; ++i) net.PlanStep();
  for (int i = 0; i < 4; ++i) {
    net.leaves = true;
    net.PlanStep();
    net.leaves = false;
    for (int j = 0; j < 30; ++j) net.PlanStep();
    CHECK(net.MappedState() == 0);
  }
  CHECK(net.tried == 0);
}

namespace {

// Weights that launches re-read and gradients that are born in each round and die in it, beside two moments of an
// optimizer's, one of which is passed over twice in each round and one three times.
struct Optimizer : FakeCard {
  static constexpr uint64_t kWeights = 12, kMoment = 16, kGradients = 6, kFirst = kWeights, kSecond = kFirst + kMoment,
                            kBorn = kSecond + kMoment, kAll = kBorn + kGradients;
  bool dies = true;  // what is born

  explicit Optimizer(uint64_t capacity) : FakeCard(kAll, capacity, Prefetch::kPredict) {
    residency.RemoveLive(Chunks(kBorn, kGradients), Chunks(0, kAll));
    residency.set_slow_write_back(false);
  }
  void Launch(uint64_t id, std::vector<Extent> set, double rate) {
    const LaunchProbe probe = Queue(set, 1, id).probe;
    Finish();
    if (probe.id)
      residency.NoteMeasured(probe, 5000 + static_cast<uint64_t>(static_cast<double>(probe.host_bytes) / rate));
  }
  void PlanStep() {
    for (uint64_t i = 0; i < kWeights; i += 2) Launch(100 + i, {Chunks(i, 2)}, 2);
    if (dies) residency.AddLive(Chunks(kBorn, kGradients));
    for (uint64_t i = kWeights; i > 0; i -= 2) Launch(200 + i, {Chunks(i - 2, 2), Chunks(kBorn, kGradients)}, 2);
    for (const uint64_t id : {1, 2}) {
      for (uint64_t i = 0; i < kMoment; i += 2) Launch(300 + id, {Chunks(kFirst + i, 2)}, 42);
    }
    for (const uint64_t id : {3, 4, 5}) {
      for (uint64_t i = 0; i < kMoment; i += 2) Launch(300 + id, {Chunks(kSecond + i, 2)}, 42);
    }
    if (dies) residency.RemoveLive(Chunks(kBorn, kGradients), Chunks(0, kAll));
  }
  // Bytes of the second moment that a step uses in host memory.
  uint64_t InPlace() {
    const uint64_t before = residency.stats().remote_bytes;
    uint64_t first = 0;
    for (uint64_t i = 0; i < kMoment; ++i) first += At(kFirst + i).resident ? 0 : 2 * kChunkBytes;
    PlanStep();
    const uint64_t all = residency.stats().remote_bytes - before;
    return all - std::min(all, first);
  }
};

}  // namespace

TEST_CASE("what a round passes over three times comes and goes where departures are fast, twice stays") {
  Optimizer card(34);
  for (int i = 0; i < 40; ++i) card.PlanStep();
  const uint64_t in = card.residency.stats().bytes_in, out = card.residency.stats().bytes_out;
  CHECK(card.InPlace() == 0);
  // Not for each pass.
  CHECK(card.residency.stats().bytes_in - in < 2 * Optimizer::kMoment * kChunkBytes);
  CHECK(card.residency.stats().bytes_out - out < (2 * Optimizer::kMoment + Optimizer::kGradients) * kChunkBytes);
  Optimizer slow(34);
  slow.residency.set_slow_write_back(true);
  for (int i = 0; i < 40; ++i) slow.PlanStep();
  CHECK(slow.InPlace() > 0);
}

TEST_CASE("what would have to come for each pass stays in host memory all the same") {
  Optimizer card(10);
  card.dies = false;
  card.residency.AddLive(Chunks(Optimizer::kBorn, Optimizer::kGradients));
  for (int i = 0; i < 40; ++i) card.PlanStep();
  CHECK(card.InPlace() >= Optimizer::kMoment * kChunkBytes);
}

}  // namespace sluice::policy
