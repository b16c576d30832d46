// Virtual time and residency: the simulated GPU keeps to docs/design/driver.md's measurements on any machine.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>
#include <vector>

#include "timing.h"

using namespace simgpu_test;  // NOLINT(google-build-using-namespace): the test's own vocabulary

TEST_CASE("prefetch rates follow the size of the piece") {
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr p = card.Managed(kGiB);
  Populate(card, s, p, kGiB);
  const auto rate = [&](uint64_t piece, bool in) {
    card.Prefetch(s, p, kGiB, !in);
    const uint64_t ns = card.Time([&] {
      for (uint64_t at = 0; at < kGiB; at += piece) card.Prefetch(s, p + at, piece, in);
    });
    return Gbps(kGiB, ns);
  };
  CHECK(rate(2 * kMiB, true) > 14);
  CHECK(rate(2 * kMiB, true) < 20);
  CHECK(rate(16 * kMiB, true) > 30);
  CHECK(rate(16 * kMiB, true) < 38);
  CHECK(rate(64 * kMiB, true) > 40);
  CHECK(rate(64 * kMiB, true) < 47);
  CHECK(rate(16 * kMiB, false) > 12);
  CHECK(rate(16 * kMiB, false) < 19);
}

TEST_CASE("a prefetch on an idle stream takes the caller's time, a deferred one does not") {
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr p = card.Managed(kGiB);
  Populate(card, s, p, kGiB);
  const uint64_t direct = card.HostTime([&] { card.Prefetch(s, p, kGiB, false); });
  CHECK(direct > 60'000'000);
  const uint64_t in = card.HostTime([&] { card.Prefetch(s, p, kGiB, true); });
  CHECK(in > 5'000'000);
  CHECK(in < 15'000'000);
  OK(cuStreamSynchronize(s));
  card.Launch(s, {}, 5'000'000);
  const uint64_t deferred = card.HostTime([&] { card.Prefetch(s, p, kGiB, false); });
  CHECK(deferred >= 15'000);
  CHECK(deferred <= 30'000);
  // The queue of deferred prefetches is short: then the caller blocks.
  OK(cuStreamSynchronize(s));
  card.Launch(s, {}, 50'000'000);
  uint64_t longest = 0;
  for (int i = 0; i < 128; ++i) {
    longest = std::max(
        longest, card.HostTime([&] { card.Prefetch(s, p + static_cast<uint64_t>(i) * 2 * kMiB, 2 * kMiB, true); }));
  }
  CHECK(longest > 40'000'000);
}

TEST_CASE("faults fetch exactly the touched bytes, at the measured rate") {
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr p = card.Managed(kGiB);
  Populate(card, s, p, kGiB);
  card.Prefetch(s, p, kGiB, false);
  OK(cuStreamSynchronize(s));
  const auto before = card.Stats();
  // As measured: reading 8 MiB at + 100 MiB transfers exactly 8 MiB.
  card.Launch(s, {Read(p + 100 * kMiB, 8 * kMiB)});
  OK(cuStreamSynchronize(s));
  CHECK(card.Stats().fault_bytes - before.fault_bytes == 8 * kMiB);
  CHECK(simgpu_resident_bytes(p, kGiB) == 8 * kMiB);
  const uint64_t ns = card.Time([&] { card.Launch(s, {Read(p, kGiB)}); });
  CHECK(Gbps(kGiB, ns) > 10);
  CHECK(Gbps(kGiB, ns) < 12);
  CHECK(card.Time([&] { card.Launch(s, {Read(p, kGiB)}); }) < 100'000);
}

TEST_CASE("prefetched bytes that are not touched are counted once for each prefetch") {
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr p = card.Managed(64 * kMiB), q = card.Managed(64 * kMiB);
  Populate(card, s, p, 64 * kMiB);
  Populate(card, s, q, 64 * kMiB);
  const auto unused = [&] {
    OK(cuStreamSynchronize(s));
    return card.Stats().prefetch_unused_bytes / kMiB;
  };
  CHECK(unused() == 0);
  card.Prefetch(s, p, 64 * kMiB, false);
  card.Prefetch(s, p, 64 * kMiB, true);
  CHECK(unused() == 64);  // not touched yet
  card.Launch(s, {Read(p + 8 * kMiB, 16 * kMiB)});
  CHECK(unused() == 48);
  card.Prefetch(s, p, 64 * kMiB, false);
  CHECK(unused() == 48);  // evicted untouched
  card.Prefetch(s, p, 64 * kMiB, true);
  CHECK(unused() == 112);
  OK(cuMemsetD8Async(p, 1, 64 * kMiB, s));
  CHECK(unused() == 48);
  // Discarded bytes, freed bytes and resident bytes do not count.
  card.Prefetch(s, p, 64 * kMiB, false);
  card.Prefetch(s, p, 32 * kMiB, true);
  card.Discard(s, p, 16 * kMiB);
  card.Prefetch(s, p, 16 * kMiB, true);  // no contents: nothing is moved
  card.Prefetch(s, q, 64 * kMiB, true);
  card.Launch(s, {Write(p, 16 * kMiB)});
  CHECK(unused() == 80);
  OK(cuStreamSynchronize(s));
  OK(cuMemFree(p));
  CHECK(unused() == 80);
}

TEST_CASE("both directions together reach the duplex sum, not twice one direction") {
  Card card;
  CUstream in = card.Stream(), out = card.Stream();
  CUdeviceptr p = card.Managed(kGiB), q = card.Managed(kGiB);
  Populate(card, in, p, kGiB);
  Populate(card, in, q, kGiB);
  card.Prefetch(in, p, kGiB, false);
  OK(cuCtxSynchronize());
  const uint64_t ns = card.Time([&] {
    card.Launch(in, {}, 1'000'000);
    card.Launch(out, {}, 1'000'000);
    for (uint64_t at = 0; at < kGiB; at += 64 * kMiB) {
      card.Prefetch(in, p + at, 64 * kMiB, true);
      card.Prefetch(out, q + at, 64 * kMiB, false);
    }
  });
  CHECK(Gbps(2 * kGiB, ns) > 18);
  CHECK(Gbps(2 * kGiB, ns) < 30);
}

TEST_CASE("a full card evicts discarded memory first, without a copy, then the oldest") {
  NEED_PROFILE("card-8g", 8 * kGiB, 1);
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr a = card.Managed(3 * kGiB), b = card.Managed(3 * kGiB), c = card.Managed(3 * kGiB);
  Populate(card, s, a, 3 * kGiB);
  Populate(card, s, b, 3 * kGiB);
  // Reading does not make `a` younger: the driver does not see accesses.
  card.Launch(s, {Read(a, 3 * kGiB)});
  Populate(card, s, c, 3 * kGiB);
  CHECK(simgpu_resident_bytes(a, 3 * kGiB) < 2 * kGiB);
  CHECK(simgpu_resident_bytes(b, 3 * kGiB) == 3 * kGiB);
  const uint64_t evicted = card.Stats().evicted_bytes;
  CHECK(evicted > kGiB);
  card.Discard(s, b, 2 * kGiB);
  OK(cuStreamSynchronize(s));
  CUdeviceptr d = card.Managed(2 * kGiB);
  Populate(card, s, d, 2 * kGiB);
  CHECK(card.Stats().evicted_bytes == evicted);
  CHECK(simgpu_resident_bytes(c, 3 * kGiB) == 3 * kGiB);
  // Unmanaged memory evicts managed memory; too much of it fails.
  CUdeviceptr unmanaged = card.Unmanaged(4 * kGiB), more = 0;
  CHECK(unmanaged != 0);
  CHECK(cuMemAlloc(&more, 5 * kGiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(card.Stats().card_used_bytes <= 8 * kGiB);
}

TEST_CASE("the rate of faults depends on the kernel's access pattern") {
  Card card;
  CUstream s = card.Stream();
  const CUdeviceptr p = card.Managed(kGiB);
  Populate(card, s, p, kGiB);
  const auto rate = [&](simgpu_kernel kind) {
    card.Prefetch(s, p, kGiB, false);
    return Gbps(kGiB, card.Time([&] { card.Launch(s, {Read(p, kGiB)}, 1000, SIMGPU_KERNEL(kind)); }));
  };
  const simgpu_kernel slowest_first[] = {SIMGPU_LISTS,       SIMGPU_REDUCTION, SIMGPU_FEW_ROWS,   SIMGPU_PRODUCT,
                                         SIMGPU_CONVOLUTION, SIMGPU_UNKNOWN,   SIMGPU_ELEMENTWISE};
  double before = 5;
  for (const simgpu_kernel kind : slowest_first) {
    CHECK(rate(kind) > before);
    before = rate(kind);
  }
  CHECK(before < 15);
}

TEST_CASE("a kernel with operands larger than the card runs by faults") {
  NEED_PROFILE("card-8g", 8 * kGiB, 1);
  Card card;
  CUstream s = card.Stream();
  CUdeviceptr p = card.Managed(12 * kGiB);
  Populate(card, s, p, 12 * kGiB);
  const uint64_t ns = card.Time([&] { card.Launch(s, {Read(p, 12 * kGiB)}); });
  CHECK(ns > 1'500'000'000);
  CHECK(card.Stats().resident_bytes <= 8 * kGiB);
}

TEST_CASE("a wait for an event starts the waiting stream when the event is done") {
  Card card;
  CUstream a = card.Stream(), b = card.Stream();
  CUevent e;
  OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
  card.Launch(a, {}, 10'000'000);
  OK(cuEventRecord(e, a));
  OK(cuStreamWaitEvent(b, e, 0));
  card.Launch(b, {}, 1'000'000);
  CHECK(cuStreamQuery(b) == CUDA_ERROR_NOT_READY);
  const uint64_t from = simgpu_now_ns();
  OK(cuStreamSynchronize(b));
  CHECK(simgpu_now_ns() - from > 10'000'000);
}

TEST_CASE("a thread waits for a destroyed stream's work that another thread has waited for") {
  Card card;
  CUstream s = card.Stream();
  const uint64_t from = simgpu_now_ns();
  card.Launch(s, {}, 10'000'000);
  std::thread([&] {
    OK(cuCtxSetCurrent(card.context));
    OK(cuStreamSynchronize(s));
  }).join();
  REQUIRE(simgpu_now_ns() - from < 10'000'000);  // each thread has a time of its own
  OK(cuStreamDestroy(s));
  OK(cuCtxSynchronize());
  CHECK(simgpu_now_ns() - from > 10'000'000);
}

TEST_CASE("launches of one executable graph run one after another, in whichever streams") {
  Card card;
  CUstream a = card.Stream(), b = card.Stream();
  const CUdeviceptr block = card.Unmanaged(4096);
  void* host = nullptr;
  OK(cuMemAllocHost(&host, 4096));
  OK(cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED));
  OK(cuMemcpyHtoDAsync(block, host, 4096, a));
  card.Launch(a, {Read(block, 4096)}, 3'000'000);
  CUgraph graph;
  OK(cuStreamEndCapture(a, &graph));
  CUgraphExec one, other;
  OK(cuGraphInstantiate(&one, graph, 0));
  OK(cuGraphInstantiate(&other, graph, 0));
  const auto races = [&](CUgraphExec second) {
    OK(cuCtxSynchronize());
    const uint64_t before = card.Stats().races;
    OK(cuGraphLaunch(one, a));
    OK(cuGraphLaunch(second, b));
    OK(cuCtxSynchronize());
    return card.Stats().races - before;
  };
  CHECK(races(one) == 0);
  CHECK(races(other) > 0);
  OK(cuGraphExecDestroy(one));
  OK(cuGraphExecDestroy(other));
  OK(cuGraphDestroy(graph));
}

TEST_CASE("the legacy stream orders itself with blocking streams") {
  Card card;
  CUstream s;
  OK(cuStreamCreate(&s, CU_STREAM_DEFAULT));
  CUdeviceptr p = card.Unmanaged(4096);
  card.Launch(s, {Write(p, 4096)}, 3'000'000);
  const uint64_t from = simgpu_now_ns();
  card.Launch(nullptr, {Read(p, 4096)}, 1000);
  OK(cuStreamSynchronize(nullptr));
  CHECK(simgpu_now_ns() - from > 2'900'000);
  CHECK(card.Stats().races == 0);
}

TEST_CASE("contents: digests depend on the computation, not on where memory was") {
  NEED_PROFILE("card-8g", 8 * kGiB, 1);
  Card card;
  CUstream s = card.Stream();
  const auto compute = [&](bool disturb) {
    CUdeviceptr x = card.Managed(300 * kMiB), y = card.Managed(200 * kMiB);
    std::vector<uint8_t> in(100000, 42);
    OK(cuMemcpyHtoD(x, in.data(), in.size()));
    card.Launch(s, {Read(x, 100000), Write(y, 200 * kMiB)});
    if (disturb) {
      card.Prefetch(s, y + 3 * kMiB, 77 * kMiB, false);
      CUdeviceptr z = card.Managed(7900 * kMiB);
      Populate(card, s, z, 7900 * kMiB);
      OK(cuMemFree(z));
    }
    card.Launch(s, {Read(y, 200 * kMiB), Update(x, 50 * kMiB)});
    OK(cuStreamSynchronize(s));
    const uint64_t digest = simgpu_digest(x, 300 * kMiB);
    OK(cuMemFree(x));
    OK(cuMemFree(y));
    return digest;
  };
  const uint64_t quiet = compute(false);
  CHECK(compute(true) == quiet);
  CHECK(card.Stats().evicted_bytes > 0);
}

TEST_CASE("host memory stays below two percent of the simulated memory") {
  Card card;
  CUstream s = card.Stream();
  const auto resident = [] {
    long pages = 0;
    std::ifstream in("/proc/self/statm");
    REQUIRE(in >> pages >> pages);  // the second number
    return static_cast<uint64_t>(pages) * 4096;
  };
  const uint64_t before = resident();
  // 100 GiB in 25,600 tensors of 4 MiB, each written by its own launch.
  constexpr uint64_t kTensor = 4 * kMiB;
  for (uint64_t i = 0; i < 100 * kGiB / kTensor; ++i) {
    const CUdeviceptr p = card.Managed(kTensor);
    card.Launch(s, {Write(p, kTensor / 2), Write(p + kTensor / 2, kTensor / 2)}, 1000);
  }
  OK(cuStreamSynchronize(s));
  CHECK(card.Stats().resident_bytes == 100 * kGiB);
  CHECK(resident() - before < 2 * kGiB);
  INFO("host bytes " << resident() - before);
  CHECK((resident() - before) * 100 < 100 * kGiB);
}

TEST_CASE("a long queue blocks the launching thread, as the driver's ring does") {
  Card card;
  CUstream s = card.Stream();
  const uint64_t host = card.HostTime([&] {
    for (int i = 0; i < 2048; ++i) card.Launch(s, {}, 100'000);
  });
  CHECK(host > 90'000'000);
  CHECK(host < 130'000'000);
}

TEST_CASE("work on several cards is counted where it ran") {
  NEED_PROFILE("two-gpu", 16 * kGiB, 2);
  Card card;
  int count = 0;
  OK(cuDeviceGetCount(&count));
  REQUIRE(count == 2);
  CUcontext second;
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  OK(cuCtxSetCurrent(second));
  CUstream s = card.Stream();
  CUdeviceptr p = card.Managed(64 * kMiB);
  card.Launch(s, {Write(p, 64 * kMiB)});
  OK(cuStreamSynchronize(s));
  CHECK(card.Stats(0).resident_bytes == 0);
  CHECK(card.Stats(1).resident_bytes == 64 * kMiB);
  OK(cuCtxSetCurrent(card.context));
  CUstream t = card.Stream();
  card.Launch(t, {Read(p, 64 * kMiB)});
  OK(cuStreamSynchronize(t));
  CHECK(card.Stats(0).resident_bytes == 64 * kMiB);
  CHECK(card.Stats(1).resident_bytes == 0);
  OK(cuDevicePrimaryCtxRelease(1));
}
