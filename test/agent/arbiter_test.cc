// Shares, limits, leases.
#include "agent/arbiter.h"

#include <catch2/catch_test_macros.hpp>
#include <random>
#include <vector>

#include "arbiter_rig.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

TEST_CASE("shares of 0.7 and 0.3 hold within two points over any 10 s") {
  for (const Nanos kernel : {50 * kUs, 3 * kMs, 40 * kMs}) {
    VirtualGpu gpu({}, {{700000, 1000000, kernel}, {300000, 1000000, 200 * kUs}});
    gpu.Run(60 * kSec);
    const auto e = gpu.Extremes(kSec, 60 * kSec, 10 * kSec);
    INFO("kernel " << kernel << ": " << e[0].first << ".." << e[0].second << " and " << e[1].first << ".."
                   << e[1].second);
    CHECK(e[0].first >= 0.68);
    CHECK(e[0].second <= 0.72);
    CHECK(e[1].first >= 0.28);
    CHECK(e[1].second <= 0.32);
  }
}

TEST_CASE("a limit is exceeded by at most a quantum and the longest kernel, also over short windows") {
  VirtualGpu gpu({}, {{200000, 500000, 5 * kMs}, {100000, 1000000, kMs, 20 * kMs, 30 * kSec, 31 * kSec}});
  gpu.Run(40 * kSec);
  const auto e = gpu.Extremes(kSec, 29 * kSec, 10 * kSec);
  CHECK(e[0].second <= 0.5 + (20.0 + 5.0) / 10000);
  CHECK(e[0].first >= 0.47);
  const auto paced = gpu.Extremes(kSec, 29 * kSec, 2 * kSec);
  CHECK(paced[0].second <= 0.56);
}

TEST_CASE("a tenant uses the time that the other leaves idle") {
  VirtualGpu gpu({}, {{500000, 1000000, kMs}, {500000, 1000000, kMs, 20 * kMs, 20 * kSec, 40 * kSec}});
  gpu.Run(60 * kSec);
  CHECK(gpu.Extremes(2 * kSec, 19 * kSec, 5 * kSec)[0].first > 0.99);
  const auto both = gpu.Extremes(30 * kSec, 40 * kSec, 5 * kSec);
  CHECK(both[1].first > 0.45);
}

TEST_CASE("a holder that ends or hangs loses the token") {
  for (const auto fault : {Tenant::Fault::kEnds, Tenant::Fault::kHangs}) {
    VirtualGpu gpu({}, {{500000, 1000000, kMs, 20 * kMs, 0, UINT64_MAX, fault, 5 * kSec}, {500000, 1000000, kMs}});
    gpu.Run(40 * kSec);
    CHECK(gpu.Extremes(10 * kSec, 40 * kSec, 5 * kSec)[1].first > 0.9);
  }
}

TEST_CASE("a limit and memory pressure demand tokens while a client has work") {
  Arbiter arbiter({});
  const Nanos t = 100 * kSec;
  arbiter.SetClient(1, 500000, 1000000);
  CHECK_FALSE(arbiter.NeedsTokens(t));
  for (Nanos n = 0; n < 10 * kSec; n += 100 * kMs) arbiter.Observe(1, 100 * kMs, 50, true, t + n);
  CHECK_FALSE(arbiter.NeedsTokens(t + 10 * kSec));  // one client without a limit never needs tokens
  arbiter.SetClient(1, 500000, 800000);
  CHECK(arbiter.NeedsTokens(t + 10 * kSec));
  CHECK(arbiter.reason() == "a container that works has a compute limit");
  CHECK_FALSE(arbiter.NeedsTokens(t + 20 * kSec));  // without work no token is needed
  CHECK(arbiter.reason().empty());
  arbiter.SetClient(1, 500000, 1000000);
  arbiter.Observe(1, 100 * kMs, 50, true, t + 20 * kSec);
  arbiter.SetPressure(true, 50 * kMs);
  CHECK(arbiter.NeedsTokens(t + 20 * kSec));
  CHECK(arbiter.reason() == "the working sets exceed its memory");
  CHECK(arbiter.QuantumOf(1) == 2 * kSec);  // a costly switch makes time slices longer,
  arbiter.SetPressure(true, kSec);
  CHECK(arbiter.QuantumOf(1) == 15 * kSec);  // up to the client's share of the window
  arbiter.SetPressure(false, 0);
  CHECK(arbiter.QuantumOf(1) == kMs);
}

TEST_CASE("the clock bounds the reported time, and stale releases change nothing") {
  Arbiter arbiter({});
  arbiter.SetClient(1, 500000, 1000000);
  arbiter.Request(1, 7, 10 * kMs, kSec);
  const auto a = arbiter.Advance(kSec);
  REQUIRE(a.size() == 1);
  arbiter.Release(7, a[0].id + 1, kSec, kMs, kSec + kMs);
  arbiter.Release(8, a[0].id, kSec, kMs, kSec + kMs);
  CHECK(arbiter.Share(1, kSec + kMs) == 0);
  arbiter.Release(7, a[0].id, 1000 * kSec, kMs, kSec + 5 * kMs);
  CHECK(arbiter.Share(1, kSec + 5 * kMs) <= 0.0005 + 1e-9);
  arbiter.Release(7, a[0].id, 1000 * kSec, kMs, kSec + 9 * kMs);
  CHECK(arbiter.Share(1, kSec + 9 * kMs) <= 0.0005 + 1e-9);
}

