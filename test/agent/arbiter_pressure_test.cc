// While working sets exceed the GPU's memory: time slices, and the memory that follows them.
#include <catch2/catch_test_macros.hpp>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "agent/arbiter.h"
#include "arbiter_rig.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

TEST_CASE("under pressure three tenants get long time slices in turn") {
  VirtualGpu gpu({}, {{333333, 1000000, 10 * kMs, 60 * kSec},
                      {333333, 1000000, 10 * kMs, 60 * kSec},
                      {333333, 1000000, 10 * kMs, 60 * kSec}});
  gpu.arbiter.SetPressure(true, kSec);
  gpu.Run(120 * kSec);
  const auto e = gpu.Extremes(31 * kSec, 120 * kSec, 30 * kSec);
  for (const auto& [least, most] : e) {
    CHECK(least > 0.3);
    CHECK(most < 0.37);
  }
  CHECK(gpu.spans.size() < 20);  // slices of ten seconds
}

TEST_CASE("under pressure a client that wakes ends a long time slice, one that always works does not") {
  Arbiter arbiter({});
  arbiter.SetClient(1, 500000, 1000000);
  arbiter.SetClient(2, 500000, 1000000);
  // The first client had the GPU alone, without tokens. The second one wakes, and together they exceed its memory.
  // Samples gave the first one's time: they may have missed a quarter.
  for (Nanos now = kSec; now <= 10 * kSec; now += 100 * kMs) arbiter.Observe(1, 75 * kMs, 0, true, now);
  arbiter.SetPressure(true, 300 * kMs);
  Nanos now = 10 * kSec;
  arbiter.Request(1, 11, 20 * kMs, now);
  auto actions = arbiter.Advance(now);
  REQUIRE((actions.size() == 1 && actions[0].holder == 11));
  CHECK(actions[0].quantum > 5 * kSec);
  const uint64_t first = actions[0].id;
  now += 10 * kMs;
  arbiter.Request(2, 22, 20 * kMs, now);
  CHECK(*arbiter.NextWake(now) <= now);
  actions = arbiter.Advance(now);
  REQUIRE(actions.size() == 2);
  CHECK((actions[0].kind == Arbiter::Action::Kind::kRevoke && actions[0].holder == 11));
  CHECK((actions[1].kind == Arbiter::Action::Kind::kGrant && actions[1].holder == 22));
  arbiter.Release(11, first, 10 * kMs, 20 * kMs, now);
  // The first client had more than its share: now it waits for the end of the slice.
  arbiter.Request(1, 11, 20 * kMs, now);
  const uint64_t second = actions[1].id;
  const Nanos quantum = actions[1].quantum;
  for (const Nanos end = now + quantum; now < end; now += 100 * kMs) CHECK(arbiter.Advance(now).empty());
  arbiter.Release(22, second, quantum, 20 * kMs, now);
  arbiter.Request(2, 22, 20 * kMs, now);
  actions = arbiter.Advance(now);
  REQUIRE((actions.size() == 1 && actions[0].holder == 11));
  // So does the second one, which has just had its slice.
  for (const Nanos end = now + actions[0].quantum; now < end; now += 100 * kMs) CHECK(arbiter.Advance(now).empty());
}

TEST_CASE("under pressure a time slice lasts at least eight times its switch") {
  Arbiter arbiter({});
  arbiter.SetClient(1, 500000, 1000000);
  arbiter.SetClient(2, 500000, 1000000);
  arbiter.SetPressure(true, 300 * kMs);
  Nanos now = 10 * kSec;
  arbiter.Request(1, 11, 20 * kMs, now);
  REQUIRE(arbiter.Advance(now).size() == 1);
  arbiter.Request(2, 22, 20 * kMs, now + kMs);
  CHECK(*arbiter.NextWake(now + kMs) == now + 2400 * kMs);
  CHECK(arbiter.Advance(now + 2400 * kMs - kMs).empty());
  CHECK(arbiter.Advance(now + 2400 * kMs).size() == 2);
}

