// Node: processes, allocations, ledgers.
#include <catch2/catch_test_macros.hpp>
#include <random>

#include "node_rig.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

TEST_CASE("the page of a returning process is read before any budget is sent, and new processes wait for that") {
  World w;
  w.Allocate("x", 50);
  w.Allocate("y", 50);
  w.node.RecoverUntil(w.now + kSec);
  w.Attach(1, "x");
  CHECK(w.port.Budget(1) == nullptr);  // new, and others may still hold its bytes
  w.Attach(2, "y", SLUICE_HELLO_RETURNING);
  CHECK(w.port.Budget(2) == nullptr);  // PING asks for its page
  REQUIRE(w.port.sent[2].back().h.type == SLUICE_PING);
  std::strcpy(w.pages[2].gpu[0].uuid, "GPU-a");
  w.pages[2].gpu[0].budget_bytes = 6 * kGiB;
  w.pages[2].gpu[0].live_bytes = 6 * kGiB;
  const sluice_frame pong = FrameOf(SLUICE_PONG);
  w.node.Received(2, &pong, sizeof(pong), w.now);
  w.node.Settle();
  REQUIRE(w.port.Budget(2) != nullptr);
  w.Pass(2 * kSec);
  REQUIRE(w.port.Budget(1) != nullptr);
  CHECK(w.port.Budget(1)->budget_bytes <= 2 * kGiB);  // the rest follows when process 2 has returned it
  for (int i = 0; i < 20; ++i) {
    w.Follow(1, 4 * kGiB);
    w.Follow(2, 6 * kGiB);
    w.Pass(kSec / 10);
    REQUIRE(w.node.LedgerOf("GPU-a")->exposure() <= 8 * kGiB);
  }
  CHECK(w.port.Budget(1)->budget_bytes == 4 * kGiB);
  CHECK(w.port.Budget(2)->budget_bytes == 4 * kGiB);
}

TEST_CASE("a removed allocation keeps its share until its last process ends") {
  World w;
  w.Allocate("x", 100);
  w.Attach(1, "x");
  w.node.RemoveAllocation("x");
  CHECK_FALSE(w.node.HasAllocation("x"));
  CHECK(w.node.LedgerOf("GPU-a")->budgets() == 8 * kGiB);
  CHECK(w.node.FreeUnits("GPU-a") == 0);
  w.Attach(2, "x");
  CHECK(w.port.closed.contains(2));
  w.node.Closed(1, w.now);
  CHECK(w.node.LedgerOf("GPU-a")->budgets() == 0);
  CHECK(w.node.FreeUnits("GPU-a") == 100);
  CHECK(w.node.sessions() == 0);
}

TEST_CASE("contexts, code and other processes reduce the capacity, and the guarantees shrink with it") {
  World w;
  w.node.SetCards({{"GPU-a", "A", 8 * kGiB, kGiB, -1}});  // the driver reserves 1 GiB
  w.Allocate("x", 50);
  w.Attach(1, "x");  // pid 101
  w.Pass(kSec);
  REQUIRE(w.port.Budget(1) != nullptr);
  CHECK(w.port.Budget(1)->guaranteed_bytes == 7 * kGiB / 2);
  // Its context takes half a GiB, an external process a whole one.
  w.Follow(1, 2 * kGiB);
  w.pages[1].gpu[0].unmanaged_bytes = kGiB;
  w.node.SetProcesses("GPU-a", {{101, kGiB + kGiB / 2}, {999, kGiB}});
  w.Pass(kSec);
  CHECK(w.node.LedgerOf("GPU-a")->capacity() == 7 * kGiB - kGiB / 2 - kGiB);
  CHECK(w.port.Budget(1)->guaranteed_bytes == w.node.LedgerOf("GPU-a")->capacity() / 2);
  // 3 GiB beyond the hook's counters: 1 GiB may be the context, the rest is charged to the container.
  w.node.SetProcesses("GPU-a", {{101, 4 * kGiB}});
  w.Follow(1, 2 * kGiB);
  w.Pass(kSec);
  CHECK(w.node.LedgerOf("GPU-a")->capacity() == 6 * kGiB);
  CHECK(w.node.LedgerOf("GPU-a")->held() >= 3 * kGiB);
  // Both have ended: the capacity is the memory less the driver's reserve again.
  w.node.Closed(1, w.now);
  w.node.SetProcesses("GPU-a", {});
  w.Pass(kSec);
  CHECK(w.node.LedgerOf("GPU-a")->capacity() == 7 * kGiB);
}

