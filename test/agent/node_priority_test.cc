// Node, Ledger and Arbiter: opportunistic allocations, and the shares of the link.
#include <catch2/catch_test_macros.hpp>

#include "agent/link_shares.h"
#include "node_rig.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr Bytes kMin = 512ull << 20;

Config Metered() {
  Config config;
  config.link_metered = true;
  return config;
}

struct PriorityWorld : World {
  using World::World;
  void AllocateOpportunistic(const std::string& id, uint32_t units) {
    AllocationSpec spec;
    spec.id = id;
    spec.gpus = {{"GPU-a", units}};
    spec.settings.priority = sluice::settings::Priority::kOpportunistic;
    std::string error;
    REQUIRE(node.AddAllocation(spec, {}, &error));
  }
  void Works(SessionId s, Bytes live) {
    Follow(s, live);
    pages[s].heartbeat_ns = now;
  }
  void Token(SessionId s, uint16_t type, uint64_t id = 0) {
    sluice_frame f = FrameOf(type);
    std::strcpy(f.u.token.uuid, "GPU-a");
    f.u.token.id = id;
    node.Received(s, &f, sizeof(f), now);
    node.Settle();
  }
  const sluice_token* Last(SessionId s, uint16_t type) {
    const auto& sent = port.sent[s];
    for (auto f = sent.rbegin(); f != sent.rend(); ++f) {
      if (f->h.type == type) return &f->u.token;
    }
    return nullptr;
  }
  AllocationStatus Of(const std::string& id) {
    for (const AllocationStatus& a : node.Status().allocations) {
      if (a.id == id) return a;
    }
    return {};
  }
  std::vector<std::string> Kinds(const std::string& id) {
    std::vector<std::string> out;
    for (const Event& e : node.EventsAfter(0)) {
      if (e.allocation == id) out.push_back(e.kind);
    }
    return out;
  }
};

}  // namespace

TEST_CASE("an opportunistic container has no guarantee, and takes no units") {
  PriorityWorld w;
  w.Allocate("owner", 100);
  w.AllocateOpportunistic("guest", 50);
  CHECK(w.node.FreeUnits("GPU-a") == 0);
  CHECK(w.Of("guest").gpus[0].guaranteed == 0);
  CHECK(w.Of("guest").gpus[0].compute_request == 0);
  CHECK(w.Of("owner").gpus[0].guaranteed == 8 * kGiB);
  w.Attach(1, "guest");
  CHECK(w.port.Budget(1)->guaranteed_bytes == 4 * kGiB);  // memory queries report its size
  CHECK(w.port.Budget(1)->priority == SLUICE_PRIORITY_OPPORTUNISTIC);
  CHECK(w.port.Budget(1)->tokens == 1);
}

TEST_CASE("an opportunistic container gets memory that owners do not use, and gives it back when one wakes") {
  PriorityWorld w;
  w.Allocate("owner", 100);
  w.AllocateOpportunistic("guest", 50);
  w.Attach(1, "owner");
  w.Attach(2, "guest");
  for (int i = 0; i < 40; ++i) {  // the owner never launches
    w.pages[1].gpu[0].generation = w.port.Budget(1)->generation;
    std::strcpy(w.pages[1].gpu[0].uuid, "GPU-a");
    w.Works(2, 6 * kGiB);
    w.Pass(kSec / 20);
    REQUIRE(w.node.LedgerOf("GPU-a")->exposure() <= 8 * kGiB);
  }
  CHECK(w.port.Budget(2)->budget_bytes > 6 * kGiB);
  CHECK(w.Of("guest").held.empty());
  for (int i = 0; i < 60; ++i) {  // the owner wants all of it
    w.Works(1, 12 * kGiB);
    w.Works(2, 6 * kGiB);
    w.Pass(kSec / 20);
    REQUIRE(w.node.LedgerOf("GPU-a")->exposure() <= 8 * kGiB);
  }
  CHECK(w.port.Budget(1)->budget_bytes == 8 * kGiB);
  CHECK(w.port.Budget(2)->budget_bytes == 0);
  CHECK(w.Of("guest").held.starts_with("no memory of GPU GPU-a is lent: 0 B of the 512.0 MiB"));
}