TEST_CASE("under pressure a client that pauses yields to resident clients until their memory has paid for its fetch") {
  Arbiter arbiter({});
  for (uint64_t c = 1; c <= 3; ++c) arbiter.SetClient(c, 333333, 1000000);
  arbiter.SetPressure(true, 100 * kMs);
  Nanos now = 100 * kSec;
  const auto slice = [&](bool pauses) {
    const auto actions = arbiter.Advance(now);
    REQUIRE(actions.size() == 1);
    const uint64_t holder = actions[0].holder;
    now += 200 * kMs;
    if (!pauses) arbiter.Request(holder, holder, 0, now);
    arbiter.Release(holder, actions[0].id, 200 * kMs, 0, now);
    if (pauses) arbiter.Request(holder, holder, 0, now);
    return holder;
  };
  for (uint64_t c = 1; c <= 3; ++c) arbiter.Request(c, c, 0, now);
  CHECK(slice(true) == 1);
  arbiter.SetResident({2, 1}, now);
  // The third client waits until its fetch costs at most a quarter of the time.
  const Nanos paid = now + 400 * kMs;
  for (uint64_t expected = 2; now < paid; expected = 3 - expected) REQUIRE(slice(true) == expected);
  CHECK(slice(true) == 3);
  // Clients that always work go in turn, resident or not.
  arbiter.SetResident({1, 3}, now);
  const uint64_t first = slice(false), second = slice(false), third = slice(false);
  CHECK((first != second && second != third && third != first));
}

TEST_CASE("under pressure a client waits for at most one switch to each other client") {
  constexpr Nanos kStep = 10 * kMs;
  struct Pausing {
    Nanos work = 0, pause = 0;      // they alternate; pause 0: always has work
    Nanos left = 0, wakes = kSec;   // of the work; when it begins again
    Nanos waits_since = 0;          // waits since then; 0: it does not wait
    std::map<uint64_t, int> ahead;  // switches to each other client meanwhile
  };
  std::mt19937 random(11);
  for (int run = 0; run < 100; ++run) {
    Arbiter arbiter({});
    const size_t n = 2 + random() % 6, places = 1 + random() % (n - 1);
    const Nanos cost = (20 + random() % 600) * kMs;
    std::vector<Pausing> all(n + 1);  // from 1, as the clients
    for (uint64_t c = 1; c <= n; ++c) {
      arbiter.SetClient(c, static_cast<uint32_t>(1000000 / n), 1000000);
      all[c].work = all[c].left = (100 + random() % 4000) * kMs;
      all[c].pause = random() % 4 == 0 ? 0 : (50 + random() % 3000) * kMs;  // 0: always has work
    }
    arbiter.SetPressure(true, cost);
    std::vector<uint64_t> resident;
    uint64_t holder = 0, id = 0;
    Nanos now = kSec, since = 0, begins = 0, quantum = 0, longest_slice = 0, longest_wait = 0;
    const auto request = [&](uint64_t c) {
      arbiter.Request(c, c, 0, now);
      all[c].waits_since = now;
      all[c].ahead.clear();
    };
    const auto end = [&](bool pauses) {
      if (!pauses) request(holder);
      arbiter.Release(holder, id, now - since, 0, now);
      longest_slice = std::max(longest_slice, now - since);
      holder = 0;
    };
    for (; now < 200 * kSec; now += kStep) {
      for (uint64_t c = 1; c <= n; ++c) {
        if (c != holder && all[c].waits_since == 0 && now >= all[c].wakes) request(c);
      }
      if (holder != 0 && now >= begins) {
        Pausing& h = all[holder];
        h.left -= std::min(h.left, kStep);
        const bool pauses = h.left == 0 && h.pause > 0;
        if (pauses || now - since >= quantum) {
          if (h.left == 0) h.left = h.work;
          if (pauses) h.wakes = now + h.pause;
          end(pauses);
        }
      }
      for (const Arbiter::Action& a : arbiter.Advance(now)) {
        if (a.kind == Arbiter::Action::Kind::kRevoke) {
          end(false);
          continue;
        }
        holder = a.holder;
        id = a.id;
        quantum = a.quantum;
        since = begins = now;
        longest_wait = std::max(longest_wait, now - std::exchange(all[holder].waits_since, 0));
        // As Node::ChooseResident(): the clients whose slices are longest ago stay.
        const bool was_resident = std::erase(resident, holder) > 0;
        if (resident.size() > places - 1) resident.resize(places - 1);
        resident.push_back(holder);
        if (was_resident) continue;
        begins = now + cost;
        arbiter.SetResident(resident, now);
        for (uint64_t c = 1; c <= n; ++c) {
          if (all[c].waits_since != 0) REQUIRE(++all[c].ahead[holder] == 1);
        }
      }
    }
    INFO("run " << run << ": " << n << " tenants, " << places << " resident, a switch costs " << cost / kMs
                << " ms; longest slice " << longest_slice / kMs << " ms, wait " << longest_wait / kMs);
    REQUIRE(longest_slice > 0);
    REQUIRE(longest_wait <= n * (4 * cost + longest_slice));
  }
}