TEST_CASE("an allocation without devices in use is guaranteed nothing until a process attaches") {
  World w;
  for (const char* id : {"old", "new"}) {
    AllocationSpec spec;
    spec.id = id;
    spec.gpus = {{"GPU-a", 60}};
    spec.devices = {std::string("GPU-a::") + (id[0] == 'o' ? "0" : "60")};
    std::string error;
    REQUIRE(w.node.AddAllocation(spec, {}, &error));
  }
  w.Attach(1, "new");
  w.Follow(1, 8 * kGiB);
  w.Pass(kSec);
  REQUIRE(w.port.Budget(1) != nullptr);
  CHECK(w.port.Budget(1)->guaranteed_bytes < 5 * kGiB);  // 120 units are guaranteed: both shrink
  w.node.SetDevicesInUse({{"GPU-a::60", {"team", "trainer", "main"}}});
  w.Pass(kSec);
  CHECK(w.port.Budget(1)->guaranteed_bytes == 8 * kGiB / 100 * 60 + 8 * kGiB % 100 * 60 / 100);
  CHECK(w.node.FreeUnits("GPU-a") == 40);
  const NodeStatus status = w.node.Status();
  const auto named = std::ranges::find(status.allocations, "new", [](const auto& a) { return a.id; });
  REQUIRE(named != status.allocations.end());
  CHECK((named->ns == "team" && named->pod == "trainer" && named->container == "main"));
  // A setting that raises no guarantee is accepted without free memory.
  std::map<std::string, std::string> live;
  std::string error;
  CHECK(w.node.CheckSet("old", {{"memory-factor", "50"}}, &live, &error));
  CHECK(live == std::map<std::string, std::string>{{"memory-factor", "50"}});
  w.Attach(2, "old");  // attached, whatever kubelet lists
  w.Pass(kSec);
  REQUIRE(w.port.Budget(2) != nullptr);
  CHECK(w.port.Budget(2)->guaranteed_bytes > 0);
}

TEST_CASE("lent memory returns for a process that allocates and has not launched yet") {
  Config config;
  config.ledger.lending = Lending::kIdle;
  World w(config);
  w.Allocate("x", 50);
  w.Allocate("y", 50);
  w.Attach(1, "x");
  for (int i = 0; i < 3; ++i) {
    w.Follow(1, 8 * kGiB);
    w.Pass(kSec);
  }
  REQUIRE(w.port.Budget(1)->budget_bytes > 7 * kGiB);  // all but y's floor
  w.Attach(2, "y");
  std::strcpy(w.pages[2].gpu[0].uuid, "GPU-a");
  w.pages[2].gpu[0].live_bytes = 3 * kGiB;  // it loads its model, or its first allocation waits
  for (int i = 0; i < 3; ++i) {
    w.Follow(1, 8 * kGiB);
    w.Pass(kSec / 20);
    w.pages[2].gpu[0].generation = w.port.Budget(2)->generation;
  }
  CHECK(w.port.Budget(2)->budget_bytes >= 3 * kGiB);
  // It stays idle: its memory is lent again.
  for (int i = 0; i < 25; ++i) {
    w.Follow(1, 8 * kGiB);
    w.pages[2].gpu[0].generation = w.port.Budget(2)->generation;
    w.Pass(kSec);
  }
  CHECK(w.port.Budget(2)->budget_bytes < kGiB);
}