TEST_CASE("guaranteed borrowers come before opportunistic ones, and less than the minimum is not lent to them") {
  Ledger ledger(8 * kGiB, {.lending = Lending::kIdle, .floor_percent = 10, .step = 1});
  ledger.SetGroup(1, 4 * kGiB, 50);
  ledger.SetGroup(2, 4 * kGiB, 50);
  ledger.SetOpportunistic(3, 50);
  for (MemberId m = 1; m <= 3; ++m) ledger.AddMember(m, m);
  const auto settle = [&](Bytes one, Bytes two, Bytes three) {
    const Bytes wanted[] = {one, two, three};
    for (int round = 0; round < 4; ++round) {
      for (MemberId m = 1; m <= 3; ++m) {
        const auto* view = ledger.Find(m);
        ledger.Update(m, {view->generation, std::min(view->budget, wanted[m - 1]), wanted[m - 1]});
      }
      (void)ledger.Plan();
      REQUIRE(ledger.exposure() <= 8 * kGiB);
    }
  };
  settle(kGiB, 6 * kGiB, 6 * kGiB);  // one lends 3 GiB: two takes 2, and the guest the rest
  CHECK(ledger.Find(2)->budget == 6 * kGiB);
  CHECK(ledger.Find(3)->budget == kGiB);
  settle(kGiB, 7 * kGiB - kMin / 2, 6 * kGiB);  // 256 MiB are left, less than the minimum
  CHECK(ledger.Find(3)->budget == 0);
  settle(kGiB, 7 * kGiB - kMin, 6 * kGiB);
  CHECK(ledger.Find(3)->budget == kMin);
}

TEST_CASE("opportunistic containers share the rest, and the youngest waits where it is too little for all") {
  Ledger ledger(8 * kGiB, {.lending = Lending::kOff, .floor_percent = 10, .step = 1});
  ledger.SetGroup(1, 6 * kGiB, 75);
  ledger.SetOpportunistic(2, 25);
  ledger.SetOpportunistic(3, 75);
  for (MemberId m = 1; m <= 3; ++m) ledger.AddMember(m, m);
  const auto settle = [&] {
    for (int round = 0; round < 4; ++round) {
      for (MemberId m = 1; m <= 3; ++m) {
        const auto* view = ledger.Find(m);
        ledger.Update(m, {view->generation, std::min<Bytes>(view->budget, 4 * kGiB), 4 * kGiB});
      }
      (void)ledger.Plan();
      REQUIRE(ledger.exposure() <= 8 * kGiB);
    }
  };
  settle();  // nothing is lent: only memory outside the guarantees
  CHECK(ledger.Find(1)->budget == 6 * kGiB);
  CHECK(ledger.Find(2)->budget == kMin);
  CHECK(ledger.Find(3)->budget == 3 * kMin);
  ledger.SetGroup(1, 8 * kGiB - kMin, 75);
  settle();
  CHECK(ledger.Find(2)->budget == kMin);
  CHECK(ledger.Find(3)->budget == 0);
}

