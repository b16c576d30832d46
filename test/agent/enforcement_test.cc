// When shares need tokens: clients on a GPU whose driver gives each a part of its time.
#include <catch2/catch_test_macros.hpp>
#include <deque>
#include <numeric>
#include <utility>
#include <vector>

#include "agent/arbiter.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

namespace {

constexpr Nanos kMs = 1'000'000, kSec = 1000 * kMs;
constexpr Nanos kStep = 100 * kMs;  // hooks write their figures so often
constexpr int kTenSeconds = 100;    // steps

struct Client {
  uint32_t request;
  double by_tokens, by_driver;  // the share that it gets of the GPU's time
  double estimate;              // what samples show of it without tokens, with the others' time slices
  Nanos begin = 0, end = UINT64_MAX / 2;
  Nanos launch = 2 * kMs;     // the time that one takes alone
  std::vector<double> got{};  // the share in each step
  double late = 0;            // steps of estimates that samples do not show yet
};

class Gpu {
 public:
  explicit Gpu(std::vector<Client> clients) : clients(std::move(clients)) {
    for (size_t i = 0; i < this->clients.size(); ++i) arbiter.SetClient(i + 1, this->clients[i].request, 1000000);
  }

  void Run(Nanos until) {
    for (; now < kSec + until; now += kStep) {
      const bool demanded = arbiter.NeedsTokens(now);
      tokens.push_back(demanded);
      since_ = demanded ? 0 : since_ + kStep;
      for (size_t i = 0; i < clients.size(); ++i) {
        Client& c = clients[i];
        if (now < kSec + c.begin || now >= kSec + c.end) {
          c.got.push_back(0);
          continue;
        }
        const double share = demanded ? c.by_tokens : c.by_driver;
        c.got.push_back(share);
        c.late += demanded ? share : c.estimate;
        const auto launches = static_cast<uint64_t>(share * static_cast<double>(kStep) / static_cast<double>(c.launch));
        // The first round of samples behind tokens is over after two steps.
        const bool shown = demanded || since_ >= 2 * kStep;
        arbiter.Observe(i + 1, shown ? static_cast<Nanos>(c.late * kStep) : 0, launches, true, now);
        if (shown) c.late = 0;
      }
    }
  }

  // Of the steps between these, with tokens.
  double TokensBetween(Nanos from, Nanos to) const {
    return std::accumulate(tokens.begin() + static_cast<long>(from / kStep),
                           tokens.begin() + static_cast<long>(to / kStep), 0.0) *
           static_cast<double>(kStep) / static_cast<double>(to - from);
  }
  // The least share of a client over any 10 s.
  double Least(size_t client, Nanos from) const {
    const auto& got = clients[client].got;
    double least = 1;
    for (auto at = got.begin() + static_cast<long>(from / kStep); at + kTenSeconds <= got.end(); ++at)
      least = std::min(least, std::accumulate(at, at + kTenSeconds, 0.0) / kTenSeconds);
    return least;
  }
  int Trials() const {
    int n = 0;
    for (size_t i = 1; i < tokens.size(); ++i) n += tokens[i - 1] && !tokens[i];
    return n;
  }

  Arbiter arbiter{Arbiter::Policy{}};
  std::vector<Client> clients;
  std::vector<bool> tokens;
  Nanos now = kSec;

 private:
  Nanos since_ = 0;  // without tokens
};

}  // namespace

TEST_CASE("a client that begins beside a busy one of its size needs no tokens while the driver shares the GPU") {
  Gpu gpu({{500000, 0.5, 0.5, 1.0}, {500000, 0.5, 0.5, 1.0, 10 * kSec}});
  gpu.clients[0].by_driver = 1;  // alone
  gpu.Run(10 * kSec);
  gpu.clients[0].by_driver = 0.5;
  gpu.Run(19 * kSec);
  CHECK(gpu.TokensBetween(0, 19 * kSec) == 0);
}

TEST_CASE("two clients with gaps between their launches need no tokens, though both are below their requests") {
  Gpu gpu({{500000, 0.4, 0.45, 0.6}, {500000, 0.4, 0.44, 0.6}});
  gpu.Run(60 * kSec);
  CHECK(gpu.TokensBetween(0, 60 * kSec) < 0.03);
}

TEST_CASE("a GPU with spare time needs no tokens") {
  Gpu gpu({{500000, 0.1, 0.1, 0.1}, {500000, 0.5, 0.6, 0.6}});
  gpu.Run(60 * kSec);
  CHECK(gpu.TokensBetween(0, 60 * kSec) == 0);
}

TEST_CASE("estimates that exceed the GPU's time are scaled: a neighbour of three processes is seen") {
  Gpu gpu({{500000, 0.5, 0.75, 3.0}, {500000, 0.5, 0.25, 1.0}});
  gpu.Run(100 * kSec);
  CHECK(gpu.TokensBetween(0, kSec) > 0);
  CHECK(gpu.TokensBetween(10 * kSec, 100 * kSec) > 0.9);
  CHECK(gpu.Least(1, kSec) >= 0.48);
}

TEST_CASE("a trial without tokens ends as soon as the driver is unfair, and the next one comes later") {
  Gpu gpu({{500000, 0.5, 0.9, 0.9}, {500000, 0.5, 0.1, 0.1}});
  gpu.Run(400 * kSec);
  CHECK(gpu.Trials() >= 3);
  CHECK(gpu.Trials() <= 6);
  CHECK(gpu.Least(1, kSec) >= 0.48);
}