TEST_CASE("folders of ended pods take no memory from running pods when guarantees exceed the GPU") {
  World w;
  w.Allocate("old", 100);
  w.Attach(1, "old");
  w.Pass(kSec);
  w.node.Closed(1, w.now);  // the pod has ended, its folder remains
  w.Allocate("new", 100);   // kubelet assigned the same units again
  w.Attach(2, "new");
  w.Pass(kSec);
  REQUIRE(w.port.Budget(2) != nullptr);
  CHECK(w.port.Budget(2)->budget_bytes == 4 * kGiB);  // the old one may be between two processes
  for (int i = 0; i < 8; ++i) {
    w.Follow(2, kGiB);
    w.Pass(kSec);
    CHECK(w.port.Budget(2)->budget_bytes == 4 * kGiB);
  }
  w.Follow(2, 8 * kGiB);
  w.Pass(kSec);
  CHECK(w.port.Budget(2)->budget_bytes == 8 * kGiB);

  w.Allocate("newer", 100);  // no process yet: it may be starting, so it keeps its floor
  w.Pass(kSec);
  CHECK(w.port.Budget(2)->budget_bytes < 8 * kGiB);
  for (int i = 0; i < 11; ++i) {
    w.Follow(2, 8 * kGiB);
    w.Pass(kSec);
  }
  CHECK(w.port.Budget(2)->budget_bytes == 8 * kGiB);

  w.Attach(3, "old");  // it runs after all
  for (int i = 0; i < 3; ++i) {
    w.Follow(2, 8 * kGiB);
    w.Follow(3, 8 * kGiB);
    w.Pass(kSec);
    REQUIRE(w.node.LedgerOf("GPU-a")->exposure() <= 8 * kGiB);
  }
  CHECK(w.port.Budget(2)->budget_bytes == 4 * kGiB);
  CHECK(w.port.Budget(3)->budget_bytes == 4 * kGiB);
}

TEST_CASE("after a restart, folders without a process do not shrink returning processes") {
  World w;
  w.Allocate("old", 100);
  w.Allocate("running", 100);
  w.node.RecoverUntil(w.now + kSec);
  std::strcpy(w.pages[1].gpu[0].uuid, "GPU-a");
  w.pages[1].gpu[0].budget_bytes = 8 * kGiB;
  w.pages[1].gpu[0].live_bytes = 8 * kGiB;
  w.Attach(1, "running", SLUICE_HELLO_RETURNING);
  const sluice_frame pong = FrameOf(SLUICE_PONG);
  w.node.Received(1, &pong, sizeof(pong), w.now);
  w.node.Settle();
  for (int i = 0; i < 20; ++i) {
    REQUIRE(w.port.Budget(1) != nullptr);
    REQUIRE(w.port.Budget(1)->budget_bytes == 8 * kGiB);
    w.Follow(1, 8 * kGiB);
    w.Pass(kSec);
  }
}

TEST_CASE("random frames and pages leave the ledgers consistent") {
  std::mt19937_64 random(11);
  for (int run = 0; run < 200; ++run) {
    World w;
    for (const char* id : {"a", "b", "c"}) w.Allocate(id, 33);
    for (SessionId s = 1; s < 60; ++s) {
      w.pages[s] = {};
      w.Attach(s, std::string(1, static_cast<char>('a' + random() % 4)), static_cast<uint32_t>(random() % 2));
      std::strcpy(w.pages[s].gpu[0].uuid, "GPU-a");
      auto* words = reinterpret_cast<uint64_t*>(&w.pages[s].gpu[0]) + SLUICE_UUID_CHARS / 8;
      for (int i = 0; i < 20; ++i) words[i] = random() >> (random() % 64);
      sluice_frame f{};
      auto* bytes = reinterpret_cast<uint8_t*>(&f);
      for (size_t i = 0; i < sizeof(f); ++i) bytes[i] = static_cast<uint8_t>(random());
      if (random() % 4 != 0) f.h = {SLUICE_WIRE_MAGIC, SLUICE_WIRE_MAJOR, 0, static_cast<uint16_t>(random() % 13), s};
      if (random() % 2 == 0) std::strcpy(f.u.token.uuid, "GPU-a");
      w.node.Received(1 + random() % s, &f, random() % 8 == 0 ? random() % sizeof(f) : sizeof(f), w.now);
      if (random() % 3 == 0) w.node.Closed(1 + random() % s, w.now);
      w.Pass(random() % kSec);
      REQUIRE(w.node.LedgerOf("GPU-a")->exposure() <= 8 * kGiB);
    }
    for (SessionId s = 1; s < 60; ++s) w.node.Closed(s, w.now);
    REQUIRE(w.node.sessions() == 0);
    REQUIRE(w.node.LedgerOf("GPU-a")->exposure() == 0);
  }
}

