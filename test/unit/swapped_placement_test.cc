// Long-lived chunks that each iteration evicts and fetches, as a convolution net's parameters and momenta.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>

#include "hooklib/policy/residency.h"
#include "test/unit/fake_gpu.h"

namespace sluice::policy {

namespace {

constexpr uint64_t kState = 12, kLayers = 10, kLayer = 6, kTotal = kState + kLayers * kLayer, kCapacity = 40;

// A step whose activations exceed the capacity, so that the state is evicted for them. When the state is used again,
// they are freed, and there is room for it.
struct Net : FakeGpu {
  double rate = 42;     // GB/s of the kernels that use the state remotely
  int uses = 1;         // of the state, once all activations are freed
  uint64_t probed = 0;  // launches that were probed with it
  bool exceeds = true;  // whether the activations exceed the capacity

  Net() : FakeGpu(kTotal, kCapacity, Prefetch::kPredict) { residency.RemoveLive(Chunks(kState, kLayers * kLayer)); }

  void Launch(uint64_t id, Extent extent, double at) {
    const LaunchProbe probe = RunTimed(id, {extent}, at);
    probed += probe.exploratory && extent.base < Chunks(kState).base;
  }
  void PlanStep() {
    const auto live = [](uint64_t layer) { return Chunks(kState + layer * kLayer, kLayer); };
    const uint64_t layers = exceeds ? kLayers : kLayers / 3;
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
    for (uint64_t i = 0; i < kState; ++i) chunks += At(i).mapped_remote() && !At(i).resident();
    return chunks;
  }
  uint64_t StepBytesIn() {
    const uint64_t before = residency.stats().bytes_in;
    PlanStep();
    return residency.stats().bytes_in - before;
  }
};

}  // namespace

TEST_CASE("long-lived chunks that each step evicts and fetches are used remotely") {
  Net net;
  for (int i = 0; i < 20; ++i) net.PlanStep();
  CHECK(net.MappedState() == kState);
  const uint64_t with = net.StepBytesIn();
  Net without;
  without.residency.set_remote_access(false);
  for (int i = 0; i < 20; ++i) without.PlanStep();
  CHECK(with + kState * kChunkBytes <= without.StepBytesIn());
  // It stays mapped: nothing is probed again.
  const uint64_t probed = net.probed;
  for (int i = 0; i < 100; ++i) {
    net.PlanStep();
    CHECK(net.MappedState() == kState);
  }
  CHECK(net.probed == probed);
}

TEST_CASE("chunks that a step uses several times are fetched") {
  Net net;
  net.uses = 4;  // one eviction and one fetch cost less than so many remote passes
  for (int i = 0; i < 40; ++i) net.PlanStep();
  CHECK(net.MappedState() == 0);
  CHECK(net.probed == 0);
  CHECK(net.StepBytesIn() >= kState * kChunkBytes);
}

TEST_CASE("chunks that launches re-read are probed remotely a few times, and then fetched") {
  Net net;
  net.rate = 2;
  for (int i = 0; i < 400; ++i) net.PlanStep();
  CHECK(net.probed > 0);
  CHECK(net.probed <= 3 * 4);
  const uint64_t probed = net.probed;
  for (int i = 0; i < 100; ++i) net.PlanStep();
  CHECK(net.probed == probed);
  CHECK(net.MappedState() == 0);
}

TEST_CASE("chunks evicted once are fetched again where there is room") {
  Net net;
  net.exceeds = false;
  for (int i = 0; i < 20; ++i) net.PlanStep();
  for (int i = 0; i < 4; ++i) {
    net.exceeds = true;
    net.PlanStep();
    net.exceeds = false;
    for (int j = 0; j < 30; ++j) net.PlanStep();
    CHECK(net.MappedState() == 0);
  }
  CHECK(net.probed == 0);
}

namespace {

// Weights that launches re-read, gradients that are allocated and freed in each iteration, and two moments of an
// optimizer. An iteration passes over one moment twice and over the other three times.
struct Optimizer : FakeGpu {
  static constexpr uint64_t kWeights = 12, kMoment = 16, kGradients = 6, kFirst = kWeights, kSecond = kFirst + kMoment,
                            kFirstGradient = kSecond + kMoment, kAll = kFirstGradient + kGradients;
  bool frees_gradients = true;

  explicit Optimizer(uint64_t capacity) : FakeGpu(kAll, capacity, Prefetch::kPredict) {
    residency.RemoveLive(Chunks(kFirstGradient, kGradients), Chunks(0, kAll));
    residency.link().set_slow_write_back(false);
  }
  void PlanStep() {
    for (uint64_t i = 0; i < kWeights; i += 2) RunTimed(100 + i, {Chunks(i, 2)}, 2);
    if (frees_gradients) residency.AddLive(Chunks(kFirstGradient, kGradients));
    for (uint64_t i = kWeights; i > 0; i -= 2)
      RunTimed(200 + i, {Chunks(i - 2, 2), Chunks(kFirstGradient, kGradients)}, 2);
    for (const uint64_t id : {1, 2}) {
      for (uint64_t i = 0; i < kMoment; i += 2) RunTimed(300 + id, {Chunks(kFirst + i, 2)}, 42);
    }
    for (const uint64_t id : {3, 4, 5}) {
      for (uint64_t i = 0; i < kMoment; i += 2) RunTimed(300 + id, {Chunks(kSecond + i, 2)}, 42);
    }
    if (frees_gradients) residency.RemoveLive(Chunks(kFirstGradient, kGradients), Chunks(0, kAll));
  }
  // Bytes of the second moment that a step uses remotely.
  uint64_t RemoteBytes() {
    const uint64_t before = residency.stats().remote_bytes;
    uint64_t first = 0;
    for (uint64_t i = 0; i < kMoment; ++i) first += At(kFirst + i).resident() ? 0 : 2 * kChunkBytes;
    PlanStep();
    const uint64_t all = residency.stats().remote_bytes - before;
    return all - std::min(all, first);
  }
};

}  // namespace

TEST_CASE("with fast write-back, chunks that an iteration passes over three times are swapped") {
  Optimizer gpu(34);
  for (int i = 0; i < 40; ++i) gpu.PlanStep();
  const uint64_t in = gpu.residency.stats().bytes_in, out = gpu.residency.stats().bytes_out;
  CHECK(gpu.RemoteBytes() == 0);
  // Once an iteration, not for each pass.
  CHECK(gpu.residency.stats().bytes_in - in < 2 * Optimizer::kMoment * kChunkBytes);
  CHECK(gpu.residency.stats().bytes_out - out < (2 * Optimizer::kMoment + Optimizer::kGradients) * kChunkBytes);
  Optimizer slow(34);
  slow.residency.link().set_slow_write_back(true);
  for (int i = 0; i < 40; ++i) slow.PlanStep();
  CHECK(slow.RemoteBytes() > 0);
}

TEST_CASE("chunks that would be fetched for each pass are used remotely in any case") {
  Optimizer gpu(10);
  gpu.frees_gradients = false;
  gpu.residency.AddLive(Chunks(Optimizer::kFirstGradient, Optimizer::kGradients));
  for (int i = 0; i < 40; ++i) gpu.PlanStep();
  CHECK(gpu.RemoteBytes() >= Optimizer::kMoment * kChunkBytes);
}

}  // namespace sluice::policy
