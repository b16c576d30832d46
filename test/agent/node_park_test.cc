// Node: parked allocations.
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "node_rig.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kMillisecond = 1'000'000;
constexpr Bytes kUnmanaged = 300ull << 20;

struct ParkWorld : World {
  using World::World;
  // The process follows its newest budget, and launches nothing.
  void Idle(SessionId s, Bytes live, Bytes plain = kUnmanaged) {
    const sluice_budget* b = port.Budget(s);
    sluice_gpu_slot& c = pages[s].gpu[0];
    std::strcpy(c.uuid, "GPU-a");
    c.live_bytes = live;
    c.unmanaged_bytes = plain;
    pages[s].heartbeat_ns = now;
    if (b == nullptr) return;
    c.generation = b->generation;
    c.budget_bytes = b->budget_bytes;
    c.resident_bytes = std::min(live, b->budget_bytes > plain ? b->budget_bytes - plain : 0);
    pages[s].parked = b->parked;
  }
  void Works(SessionId s, Bytes live, Bytes plain = kUnmanaged) {
    ++pages[s].gpu[0].launches;
    Idle(s, live, plain);
  }
  // NOLINTNEXTLINE(bugprone-derived-method-shadowing-base-method): with a check
  void Pass(uint64_t ns) {
    World::Pass(ns);
    REQUIRE(node.LedgerOf("GPU-a")->exposure() <= 8 * kGiB);
  }
  bool ParkIt(const std::string& id) {
    const bool done = node.ParkNow(id, "sluice park", now, &error);
    node.Settle();
    return done;
  }
  bool WakeIt(const std::string& id) {
    const bool done = node.Wake(id, now, &error);
    node.Settle();
    return done;
  }
  void AskForToken(SessionId s) {
    sluice_frame f = FrameOf(SLUICE_TOKEN_REQUEST);
    std::strcpy(f.u.token.uuid, "GPU-a");
    node.Received(s, &f, sizeof(f), now);
    node.Settle();
  }
  AllocationStatus Of(const std::string& id) {
    for (const AllocationStatus& a : node.Status().allocations) {
      if (a.id == id) return a;
    }
    return {};
  }
  std::string State(const std::string& id) { return Of(id).park.state; }
  std::vector<std::string> Texts(const std::string& kind) {
    std::vector<std::string> out;
    for (const Event& e : node.EventsAfter(0)) {
      if (e.kind == kind) out.push_back(e.text);
    }
    return out;
  }
  // Two halves, both full. The first one has not launched for a while, but keeps the floor.
  void Halves() {
    Allocate("one", 50);
    Allocate("two", 50);
    Attach(1, "one");
    Attach(2, "two");
    for (int i = 0; i < 40; ++i) {
      Works(1, 4 * kGiB);
      Works(2, 7 * kGiB);
      Pass(50 * kMillisecond);
    }
  }
  void Rest(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      Idle(1, 4 * kGiB);
      Works(2, 7 * kGiB);
      Pass(50 * kMillisecond);
    }
  }
  std::string error;
};

}  // namespace

TEST_CASE("a parked container lends all but its pinned bytes, and its launches need a token") {
  ParkWorld w;
  w.Halves();
  REQUIRE(w.port.Budget(1)->budget_bytes == 4 * kGiB);
  REQUIRE(w.port.Budget(1)->tokens == 0);
  REQUIRE(w.ParkIt("one"));
  CHECK(w.port.Budget(1)->budget_bytes == kUnmanaged);
  CHECK(w.port.Budget(1)->parked == 1);
  CHECK(w.port.Budget(1)->tokens == 1);
  CHECK(w.port.Budget(2)->parked == 0);
  CHECK(w.port.Budget(2)->tokens == 0);
  CHECK(w.State("one") == "parking");
  w.Rest(10);
  CHECK(w.State("one") == "parked");
  CHECK(w.Of("one").park.unmanaged == kUnmanaged);
  CHECK(w.Of("one").park.resident == 0);
  CHECK(w.port.Budget(2)->budget_bytes >= 7 * kGiB);  // beyond the floor that an idle container keeps
  CHECK(w.Of("one").gpus[0].guaranteed == 4 * kGiB);  // memory queries see no change
  CHECK(w.port.Budget(1)->guaranteed_bytes == 4 * kGiB);
  REQUIRE(w.Texts("parked").size() == 1);
  CHECK(w.Texts("parked")[0].starts_with("by sluice park: 3.7 GiB left the GPU in "));
  CHECK(w.Texts("parked")[0].ends_with("300.0 MiB of unmanaged memory and 0 B of contexts stay"));
  CHECK(w.Texts("woken").empty());
  w.Rest(200);
  CHECK(w.State("one") == "parked");
  CHECK(w.Texts("reclaim late").empty());
}