TEST_CASE("tokens end when the driver has become fair") {
  Gpu gpu({{500000, 0.5, 0.8, 0.8}, {500000, 0.5, 0.2, 0.2}});
  gpu.Run(15 * kSec);
  CHECK(gpu.TokensBetween(5 * kSec, 15 * kSec) > 0.9);
  for (Client& c : gpu.clients) c.by_driver = 0.5, c.estimate = 1;
  gpu.Run(200 * kSec);
  CHECK(gpu.TokensBetween(40 * kSec, 200 * kSec) == 0);
}

TEST_CASE("time that estimates miss is measured once after a window, and then seldom") {
  // The neighbour's kernels are so long that it gets nearly all of the time, and both always wait for the GPU.
  Gpu unfair(
      {{500000, 0.5, 0.8, 1.0, 0, UINT64_MAX / 2, 2 * kMs}, {500000, 0.5, 0.2, 1.0, 0, UINT64_MAX / 2, kMs / 5}});
  unfair.Run(300 * kSec);
  CHECK(unfair.TokensBetween(0, 10 * kSec) == 0);
  CHECK(unfair.TokensBetween(12 * kSec, 300 * kSec) > 0.95);
  CHECK(unfair.Least(1, 12 * kSec) >= 0.48);
  Gpu fair({{500000, 0.5, 0.5, 1.0}, {500000, 0.5, 0.5, 1.0}});
  fair.Run(300 * kSec);
  CHECK(fair.TokensBetween(0, 300 * kSec) > 0);
  CHECK(fair.TokensBetween(0, 300 * kSec) < 0.01);
}

TEST_CASE("a client that wants little beside one that wants all gets it without tokens") {
  Gpu gpu({{500000, 0.8, 0.9, 1.0}, {500000, 0.1, 0.1, 0.15}});
  gpu.Run(300 * kSec);
  CHECK(gpu.TokensBetween(0, 300 * kSec) < 0.03);
}

TEST_CASE("requests that differ have tokens at once and for good while both clients are busy") {
  Gpu gpu({{700000, 0.7, 0.5, 1.0}, {300000, 0.3, 0.5, 1.0, 5 * kSec}});
  gpu.clients[0].by_driver = 1;
  gpu.Run(5 * kSec);
  gpu.clients[0].by_driver = 0.5;
  gpu.Run(100 * kSec);
  CHECK(gpu.TokensBetween(5 * kSec + 400 * kMs, 100 * kSec) == 1);
  CHECK(gpu.Least(0, 0) >= 0.68);
  CHECK(gpu.Least(1, 5 * kSec) >= 0.28);
}

TEST_CASE("tokens end when one of two clients stops, or the GPU has spare time") {
  Gpu gpu({{700000, 0.7, 0.5, 1.0}, {300000, 0.3, 0.5, 1.0, 0, 20 * kSec}});
  gpu.Run(30 * kSec);
  CHECK(gpu.TokensBetween(kSec, 20 * kSec) == 1);
  CHECK(gpu.TokensBetween(22 * kSec, 30 * kSec) == 0);
  Gpu calm({{700000, 0.7, 0.5, 1.0}, {300000, 0.3, 0.5, 1.0}});
  calm.Run(20 * kSec);
  for (Client& c : calm.clients) c.by_tokens = c.by_driver = c.estimate = 0.2;
  calm.Run(40 * kSec);
  CHECK(calm.TokensBetween(25 * kSec, 40 * kSec) == 0);
}

namespace {

// llama.cpp's servers with four requests each, on an H200: prompts, and tokens whose batches are small or large. In
// turns they leave the GPU idle for more than half of the time.
void Serve(Gpu* gpu, Nanos from, Nanos until) {
  uint32_t random = 1;
  for (Nanos t = from + 500 * kMs; t <= until; t += 500 * kMs) {
    for (Client& c : gpu->clients) {
      random = random * 1664525 + 1013904223;
      c.estimate = 0.3 + 0.7 * (random >> 16) / 65536;
    }
    const double sum = gpu->clients[0].estimate + gpu->clients[1].estimate;
    for (Client& c : gpu->clients) c.by_driver = c.estimate / std::max(sum, 1.0);
    gpu->Run(t);
  }
}

}  // namespace

TEST_CASE("servers whose load changes from one half second to the next have tokens for a small part of the time") {
  Gpu gpu({{500000, 0.22, 0.5, 0.5}, {500000, 0.22, 0.5, 0.5}});
  Serve(&gpu, 0, 300 * kSec);
  CHECK(gpu.TokensBetween(0, 20 * kSec) < 0.15);
  CHECK(gpu.TokensBetween(20 * kSec, 300 * kSec) < 0.03);
}

TEST_CASE("a server that takes the other's time is seen within a window, though their loads have changed for long") {
  Gpu gpu({{500000, 0.22, 0.5, 0.5}, {500000, 0.22, 0.5, 0.5}});
  Serve(&gpu, 0, 100 * kSec);
  gpu.clients[0] = {500000, 0.5, 0.85, 0.85, 0, UINT64_MAX / 2, 2 * kMs, gpu.clients[0].got};
  gpu.clients[1] = {500000, 0.5, 0.15, 0.15, 0, UINT64_MAX / 2, 2 * kMs, gpu.clients[1].got};
  gpu.Run(200 * kSec);
  CHECK(gpu.TokensBetween(100 * kSec, 111 * kSec) > 0);
  CHECK(gpu.TokensBetween(112 * kSec, 200 * kSec) > 0.9);
}

TEST_CASE("a client that pauses under tokens, and takes all without them, leaves the other its due") {
  Gpu gpu({{500000, 0, 0.9, 0.9}, {500000, 0.4, 0.1, 0.1}});
  gpu.Run(300 * kSec);
  CHECK(gpu.Least(1, kSec) > 0.2);
}