TEST_CASE("random tenants: one holder at a time, limits hold, and requests are met") {
  std::mt19937 random(7);
  for (int run = 0; run < 60; ++run) {
    std::vector<Tenant> tenants;
    const int n = 1 + static_cast<int>(random() % 5);
    for (int i = 0; i < n; ++i) {
      Tenant t{};
      t.request = 1000000 / static_cast<uint32_t>(n);
      t.limit = random() % 3 == 0 ? std::max<uint32_t>(t.request, 100000 + random() % 900000) : 1000000;
      t.kernel = (20 + random() % 5000) * kUs;
      t.burst = (1 + random() % 50) * kMs;
      tenants.push_back(t);
    }
    VirtualGpu gpu({}, tenants);
    gpu.Run(25 * kSec);
    for (size_t i = 1; i < gpu.spans.size(); ++i) REQUIRE(gpu.spans[i].begin >= gpu.spans[i - 1].end);
    const auto e = gpu.Extremes(kSec, 25 * kSec, 10 * kSec);
    for (int i = 0; i < n; ++i) {
      const Tenant& t = tenants[static_cast<size_t>(i)];
      const double slack = static_cast<double>(t.burst + t.kernel) / static_cast<double>(10 * kSec) + 0.015;
      REQUIRE(e[static_cast<size_t>(i)].second <= t.limit / 1e6 + slack);
      REQUIRE(e[static_cast<size_t>(i)].first >= t.request / 1e6 - 0.03);
    }
  }
}

TEST_CASE("kernels that run beyond their lease are charged when they end") {
  Arbiter arbiter({});
  arbiter.SetClient(1, 500000, 1000000);
  arbiter.SetClient(2, 500000, 1000000);
  arbiter.Request(1, 7, 0, kSec);
  const auto grant = arbiter.Advance(kSec).front();
  CHECK(grant.lease == 104 * kMs);
  arbiter.Request(2, 8, 0, kSec);
  const auto after = arbiter.Advance(kSec + grant.lease);
  REQUIRE(after.size() == 2);  // a revocation, and a grant beside the kernel that runs on
  CHECK(after[0].kind == Arbiter::Action::Kind::kRevoke);
  CHECK(after[1].holder == 8);
  arbiter.Release(7, grant.id, 2 * kSec, 2 * kSec, 3 * kSec);
  CHECK(arbiter.Share(1, 3 * kSec) > 0.199);
  CHECK(arbiter.Share(1, 3 * kSec) < 0.201);
  arbiter.Release(7, grant.id, 2 * kSec, 2 * kSec, 3 * kSec);  // charged once
  CHECK(arbiter.Share(1, 3 * kSec) < 0.201);
}

TEST_CASE("two distributed jobs with a rank on each of two GPUs finish, since leases end while kernels run on") {
  // A rank's kernel ends once the kernel of the other rank has begun. Each job holds one GPU and waits for the other.
  Arbiter gpus[2] = {Arbiter({}), Arbiter({})};
  struct Rank {
    int round = 0;  // kernels begun
    bool requested = false, running = false;
    uint64_t id = 0;
  } ranks[2][2];  // job, GPU
  constexpr int kRounds = 20;
  for (auto& c : gpus) {
    c.SetClient(1, 500000, 1000000);
    c.SetClient(2, 500000, 1000000);
  }
  Nanos now = kSec;
  const auto done = [&] {
    for (const auto& job : ranks)
      for (const auto& r : job)
        if (r.round < kRounds || r.running) return false;
    return true;
  };
  // The worst order: job 0 requests GPU 0 first, job 1 GPU 1.
  for (; !done() && now < 300 * kSec; now += kMs) {
    for (int n = 0; n < 4; ++n) {
      const int gpu = n % 2, job = (n / 2 + gpu) % 2;
      Rank &r = ranks[job][gpu], &peer = ranks[job][1 - gpu];
      if (r.running && peer.round >= r.round) {  // both ranks have begun this round
        r.running = false;
        gpus[gpu].Release(static_cast<uint64_t>(job) + 1, r.id, kMs, kMs, now);
      }
      if (!r.running && !r.requested && r.round < kRounds) {
        r.requested = true;
        gpus[gpu].Request(static_cast<uint64_t>(job) + 1, static_cast<uint64_t>(job) + 1, kMs, now);
      }
    }
    for (int gpu = 0; gpu < 2; ++gpu) {
      for (const auto& a : gpus[gpu].Advance(now)) {
        if (a.kind == Arbiter::Action::Kind::kRevoke) continue;
        Rank& r = ranks[a.holder - 1][gpu];
        r.requested = false;
        r.running = true;
        r.id = a.id;
        ++r.round;
      }
    }
  }
  CHECK(done());
}