TEST_CASE("the next launch, an allocation or a command wakes a parked container, and its guarantee returns") {
  ParkWorld w;
  w.Halves();
  REQUIRE(w.ParkIt("one"));
  w.Rest(10);
  REQUIRE(w.State("one") == "parked");
  const std::string by = GENERATE(as<std::string>{}, "token", "launch", "allocation", "command");
  if (by == "token") {
    w.port.sent[1].clear();
    w.AskForToken(1);
    // The budget is there before the token, so that the launch finds it.
    REQUIRE(w.port.sent[1].size() >= 2);
    CHECK(w.port.sent[1].front().h.type == SLUICE_BUDGET);
    CHECK(w.port.sent[1].back().h.type == SLUICE_TOKEN_GRANT);
    CHECK(w.Texts("woken")[0].starts_with("by pid 101, parked for 0."));
  } else if (by == "launch") {
    ++w.pages[1].gpu[0].launches;
    w.Pass(50 * kMillisecond);
  } else if (by == "allocation") {
    w.Idle(1, 4 * kGiB + 1);
    w.Pass(50 * kMillisecond);
  } else {
    CHECK(w.WakeIt("one"));
    CHECK(w.Texts("woken")[0].starts_with("by sluice wake, parked for 0."));
  }
  CHECK(w.State("one").empty());
  CHECK(w.port.Budget(1)->parked == 0);
  CHECK(w.port.Budget(1)->tokens == 0);
  CHECK(w.Of("one").park.wakes == 1);
  const uint64_t began = w.now;
  while (w.port.Budget(1)->budget_bytes < 4 * kGiB) {  // as fast as the borrower follows
    w.Works(1, 4 * kGiB);
    w.Works(2, 7 * kGiB);
    w.Pass(10 * kMillisecond);
    REQUIRE(w.now - began < 200 * kMillisecond);
  }
  CHECK_FALSE(w.WakeIt("one"));
  CHECK(w.error == "one is not parked");
}

TEST_CASE("a launch while a container leaves the GPU keeps it there") {
  ParkWorld w;
  w.Halves();
  REQUIRE(w.ParkIt("one"));
  CHECK_FALSE(w.ParkIt("one"));
  CHECK(w.error == "one is being parked already: by sluice park");
  w.AskForToken(1);
  CHECK(w.State("one").empty());
  CHECK(w.Texts("parked").empty());
  CHECK(w.Texts("woken")[0].starts_with("by pid 101, before it was parked, after 0.00 s"));
  CHECK(w.port.Budget(1)->budget_bytes == 4 * kGiB);
  REQUIRE(w.ParkIt("one"));
  w.Rest(10);
  CHECK_FALSE(w.ParkIt("one"));
  CHECK(w.error == "one is parked already: by sluice park");
}

TEST_CASE("a launch from before the process follows does not wake it") {
  ParkWorld w;
  w.Halves();
  REQUIRE(w.ParkIt("one"));
  ++w.pages[1].gpu[0].launches;  // the page showed it late
  w.Pass(10 * kMillisecond);
  CHECK(w.State("one") == "parking");
  ++w.pages[1].gpu[0].launches;
  w.Idle(1, 4 * kGiB);
  w.Pass(10 * kMillisecond);
  CHECK(w.State("one") == "parked");
  w.Idle(1, kGiB);  // it frees memory
  w.Pass(10 * kMillisecond);
  CHECK(w.State("one") == "parked");
  w.Idle(1, 2 * kGiB);
  w.Pass(10 * kMillisecond);
  CHECK(w.State("one").empty());
}

