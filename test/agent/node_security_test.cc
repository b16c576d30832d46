// Node: identity of processes, evidence of their hooks, bounds of their events.
#include <catch2/catch_test_macros.hpp>

#include "node_rig.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

TEST_CASE("a process of another pod is refused at an allocation's socket, and the allocation does not show it") {
  World w;
  w.Allocate("victim", 50);
  w.Allocate("attacker", 50);
  w.node.SetHolder("victim", "pod-v", "main");
  w.node.SetHolder("attacker", "pod-a", "main");
  w.Attach(1, "victim");
  const auto open = [&](SessionId s, const ContainerKey& from) {
    w.node.Opened(s, "victim", 200, &w.pages[s], w.now, from);
    const sluice_frame hello = FrameOf(SLUICE_HELLO);
    w.node.Received(s, &hello, sizeof(hello), w.now);
  };
  open(2, {"pod-a", "1"});
  CHECK(w.port.closed.contains(2));
  open(3, {"pod-v", "2"});
  open(4, {"", ""});  // the node's own, as a debugger
  CHECK_FALSE(w.port.closed.contains(3));
  CHECK_FALSE(w.port.closed.contains(4));
  const NodeStatus status = w.node.Status();
  CHECK(status.forged_claims == 1);
  CHECK(status.allocations[0].hook_state == "attached");
  CHECK(status.allocations[0].processes.size() == 3);
  for (const Event& e : w.node.EventsAfter(0)) {
    if (e.kind == "forged identity") CHECK(e.allocation == "attacker");
    CHECK_FALSE((e.kind == "refused" && e.allocation == "victim"));
  }
}

TEST_CASE("processes that attached before the holder was known are refused once it is another pod") {
  World w;
  w.Allocate("x", 50);
  sluice_frame hello = FrameOf(SLUICE_HELLO);
  for (SessionId s = 1; s <= 2; ++s) {
    w.node.Opened(s, "x", 100 + static_cast<int64_t>(s), &w.pages[s], w.now, {s == 1 ? "own" : "other", ""});
    w.node.Received(s, &hello, sizeof(hello), w.now);
  }
  w.node.Settle();
  w.node.SetHolder("x", "own", "main");
  w.node.Settle();
  CHECK_FALSE(w.port.closed.contains(1));
  CHECK(w.port.closed.contains(2));
  CHECK(w.node.Processes("x") == 1);
  CHECK(w.node.LedgerOf("GPU-a")->budgets() == 4 * kGiB);  // the refused one released its memory
  CHECK(w.node.Status().allocations[0].hook_state == "attached");
}

TEST_CASE("a process id that the process itself reports is not trusted") {
  World w;
  w.Allocate("x", 50);
  w.node.Opened(1, "x", 0, &w.pages[1], w.now);
  sluice_frame hello = FrameOf(SLUICE_HELLO);
  hello.u.hello.pid = 4711;
  w.node.Received(1, &hello, sizeof(hello), w.now);
  CHECK(w.node.Status().allocations[0].processes[0].pid == 0);
  CHECK(w.node.KnownIdentities().at("x").pids.empty());
}

namespace {

struct Evident : World {
  Evident() {
    Allocate("x", 50);
    Attach(1, "x");  // pid 101
  }
  // Seconds of checks while the hook writes its page, or does not.
  void Check(int seconds, const GpuUses& uses, bool beats = true) {
    for (int i = 0; i < seconds; ++i) {
      if (beats) pages[1].heartbeat_ns = now;
      Pass(kSec);
      never_wrote = node.CheckEvidence(uses, now);
    }
  }
  AllocationStatus Now() const { return node.Status().allocations[0]; }
  std::map<std::string, std::vector<int64_t>> never_wrote;
};

GpuUses Shown(Bytes bytes, int busy = -1) { return {{"GPU-a", {{101, {bytes, busy}}}}}; }

}  // namespace

TEST_CASE("an idle process is attached, with or without a context on the GPU") {
  Evident w;
  w.Check(60, {{"GPU-a", {}}});
  CHECK(w.Now().hook_state == "attached");
  CHECK(w.Now().processes[0].proof == "idle");
  w.Check(60, Shown(600 << 20, 0));
  CHECK(w.Now().hook_state == "attached");
  CHECK(w.Now().processes[0].proof == "idle");
  w.Check(60, {});  // a driver that lists no processes
  CHECK(w.Now().hook_state == "attached");
}

TEST_CASE("a process whose counters agree with the driver is proven") {
  Evident w;
  w.Follow(1, kGiB);  // managed memory, which the driver does not count
  w.pages[1].gpu[0].unmanaged_bytes = 3 * kGiB;
  w.Check(60, Shown(3 * kGiB + (500 << 20), 90));
  CHECK(w.Now().hook_state == "attached");
  CHECK(w.Now().processes[0].proof == "proven");
  // One long kernel: busy without a further launch.
  w.Check(600, Shown(3 * kGiB + (500 << 20), 100));
  CHECK(w.Now().hook_state == "attached");
}