TEST_CASE("an opportunistic container runs in idle time, and yields at the first request") {
  PriorityWorld w;
  w.Allocate("owner", 50);
  w.AllocateOpportunistic("guest", 50);
  w.Attach(1, "owner");
  w.Attach(2, "guest");
  w.Works(2, kGiB);
  w.Pass(kSec / 20);
  w.Works(2, kGiB);
  w.Pass(kSec / 20);
  REQUIRE(w.Of("guest").held.empty());
  w.Token(2, SLUICE_TOKEN_REQUEST);
  REQUIRE(w.Last(2, SLUICE_TOKEN_GRANT) != nullptr);
  const sluice_token alone = *w.Last(2, SLUICE_TOKEN_GRANT);
  w.Pass(kMillisecond);
  CHECK(w.port.Budget(1)->tokens == 1);  // so that the owner's first launch is seen at once
  w.Token(1, SLUICE_TOKEN_REQUEST);
  REQUIRE(w.Last(1, SLUICE_TOKEN_GRANT) != nullptr);
  REQUIRE(w.Last(2, SLUICE_TOKEN_REVOKE) != nullptr);
  CHECK(w.Last(2, SLUICE_TOKEN_REVOKE)->id == alone.id);
  w.Token(2, SLUICE_TOKEN_REQUEST);
  const auto grants = [&](SessionId s) {
    return std::ranges::count_if(w.port.sent[s], [](const auto& f) { return f.h.type == SLUICE_TOKEN_GRANT; });
  };
  for (int i = 0; i < 300; ++i) {  // the owner always has work
    w.Works(1, kGiB);
    w.Pass(10 * kMillisecond);
    w.Token(1, SLUICE_TOKEN_REQUEST);
    w.Token(1, SLUICE_TOKEN_RELEASE, w.Last(1, SLUICE_TOKEN_GRANT)->id);
  }
  CHECK(grants(2) == 1);
  CHECK(w.Of("guest").held == "GPU GPU-a has no idle time: guaranteed containers use it");
  CHECK(std::ranges::count(w.Kinds("guest"), "held") == 1);
  w.Token(1, SLUICE_TOKEN_RELEASE, w.Last(1, SLUICE_TOKEN_GRANT)->id);  // idle now
  CHECK(grants(2) == 2);
  CHECK(w.Last(2, SLUICE_TOKEN_GRANT)->quantum_ns == kMillisecond);  // the owner waits for its queued work
  w.Pass(kMillisecond);
  CHECK(w.Of("guest").held.empty());
  CHECK(std::ranges::count(w.Kinds("guest"), "resumed") == 1);
}

TEST_CASE("launches of an opportunistic container wait while it has no memory") {
  PriorityWorld w;
  w.Allocate("owner", 100);
  w.AllocateOpportunistic("guest", 50);
  w.Attach(1, "owner");
  const auto owner_works = [&] {
    for (int i = 0; i < 60; ++i) {
      w.Works(1, 12 * kGiB);
      w.Pass(kSec / 20);
    }
  };
  owner_works();
  w.Attach(2, "guest");
  w.Token(2, SLUICE_TOKEN_REQUEST);  // before its first launch
  owner_works();
  CHECK(w.Last(2, SLUICE_TOKEN_GRANT) == nullptr);
  CHECK(w.port.Budget(1)->tokens == 0);  // a guest that cannot run costs the owner nothing
  for (int i = 0; i < 300; ++i) {        // the owner is idle
    w.pages[1].gpu[0].generation = w.port.Budget(1)->generation;
    w.pages[1].gpu[0].resident_bytes = std::min(w.pages[1].gpu[0].resident_bytes, w.port.Budget(1)->budget_bytes);
    w.pages[2].gpu[0].generation = w.port.Budget(2)->generation;
    w.Pass(kSec / 20);
  }
  CHECK(w.port.Budget(2)->budget_bytes >= kMin);
  CHECK(w.Last(2, SLUICE_TOKEN_GRANT) != nullptr);
}