TEST_CASE("memory that queued work uses puts the parking off, and it is said") {
  ParkWorld w;
  w.Halves();
  REQUIRE(w.ParkIt("one"));
  for (int i = 0; i < 40; ++i) {
    w.Idle(1, 4 * kGiB);
    w.pages[1].gpu[0].resident_bytes = kGiB;
    w.Works(2, 7 * kGiB);
    w.Pass(50 * kMillisecond);
  }
  CHECK(w.State("one") == "parking");
  CHECK(w.Of("one").park.waits == "1.0 GiB are in use by work that is queued; they leave when it ends");
  CHECK(w.Texts("park put off") == std::vector<std::string>{w.Of("one").park.waits});
  CHECK(w.Texts("reclaim late").empty());
  w.Rest(2);
  CHECK(w.State("one") == "parked");
  CHECK(w.Of("one").park.waits.empty());
}

TEST_CASE("a container without work is parked after its time, whatever processes only attach") {
  ParkWorld w;
  w.Halves();
  std::map<std::string, std::string> live;
  REQUIRE(w.node.CheckSet("one", {{"park-after", "5s"}}, &live, &w.error));
  w.node.ApplyLive("one", live);
  CHECK_FALSE(w.node.CheckSet("one", {{"park-after", "5"}}, &live, &w.error));
  CHECK(w.error ==
        "park-after: '5' is not accepted; accepted: off, or whole hours, minutes and seconds up to 720h, as 10m");
  for (int i = 0; i < 80; ++i) {  // now and then a launch
    if (i % 40 == 0) w.Works(1, 4 * kGiB);
    w.Rest(1);
    REQUIRE(w.State("one").empty());
  }
  w.Attach(3, "one");  // a probe
  w.node.Closed(3, w.now);
  w.Rest(80);
  CHECK(w.State("one") == "parked");
  CHECK(w.Of("one").park.reason == "park-after=5s");
  w.AskForToken(1);
  w.Works(1, 4 * kGiB);
  w.Rest(60);
  CHECK(w.State("one").empty());
  w.Rest(60);
  CHECK(w.State("one") == "parked");
  CHECK(w.Of("one").park.parks == 2);
}

TEST_CASE("all processes of a container are parked together, and one launch wakes them") {
  ParkWorld w;
  w.Allocate("one", 50);
  w.Attach(1, "one");
  w.Attach(2, "one");
  const auto rest = [&](SessionId but) {
    for (SessionId s : {1, 2}) {
      if (s != but) w.Idle(s, kGiB);
    }
    w.Pass(50 * kMillisecond);
  };
  for (int i = 0; i < 4; ++i) rest(0);
  REQUIRE(w.ParkIt("one"));
  rest(2);
  CHECK(w.State("one") == "parking");  // the second one has not followed yet
  rest(0);
  CHECK(w.State("one") == "parked");
  CHECK(w.Of("one").park.unmanaged == 2 * kUnmanaged);
  w.AskForToken(2);
  CHECK(w.port.Budget(1)->parked == 0);
  CHECK(w.port.Budget(2)->parked == 0);
  rest(0);
  REQUIRE(w.ParkIt("one"));
  rest(0);
  rest(0);
  REQUIRE(w.State("one") == "parked");
  w.node.Closed(1, w.now);  // killed: the other one stays parked
  rest(1);
  CHECK(w.State("one") == "parked");
  w.node.Closed(2, w.now);
  CHECK(w.State("one").empty());  // the next process begins awake
  w.Attach(3, "one");
  CHECK(w.port.Budget(3)->parked == 0);
}

TEST_CASE("an unknown, an empty and an old container cannot be parked") {
  ParkWorld w;
  w.Halves();
  std::string id;
  CHECK_FALSE(w.node.ResolveId("three", &id, &w.error));
  CHECK(w.error == "id: 'three' is unknown; accepted: one, two");
  CHECK(w.node.ResolveId("102", &id, &w.error));  // a process
  CHECK(id == "two");
  w.node.SetPod("one", {"team", "server", "main", {}});
  for (const char* name : {"team/server", "team/server/main", "on"}) {
    CHECK(w.node.ResolveId(name, &id, &w.error));
    CHECK(id == "one");
  }
  w.node.SetPod("two", {"team", "server", "side", {}});
  CHECK_FALSE(w.node.ResolveId("team/server", &id, &w.error));
  CHECK(w.error == "id: 'team/server' is the name of several allocations; accepted: one, two");
  CHECK(w.node.ResolveId("team/server/side", &id, &w.error));
  CHECK(id == "two");
  w.Allocate("three", 0);
  CHECK_FALSE(w.ParkIt("three"));
  CHECK(w.error == "three has no attached process: it has nothing on a GPU");
  w.node.Opened(4, "three", 104, &w.pages[4], w.now);
  sluice_frame f = FrameOf(SLUICE_HELLO);
  f.h.minor = SLUICE_MINOR_PARK - 1;
  std::strcpy(f.u.hello.version, "0.1.0");
  w.node.Received(4, &f, sizeof(f), w.now);
  w.node.Settle();
  CHECK_FALSE(w.ParkIt("three"));
  CHECK(w.error == "three: pid 104 has hook 0.1.0, which cannot be parked: restart the container with a newer one");
  CHECK(w.State("three").empty());
}