TEST_CASE("a container's contexts beyond its allotment are its own, and others keep their guarantee") {
  World w;
  w.Allocate("x", 50);
  w.Allocate("y", 50);
  w.Attach(100, "y");
  std::map<int64_t, Bytes> used;
  for (SessionId s = 1; s <= 6; ++s) {
    w.Attach(s, "x");
    used[100 + static_cast<int64_t>(s)] = kGiB;
  }
  const auto settle = [&] {
    for (int i = 0; i < 5; ++i) {
      w.Follow(100, 2 * kGiB);
      for (SessionId s = 1; s <= 6; ++s) w.Follow(s, kGiB / 2);
      w.Pass(kSec);
    }
  };
  settle();
  w.node.SetProcesses("GPU-a", used);
  settle();
  // All pay for the first GiB, half each.
  CHECK(w.node.LedgerOf("GPU-a")->capacity() == 7 * kGiB);
  REQUIRE(w.port.Budget(100) != nullptr);
  CHECK(w.port.Budget(100)->budget_bytes >= 2 * kGiB);
  CHECK(w.port.Budget(100)->guaranteed_bytes == 7 * kGiB / 2);
  Bytes of_x = 0;
  for (SessionId s = 1; s <= 6; ++s) of_x += w.port.Budget(s)->budget_bytes;
  CHECK(of_x < kGiB);  // the other five take the rest
  w.node.SetProcesses("GPU-a", {});
  settle();
  of_x = 0;
  for (SessionId s = 1; s <= 6; ++s) of_x += w.port.Budget(s)->budget_bytes;
  CHECK(of_x >= 3 * kGiB);
}

TEST_CASE("processes that only attach raise the driver's limit by no more than a container's contexts") {
  World w;
  w.Allocate("x", 50);
  w.Attach(1, "x");
  const Bytes one = w.node.UnmanagedLimits("x").at("GPU-a");
  for (SessionId s = 2; s <= 40; ++s) w.Attach(s, "x");
  CHECK(w.node.UnmanagedLimits("x").at("GPU-a") == one);
  CHECK(one <= 6 * kGiB);
}

TEST_CASE("a budget that changes for many processes of one container goes out in turn with another's") {
  World w;
  w.Allocate("many", 50);
  w.Allocate("one", 50);
  constexpr SessionId kMany = 300;
  for (SessionId s = 1; s <= kMany; ++s) w.Attach(s, "many");
  while (w.port.soon > 0) {
    w.port.soon = 0;
    w.node.SendDue();
  }
  w.Attach(1000, "one");
  const auto sent = [&] {
    size_t n = 0;
    for (const auto& [session, frames] : w.port.sent) n += frames.size();
    return n;
  };
  PodInfo pod{"ns", "p", "c", {}};
  pod.settings.memory_factor = 70;
  const size_t before = sent();
  w.node.SetPod("many", pod);
  w.node.SetPod("one", pod);
  const size_t had = w.port.sent[1000].size();
  w.node.Settle();
  CHECK(sent() - before <= 40);
  CHECK(w.port.sent[1000].size() > had);  // it does not wait for the other's three hundred
  int turns = 0;
  while (w.port.soon > 0 && ++turns < 100) {
    w.port.soon = 0;
    w.node.SendDue();
  }
  CHECK(turns > 5);
  for (SessionId s = 1; s <= kMany; ++s) CHECK(w.port.Budget(s)->memory_factor == 70);
}