TEST_CASE("an opportunistic container has a small part of a link that others use") {
  PriorityWorld w(Metered());
  w.Allocate("owner", 50);
  w.AllocateOpportunistic("guest", 50);
  w.Attach(1, "owner");
  w.Attach(2, "guest");
  const auto moves = [&](double owner_gbps, double guest_gbps) {
    for (int i = 0; i < 60; ++i) {
      w.Works(1, 6 * kGiB);
      w.Works(2, 6 * kGiB);
      w.pages[1].gpu[0].fetched_bytes += static_cast<Bytes>(owner_gbps * 1e8);
      w.pages[2].gpu[0].evicted_bytes += static_cast<Bytes>(guest_gbps * 1e8);
      w.Pass(100 * kMillisecond);
    }
  };
  moves(0, 20);
  CHECK(w.port.Budget(2)->link_bytes_per_s == 0);  // no one else uses it
  moves(2.5, 20);                                  // a tenth of 25 GB/s
  CHECK(w.port.Budget(2)->link_bytes_per_s > 6'000'000'000);
  CHECK(w.port.Budget(2)->link_bytes_per_s < 8'000'000'000);
  CHECK(w.port.Budget(1)->link_bytes_per_s == 0);
  moves(25, 1);
  CHECK(w.port.Budget(2)->link_bytes_per_s < 1'000'000'000);
  CHECK(w.port.Budget(2)->link_bytes_per_s >= 250'000'000);
  moves(0, 1);
  moves(0, 1);
  CHECK(w.port.Budget(2)->link_bytes_per_s == 0);
}

TEST_CASE("a container's part of a link is split among its processes that use it") {
  PriorityWorld w(Metered());
  w.Allocate("owner", 50);
  w.AllocateOpportunistic("guest", 50);
  w.Attach(1, "owner");
  for (SessionId s = 2; s <= 4; ++s) w.Attach(s, "guest");
  const auto moves = [&](std::vector<SessionId> users) {
    for (int i = 0; i < 60; ++i) {
      for (SessionId s = 1; s <= 4; ++s) w.Works(s, kGiB);
      w.pages[1].gpu[0].fetched_bytes += 250'000'000;
      for (const SessionId s : users) w.pages[s].gpu[0].evicted_bytes += 2'000'000'000 / users.size();
      w.Pass(100 * kMillisecond);
    }
    return w.port.Budget(2)->link_bytes_per_s;
  };
  const Bytes alone = moves({2});
  CHECK(alone > 6'000'000'000);
  CHECK(w.port.Budget(4)->link_bytes_per_s <= alone / 2 + 1);  // one that begins finds the others at work
  w.node.ApplyLive("guest", {{"memory-factor", "70"}});        // each gets a budget
  w.node.Settle();
  moves({2, 3});
  w.node.ApplyLive("guest", {{"memory-factor", "80"}});
  w.node.Settle();
  CHECK(w.port.Budget(2)->link_bytes_per_s == w.port.Budget(3)->link_bytes_per_s);
  CHECK(w.port.Budget(2)->link_bytes_per_s < alone * 6 / 10);
  CHECK(w.port.Budget(2)->link_bytes_per_s > alone * 4 / 10);
  CHECK(w.port.Budget(4)->link_bytes_per_s < alone * 4 / 10);
}

TEST_CASE("shares of a full link follow the weights, and none is metered below its use of an idle one") {
  LinkShares link;
  link.SetCapacity(20'000'000'000, true);
  const std::vector<LinkShares::Member> members = {{1, 75, false}, {2, 25, false}};
  uint64_t now = kSec;
  const auto plan = [&](double one, double two) {
    for (int i = 0; i < 12; ++i) {
      link.Use(1, static_cast<Bytes>(one * 1e9));
      link.Use(2, static_cast<Bytes>(two * 1e9));
      link.Plan(members, now += kSec);
    }
  };
  plan(9, 6);
  CHECK(link.Rate(1) == 0);
  CHECK(link.Rate(2) == 0);
  plan(12, 12);
  CHECK(link.Rate(1) == 0);  // it uses less than its part
  CHECK(link.Rate(2) < 9'000'000'000);
  CHECK(link.Rate(2) >= 5'000'000'000);
  plan(20, 0);  // alone, it may use it all
  CHECK(link.Rate(1) == 0);
}