TEST_CASE("a process that said HELLO and writes nothing is unproven within five seconds") {
  for (const bool uses_gpu : {false, true}) {
    Evident w;
    const GpuUses uses = uses_gpu ? Shown(300 << 20) : GpuUses{{"GPU-a", {}}};
    w.Check(2, uses, false);
    CHECK(w.Now().hook_state == "attached");
    w.Check(3, uses, false);
    CHECK(w.Now().hook_state == "unproven");
    CHECK(w.Now().hook_reason.find("pid 101: its hook has written nothing since it connected") == 0);
    CHECK(w.never_wrote.empty());
    w.Check(10, uses, false);
    CHECK(w.never_wrote.contains("x") == uses_gpu);  // then it is a process without the hook
    w.Check(2, uses);
    CHECK(w.Now().hook_state == "attached");
    CHECK(w.never_wrote.empty());
    int events = 0;
    for (const Event& e : w.node.EventsAfter(0)) events += e.kind == "unproven" ? 1 : 0;
    CHECK(events == 1);
  }
}

TEST_CASE("memory that no counter shows, and use of the GPU without a launch, are unproven") {
  for (const GpuUses& uses : {Shown(4 * kGiB, 0), Shown(300 << 20, 50)}) {
    Evident w;
    w.Check(2, uses);
    CHECK(w.Now().hook_state == "attached");  // a moment's difference
    w.Check(3, uses);
    CHECK(w.Now().hook_state == "unproven");
    CHECK(w.Now().processes[0].proof == "unproven");
    w.pages[1].gpu[0].unmanaged_bytes = 4 * kGiB;
    w.Follow(1, 0);
    w.Check(1, uses);
    CHECK(w.Now().hook_state == "attached");
    CHECK(w.Now().processes[0].proof == "proven");
  }
}

TEST_CASE("unmanaged memory that is counted and that the driver does not show is unproven") {
  Evident w;
  w.Follow(1, 0);
  w.pages[1].gpu[0].unmanaged_bytes = kGiB;
  w.Check(60, {});  // a driver that lists no processes contradicts none
  CHECK(w.Now().hook_state == "attached");
  w.Check(5, {{"GPU-a", {}}});
  CHECK(w.Now().hook_state == "unproven");
}

TEST_CASE("a stopped process that holds a GPU is unproven until it runs again") {
  Evident w;
  w.Follow(1, kGiB);
  w.Check(5, Shown(300 << 20));
  w.Check(7, Shown(300 << 20), false);
  CHECK(w.Now().hook_state == "unproven");
  w.Check(1, Shown(300 << 20));
  CHECK(w.Now().hook_state == "attached");
}

TEST_CASE("one allocation's events neither flush those of others nor come without end") {
  World w;
  w.Allocate("calm", 50);
  w.Allocate("noisy", 50);
  w.Attach(1, "calm");
  size_t seen = 0;
  w.node.OnEvent([&](Event& e) { seen += e.allocation == "noisy" ? 1 : 0; });
  for (SessionId s = 2; s < 5000; ++s) {
    w.node.Opened(s, "noisy", 100, &w.pages[2], w.now);
    w.node.Received(s, "x", 1, w.now);
    w.now += kSec / 1000;
  }
  CHECK(seen < 110);  // a log line each
  bool calm = false;
  for (const Event& e : w.node.EventsAfter(0)) calm |= e.allocation == "calm" && e.kind == "attached";
  CHECK(calm);
  const NodeStatus status = w.node.Status();
  CHECK(status.allocations[0].events_left_out == 0);
  CHECK(status.allocations[1].events_left_out > 4800);
  // Its own findings are told all the same.
  w.node.SetUnhooked("noisy", {7});
  const auto events = w.node.EventsAfter(0);
  CHECK(events.back().kind == "not hooked");
  CHECK(events[events.size() - 2].kind == "events left out");
}

TEST_CASE("a bucket gives its burst, then one a period, and saves no more than its burst") {
  TokenBucket bucket(100, 3);
  uint64_t now = 1'000'000;
  for (int i = 0; i < 3; ++i) CHECK(bucket.Take(now));
  CHECK_FALSE(bucket.Take(now));
  CHECK(bucket.WaitNs(now + 40) == 60);
  CHECK_FALSE(bucket.Take(now + 99));
  CHECK(bucket.Take(now + 100));
  CHECK_FALSE(bucket.Take(now + 50));  // time that runs backwards
  now += 1'000'000'000;
  int taken = 0;
  while (bucket.Take(now)) ++taken;
  CHECK(taken == 3);
}