TEST_CASE("a restarted agent finds its parked containers parked, unless they worked meanwhile") {
  ParkWorld w;
  w.Allocate("one", 50);
  w.Allocate("two", 50);
  w.node.RecoverUntil(w.now + kSec);
  const bool worked = GENERATE(false, true);
  // Without an agent the process gave itself its guarantee; the neighbour still holds the lent memory.
  w.Attach(1, "one", SLUICE_HELLO_RETURNING);
  w.Attach(2, "two", SLUICE_HELLO_RETURNING);
  for (const SessionId s : {1, 2}) std::strcpy(w.pages[s].gpu[0].uuid, "GPU-a");
  w.pages[1].gpu[0].budget_bytes = 4 * kGiB;
  w.pages[1].gpu[0].live_bytes = 3 * kGiB;
  w.pages[1].gpu[0].unmanaged_bytes = kUnmanaged;
  w.pages[1].parked = worked ? 0 : 1;
  w.pages[2].gpu[0].budget_bytes = w.pages[2].gpu[0].live_bytes = w.pages[2].gpu[0].resident_bytes = 7 * kGiB;
  const sluice_frame pong = FrameOf(SLUICE_PONG);
  for (const SessionId s : {1, 2}) {
    w.node.Received(s, &pong, sizeof(pong), w.now);
    w.node.Settle();
  }
  REQUIRE(w.port.Budget(1) != nullptr);
  if (worked) {
    CHECK(w.State("one").empty());
    CHECK(w.port.Budget(1)->parked == 0);
    return;
  }
  CHECK(w.State("one") == "parking");
  CHECK(w.port.Budget(1)->parked == 1);
  CHECK(w.port.Budget(1)->budget_bytes == kUnmanaged);
  CHECK(w.node.LedgerOf("GPU-a")->exposure() >= 7 * kGiB + kUnmanaged);  // the neighbour's bytes are known
  for (int i = 0; i < 30; ++i) {
    w.Idle(1, 3 * kGiB);
    w.Works(2, 7 * kGiB, 0);
    w.Pass(50 * kMillisecond);
  }
  CHECK(w.State("one") == "parked");
  CHECK(w.Of("one").park.reason == "the agent before its restart");
}

TEST_CASE("a parked opportunistic container holds no one up, and waits for lent memory when it wakes") {
  ParkWorld w;
  w.Allocate("owner", 50);
  AllocationSpec spec;
  spec.id = "guest";
  spec.gpus = {{"GPU-a", 50}};
  spec.settings.priority = sluice::settings::Priority::kOpportunistic;
  REQUIRE(w.node.AddAllocation(spec, {}, &w.error));
  w.Attach(1, "owner");
  w.Attach(2, "guest");
  const auto rest = [&](int rounds) {
    for (int i = 0; i < rounds; ++i) {
      w.Works(1, 4 * kGiB, 0);
      w.Idle(2, 2 * kGiB);
      w.Pass(50 * kMillisecond);
    }
  };
  rest(40);
  REQUIRE(w.port.Budget(2)->budget_bytes > kGiB);
  REQUIRE(w.ParkIt("guest"));
  rest(60);
  CHECK(w.State("guest") == "parked");
  CHECK(w.port.Budget(2)->budget_bytes == kUnmanaged);
  CHECK(w.Of("guest").held.empty());
  w.AskForToken(2);
  rest(20);
  CHECK(w.State("guest").empty());
  CHECK(w.port.Budget(2)->budget_bytes > kGiB);
}
