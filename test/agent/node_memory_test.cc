// Node: a container's memory-limit and its own view, over frames.
#include "test/agent/node_rig.h"

namespace sluice::agent {
namespace {

const sluice_memory* LastMemory(const World& w, SessionId s) {
  const auto it = w.port.sent.find(s);
  if (it == w.port.sent.end()) return nullptr;
  for (auto f = it->second.rbegin(); f != it->second.rend(); ++f) {
    if (f->h.type == SLUICE_MEMORY) return &f->u.memory;
  }
  return nullptr;
}

struct Rig : World {
  // A process takes the frames' bytes.
  void Hear(SessionId s) {
    sluice_lease& words = pages[s].lease[0];
    Bytes granted = words.granted_bytes;
    for (const sluice_frame& f : port.sent[s]) {
      if (f.h.type == SLUICE_BUDGET) granted = std::max<Bytes>(granted, f.u.budget.granted_bytes);
      if (f.h.type == SLUICE_MEMORY) granted = std::max<Bytes>(granted, f.u.memory.granted_bytes);
    }
    words.headroom_bytes += static_cast<int64_t>(granted - words.granted_bytes);
    words.granted_bytes = granted;
  }
  void Ask(SessionId s, Bytes missing, const char* uuid = "GPU-a") {
    sluice_frame f = FrameOf(SLUICE_MEMORY_REQUEST);
    std::string_view(uuid).copy(f.u.memory.uuid, sizeof f.u.memory.uuid - 1);
    f.u.memory.id = ++asked;
    f.u.memory.missing_bytes = missing;
    node.Received(s, &f, sizeof(f), now);
  }
  bool Charge(SessionId s, Bytes bytes) {
    Hear(s);
    sluice_lease& words = pages[s].lease[0];
    if (words.headroom_bytes < static_cast<int64_t>(bytes)) {
      Ask(s, bytes - static_cast<Bytes>(words.headroom_bytes));
      Hear(s);
    }
    if (words.headroom_bytes < static_cast<int64_t>(bytes)) return false;
    words.headroom_bytes -= static_cast<int64_t>(bytes);
    words.charged_bytes += bytes;
    return true;
  }
  void Limit(const std::string& id, const std::string& limit) { node.ApplyLive(id, {{"memory-limit", limit}}); }
  uint64_t asked = 0;
};

}  // namespace

TEST_CASE("memory-limit holds for all processes of a container together") {
  Rig w;
  w.Allocate("one", 50);
  w.Limit("one", "3Gi");
  for (SessionId s = 1; s <= 3; ++s) w.Attach(s, "one");
  CHECK(w.port.Budget(1)->leased == 1);
  Bytes sum = 0;
  for (SessionId s = 1; s <= 3; ++s) {
    while (w.Charge(s, 256ull << 20)) sum += 256ull << 20;
  }
  CHECK(sum == 3 * kGiB);
  w.Ask(3, 0);
  CHECK(LastMemory(w, 3)->used_bytes == 3 * kGiB);
  CHECK(LastMemory(w, 3)->processes == 3);
  CHECK(LastMemory(w, 3)->total_bytes == w.port.Budget(3)->guaranteed_bytes);
  w.node.Closed(1, w.now);  // killed
  CHECK(w.Charge(2, 2 * kGiB));
}

TEST_CASE("another container's processes share no limit") {
  Rig w;
  w.Allocate("one", 50);
  w.Allocate("two", 50);
  w.Limit("one", "5Gi");
  w.Limit("two", "6Gi");
  w.Attach(1, "one");
  w.Attach(2, "two");
  CHECK(w.Charge(1, 5 * kGiB));
  CHECK(w.Charge(2, 6 * kGiB));
  CHECK(!w.Charge(1, 1));
}

TEST_CASE("a process hears that it is no longer alone, or alone again") {
  Rig w;
  w.Allocate("one", 50);
  w.Attach(1, "one");
  CHECK(w.port.Budget(1)->processes == 1);
  CHECK(LastMemory(w, 1) == nullptr);
  w.Attach(2, "one");
  CHECK(w.port.Budget(2)->processes == 2);
  CHECK(LastMemory(w, 1)->processes == 2);
  CHECK(LastMemory(w, 1)->id == 0);
  w.Attach(3, "one");
  const size_t frames = w.port.sent[1].size();
  w.node.Closed(3, w.now);
  CHECK(w.port.sent[1].size() == frames);  // more than one in any case
  w.node.Closed(2, w.now);
  CHECK(LastMemory(w, 1)->processes == 1);
}

TEST_CASE("after a restart no bytes are given until the others had time to return") {
  Rig w;
  w.Allocate("one", 50);
  w.Limit("one", "3Gi");
  w.node.RecoverUntil(w.now + kSec);
  w.Attach(1, "one", SLUICE_HELLO_RETURNING);
  w.pages[1].magic = w.pages[2].magic = SLUICE_WIRE_MAGIC;  // both processes have filled their new pages
  w.pages[1].lease[0] = {0, kGiB, kGiB, 0};
  sluice_frame pong = FrameOf(SLUICE_PONG);
  w.node.Received(1, &pong, sizeof(pong), w.now);
  w.node.Settle();
  CHECK(!w.Charge(1, kGiB));
  CHECK(LastMemory(w, 1) == nullptr);  // not refused: it waits
  w.Attach(2, "one", SLUICE_HELLO_RETURNING);
  w.pages[2].lease[0] = {static_cast<int64_t>(kGiB / 2), kGiB, kGiB * 2, kGiB / 2};
  w.node.Received(2, &pong, sizeof(pong), w.now);
  w.Pass(kSec + 1);
  REQUIRE(LastMemory(w, 1) != nullptr);
  CHECK(LastMemory(w, 1)->id == w.asked);
  w.Hear(1);
  CHECK(w.Charge(1, kGiB));
  CHECK(!w.Charge(1, 1));
  CHECK(!w.Charge(2, 1));
}

TEST_CASE("requests of one container after a restart take no room of another's") {
  Rig w;
  w.Allocate("one", 50);
  w.Allocate("two", 50);
  w.Limit("two", "3Gi");
  w.node.RecoverUntil(w.now + kSec);
  for (SessionId s = 1; s <= 2; ++s) {
    w.pages[s].magic = SLUICE_WIRE_MAGIC;
    w.Attach(s, s == 1 ? "one" : "two", SLUICE_HELLO_RETURNING);
    sluice_frame pong = FrameOf(SLUICE_PONG);
    w.node.Received(s, &pong, sizeof(pong), w.now);
  }
  for (int i = 0; i < 20000; ++i) w.Ask(1, kGiB);
  w.Ask(2, kGiB);
  const uint64_t wanted = w.asked;
  w.Pass(kSec + 1);
  REQUIRE(LastMemory(w, 2) != nullptr);
  CHECK(LastMemory(w, 2)->id == wanted);
  // Each restart counts anew.
  w.node.RecoverUntil(w.now + kSec);
  w.Ask(1, kGiB);
  const uint64_t later = w.asked;
  w.Pass(kSec + 1);
  CHECK(LastMemory(w, 1)->id == later);
}

TEST_CASE("a returning process that does not answer has no lease, as its account is not known") {
  Rig w;
  w.Allocate("one", 50);
  w.Attach(1, "one", SLUICE_HELLO_RETURNING);
  w.Pass(2 * kSec);
  REQUIRE(w.port.Budget(1) != nullptr);
  CHECK(w.port.Budget(1)->leased == 0);
}

TEST_CASE("a hook older than leases keeps the limit to itself, and its bytes count") {
  Rig w;
  w.Allocate("one", 50);
  w.Limit("one", "3Gi");
  w.node.Opened(1, "one", 101, &w.pages[1], w.now);
  sluice_frame hello = FrameOf(SLUICE_HELLO);
  hello.h.minor = 0;
  w.node.Received(1, &hello, sizeof(hello), w.now);
  w.node.Settle();
  CHECK(w.port.Budget(1)->leased == 0);
  CHECK(w.port.Budget(1)->limit_bytes == 3 * kGiB);
  w.Follow(1, 2 * kGiB);
  w.Pass(kSec);
  w.Attach(2, "one");
  CHECK(w.Charge(2, kGiB));
  CHECK(!w.Charge(2, 1));
  for (const sluice_frame& f : w.port.sent[1]) CHECK(f.h.type != SLUICE_MEMORY);  // it does not know the type
}

TEST_CASE("a process that only looks is shown the container, and is no part of it") {
  Rig w;
  w.Allocate("one", 50);
  w.Attach(1, "one");
  REQUIRE(w.Charge(1, kGiB));
  w.Attach(7, "one", SLUICE_HELLO_OBSERVER);
  const auto& frames = w.port.sent[7];
  REQUIRE(frames.size() == 2);
  CHECK(frames[0].h.type == SLUICE_WELCOME);
  CHECK(frames[1].h.type == SLUICE_PING);
  CHECK(w.node.Processes("one") == 1);
  CHECK(w.port.Budget(1)->processes == 1);
  w.Ask(7, 0);
  REQUIRE(LastMemory(w, 7) != nullptr);
  CHECK(LastMemory(w, 7)->used_bytes == kGiB);
  CHECK(LastMemory(w, 7)->processes == 1);
  CHECK(LastMemory(w, 7)->total_bytes == w.port.Budget(1)->guaranteed_bytes);
  w.Ask(7, kGiB);  // it gets no lease
  CHECK(LastMemory(w, 7)->granted_bytes == 0);
  w.Ask(7, 0, "GPU-none");
  CHECK(LastMemory(w, 7)->total_bytes == 0);
  sluice_frame f = FrameOf(SLUICE_PROCESSES_REQUEST);
  std::strcpy(f.u.processes.uuid, "GPU-a");
  f.u.processes.id = 3;
  w.node.Received(7, &f, sizeof(f), w.now);
  const sluice_processes& answer = w.port.sent[7].back().u.processes;
  CHECK(answer.id == 3);
  CHECK(answer.count == 1);
  CHECK(answer.list[0].charged_bytes == kGiB);
  // Nothing of it is an event, and it does not hold the allocation.
  for (const Event& e : w.node.EventsAfter(0)) CHECK(e.text.find("pid 107") == std::string::npos);
  w.node.Closed(1, w.now);
  w.node.RemoveAllocation("one");
  CHECK(w.port.closed.contains(7));
  CHECK(w.node.sessions() == 0);
}

TEST_CASE("many processes are listed in several frames") {
  Rig w;
  w.Allocate("one", 100);
  for (SessionId s = 1; s <= 25; ++s) w.Attach(s, "one");
  std::set<uint32_t> firsts;
  for (uint32_t first = 0; first < 25; first += SLUICE_PROCESSES_A_FRAME) {
    sluice_frame f = FrameOf(SLUICE_PROCESSES_REQUEST);
    std::strcpy(f.u.processes.uuid, "GPU-a");
    f.u.processes.first = first;
    w.node.Received(1, &f, sizeof(f), w.now);
    CHECK(w.port.sent[1].back().u.processes.count == 25);
    firsts.insert(w.port.sent[1].back().u.processes.first);
  }
  CHECK(firsts.size() == 3);
}

TEST_CASE("the container's utilisation is that of its own kernels") {
  Rig w;
  w.Allocate("one", 50);
  w.Allocate("two", 50);
  w.Attach(1, "one");
  w.Attach(2, "one");
  w.Attach(3, "two");
  for (int i = 0; i < 20; ++i) {
    for (SessionId s = 1; s <= 3; ++s) w.Follow(s, kGiB);
    w.pages[1].gpu[0].kernel_ns += 20'000'000;
    w.pages[2].gpu[0].kernel_ns += 10'000'000;
    w.pages[3].gpu[0].kernel_ns += 60'000'000;
    w.Pass(100'000'000);
  }
  w.Ask(1, 0);
  CHECK(LastMemory(w, 1)->utilization > 280'000);
  CHECK(LastMemory(w, 1)->utilization < 320'000);
}

}  // namespace sluice::agent
