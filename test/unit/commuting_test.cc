// What lives on, but leaves in each step and comes back: a convolution net's parameters and momenta.
#include <catch2/catch_test_macros.hpp>

#include "hooklib/core/residency.h"
#include "test/unit/fake_card.h"

namespace sluice::core {

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
    const HostProbe probe = Queue({extent}, 1, id).probe;
    Finish();
    tried += probe.trial && extent.base < Chunks(kState).base;
    if (probe.id) residency.Measured(probe, 5000 + static_cast<uint64_t>(static_cast<double>(probe.host) / at));
  }
  void Step() {
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
    for (uint64_t i = 0; i < kState; ++i) chunks += At(i).advised && !At(i).resident;
    return chunks;
  }
  uint64_t StepIn() {
    const uint64_t before = residency.stats().bytes_in;
    Step();
    return residency.stats().bytes_in - before;
  }
};

}  // namespace

TEST_CASE("what lives on, but leaves and comes back in each step, is used in host memory") {
  Net net;
  for (int i = 0; i < 20; ++i) net.Step();
  CHECK(net.MappedState() == kState);
  const uint64_t with = net.StepIn();
  Net without;
  without.residency.set_host_access(false);
  for (int i = 0; i < 20; ++i) without.Step();
  CHECK(with + kState * kChunkBytes <= without.StepIn());
  // And stays: it is not mapped anew.
  const uint64_t tried = net.tried;
  for (int i = 0; i < 100; ++i) {
    net.Step();
    CHECK(net.MappedState() == kState);
  }
  CHECK(net.tried == tried);
}

TEST_CASE("what comes back to be used again and again is brought") {
  Net net;
  net.uses = 4;  // to send it away and bring it costs less than to pass over it so often
  for (int i = 0; i < 40; ++i) net.Step();
  CHECK(net.MappedState() == 0);
  CHECK(net.tried == 0);
  CHECK(net.StepIn() >= kState * kChunkBytes);
}

TEST_CASE("what comes back for launches that re-read it is tried in host memory a few times, and then brought") {
  Net net;
  net.rate = 2;
  for (int i = 0; i < 400; ++i) net.Step();
  CHECK(net.tried > 0);
  CHECK(net.tried <= 3 * 4);
  const uint64_t tried = net.tried;
  for (int i = 0; i < 100; ++i) net.Step();
  CHECK(net.tried == tried);
  CHECK(net.MappedState() == 0);
}

TEST_CASE("what left once is brought back where there is room") {
  Net net;
  net.leaves = false;
  for (int i = 0; i < 20; ++i) net.Step();
  for (int i = 0; i < 4; ++i) {
    net.leaves = true;
    net.Step();
    net.leaves = false;
    for (int j = 0; j < 30; ++j) net.Step();
    CHECK(net.MappedState() == 0);
  }
  CHECK(net.tried == 0);
}

}  // namespace sluice::core
