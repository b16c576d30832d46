// Node by hand: frames in, frames out, pages as plain memory.
#include "agent/node.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <random>

#include "agent/attest.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kSec = 1'000'000'000;
constexpr Bytes kGiB = 1ull << 30;

class FakePort : public Port {
 public:
  void Send(SessionId session, const sluice_frame& frame) override { sent[session].push_back(frame); }
  void Close(SessionId session) override { closed.insert(session); }
  const sluice_budget* Budget(SessionId session) const {
    const auto it = sent.find(session);
    if (it == sent.end()) return nullptr;
    for (auto f = it->second.rbegin(); f != it->second.rend(); ++f) {
      if (f->h.type == SLUICE_BUDGET) return &f->u.budget;
    }
    return nullptr;
  }
  std::map<SessionId, std::vector<sluice_frame>> sent;
  std::set<SessionId> closed;
};

sluice_frame FrameOf(uint16_t type) {
  sluice_frame f{};
  f.h = {SLUICE_WIRE_MAGIC, SLUICE_WIRE_MAJOR, SLUICE_WIRE_MINOR, type, 1};
  return f;
}

struct World {
  explicit World(const Config& config = {}) : node(&port, config, 1000) {
    node.SetCards({{"GPU-a", "A", 8 * kGiB, 0, -1}});
    node.SetHostLimit(16 * kGiB);
  }
  void Allocate(const std::string& id, uint32_t units) {
    AllocationSpec spec;
    spec.id = id;
    spec.gpus = {{"GPU-a", units}};
    std::string error;
    REQUIRE(node.AddAllocation(spec, {}, &error));
  }
  void Attach(SessionId s, const std::string& id, uint32_t flags = 0) {
    node.Opened(s, id, 100 + static_cast<int64_t>(s), &pages[s], now);
    sluice_frame f = FrameOf(SLUICE_HELLO);
    f.u.hello.flags = flags;
    node.Received(s, &f, sizeof(f), now);
    node.Settle();
  }
  // The process follows what it was told and holds as much of `live` as it may.
  void Follow(SessionId s, Bytes live) {
    const sluice_budget* b = port.Budget(s);
    sluice_gpu_counters& c = pages[s].gpu[0];
    std::strcpy(c.uuid, "GPU-a");
    c.live_bytes = live;
    c.launches++;
    if (b == nullptr) return;
    c.generation = b->generation;
    c.budget_bytes = b->budget_bytes;
    c.resident_bytes = std::min(live, b->budget_bytes);
  }
  void Pass(uint64_t ns) {
    now += ns;
    node.Tick(now);
  }
  FakePort port;
  Node node;
  uint64_t now = 100 * kSec;
  std::map<SessionId, sluice_page> pages;
};

}  // namespace

TEST_CASE("a returning process is read before anything is handed out, a new one waits for the others to return") {
  World w;
  w.Allocate("x", 50);
  w.Allocate("y", 50);
  w.node.RecoverUntil(w.now + kSec);
  w.Attach(1, "x");
  CHECK(w.port.Budget(1) == nullptr);  // new, and others may still hold what it would get
  w.Attach(2, "y", SLUICE_HELLO_RETURNING);
  CHECK(w.port.Budget(2) == nullptr);  // asked by PING for its page
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
  CHECK(w.port.Budget(1)->budget_bytes <= 2 * kGiB);  // the rest comes when process 2 has given it back
  for (int i = 0; i < 20; ++i) {
    w.Follow(1, 4 * kGiB);
    w.Follow(2, 6 * kGiB);
    w.Pass(kSec / 10);
    REQUIRE(w.node.LedgerOf("GPU-a")->exposure() <= 8 * kGiB);
  }
  CHECK(w.port.Budget(1)->budget_bytes == 4 * kGiB);
  CHECK(w.port.Budget(2)->budget_bytes == 4 * kGiB);
}

TEST_CASE("a removed allocation holds its share until its last process ends") {
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

TEST_CASE("what is guaranteed live is given to nobody else, and is the share of time too") {
  World w;
  w.Allocate("one", 50);
  std::map<std::string, std::string> live;
  std::string error;
  const auto set = [&](const std::string& key, const std::string& value) {
    if (!w.node.CheckSet("one", {{key, value}}, &live, &error)) return false;
    w.node.ApplyLive("one", live);
    return true;
  };
  const auto share = [&] { return w.node.Status().allocations.front().gpus.front(); };
  REQUIRE(set("gpu-fraction", "0.9"));
  CHECK(share().guaranteed == 8 * kGiB * 90 / 100);
  CHECK(share().compute_request == 900000);
  CHECK(share().units == 50);  // kubelet's word
  CHECK(w.node.FreeUnits("GPU-a") == 10);
  CHECK(w.node.ChooseCard(50, {}).empty());
  CHECK(w.node.Beyond("one").starts_with("this is more than its 50 units"));
  REQUIRE(set("gpu-fraction", "0.2"));
  CHECK(share().compute_request == 200000);
  CHECK(w.node.FreeUnits("GPU-a") == 80);
  CHECK(w.node.Beyond("one").empty());
  REQUIRE(set("gpu-memory", "6Gi"));
  CHECK(share().compute_request == 500000);  // bytes say nothing of time
  CHECK(w.node.FreeUnits("GPU-a") == 25);
  CHECK_FALSE(w.node.Beyond("one").empty());
  CHECK_FALSE(set("gpu-fraction", "2"));
  CHECK(error == "gpu-fraction: '2' is not accepted; accepted: 0.01 to 1, as one has 1 GPU(s)");
  w.Allocate("other", 20);
  CHECK_FALSE(set("gpu-fraction", "0.81"));
  CHECK(error == "gpu-fraction: '0.81' is more than GPU GPU-a has left; accepted: at most 0.8");
}

TEST_CASE("an empty value takes away what was set, and nothing else") {
  World w;
  AllocationSpec spec;
  spec.id = "one";
  spec.gpus = {{"GPU-a", 50}};
  spec.settings.gpu_memory = 4 * kGiB;
  spec.settings.memory_factor = 80;
  std::map<std::string, std::string> live;
  std::string error;
  REQUIRE(w.node.AddAllocation(spec, {}, &error));
  const auto set = [&](const std::map<std::string, std::string>& change) {
    if (!w.node.CheckSet("one", change, &live, &error)) return false;
    w.node.ApplyLive("one", live);
    return true;
  };
  const auto now = [&] { return w.node.Status().allocations.front(); };
  CHECK_FALSE(set({{"memory-factor", ""}}));  // the pod's own word stays
  CHECK(error == "memory-factor: nothing was set that an empty value could take away; set: nothing");
  REQUIRE(set({{"memory-factor", "50"}, {"gpu-fraction", "0.2"}, {"prefetch", "off"}}));
  CHECK(now().gpus.front().percent == 20);
  CHECK(now().gpus.front().guaranteed == 8 * kGiB / 100 * 20 + 8 * kGiB % 100 * 20 / 100);
  CHECK_FALSE(set({{"prefetch", ""}, {"compute-limit", ""}}));  // all or nothing
  CHECK(error.ends_with("; set: gpu-fraction, memory-factor, prefetch"));
  CHECK(now().settings.contains("prefetch"));
  REQUIRE(set({{"memory-factor", ""}, {"prefetch", ""}}));
  CHECK(now().settings.at("memory-factor") == "80");
  CHECK_FALSE(now().settings.contains("prefetch"));
  // The share that it had before is somebody else's by now.
  w.Allocate("other", 70);
  CHECK_FALSE(set({{"gpu-fraction", ""}}));
  CHECK(error == "gpu-memory: '4Gi' is more than GPU GPU-a has left; accepted: at most 2457Mi");
  w.node.RemoveAllocation("other");
  REQUIRE(set({{"gpu-fraction", ""}}));
  CHECK(live.empty());
  CHECK(now().gpus.front().percent == 50);
  CHECK(now().gpus.front().guaranteed == 4 * kGiB);
  CHECK_FALSE(set({{"frob", ""}}));
  CHECK(error.starts_with("frob: this key is unknown"));
}

TEST_CASE("the reserve is what NVML sees of contexts, code and others, and the guarantees shrink by their share") {
  World w;
  w.node.SetCards({{"GPU-a", "A", 8 * kGiB, kGiB, -1}});  // 1 GiB is the driver's own
  w.Allocate("x", 50);
  w.Attach(1, "x");  // pid 101
  w.Pass(kSec);
  REQUIRE(w.port.Budget(1) != nullptr);
  CHECK(w.port.Budget(1)->guaranteed_bytes == 7 * kGiB / 2);
  // Its context takes half a GiB, a process of nobody's a whole one.
  w.Follow(1, 2 * kGiB);
  w.pages[1].gpu[0].plain_bytes = kGiB;
  w.node.SetProcesses("GPU-a", {{101, kGiB + kGiB / 2}, {999, kGiB}});
  w.Pass(kSec);
  CHECK(w.node.LedgerOf("GPU-a")->capacity() == 7 * kGiB - kGiB / 2 - kGiB);
  CHECK(w.port.Budget(1)->guaranteed_bytes == w.node.LedgerOf("GPU-a")->capacity() / 2);
  // 3 GiB beyond what the hook tells: one may be the context, the rest is held by its own container.
  w.node.SetProcesses("GPU-a", {{101, 4 * kGiB}});
  w.Follow(1, 2 * kGiB);
  w.Pass(kSec);
  CHECK(w.node.LedgerOf("GPU-a")->capacity() == 6 * kGiB);
  CHECK(w.node.LedgerOf("GPU-a")->held() >= 3 * kGiB);
  // Both have ended: the card is whole again, less what the driver keeps.
  w.node.Closed(1, w.now);
  w.node.SetProcesses("GPU-a", {});
  w.Pass(kSec);
  CHECK(w.node.LedgerOf("GPU-a")->capacity() == 7 * kGiB);
}

TEST_CASE("what kubelet has taken back counts as nothing, until a process of it lives") {
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
  CHECK(w.port.Budget(1)->guaranteed_bytes < 5 * kGiB);  // 120 units are promised: both give way
  w.node.SetDevicesInUse({{"GPU-a::60", {"team", "trainer", "main"}}});
  w.Pass(kSec);
  CHECK(w.port.Budget(1)->guaranteed_bytes == 8 * kGiB / 100 * 60 + 8 * kGiB % 100 * 60 / 100);
  CHECK(w.node.FreeUnits("GPU-a") == 40);
  const NodeStatus status = w.node.Status();
  const auto named = std::ranges::find(status.allocations, "new", [](const auto& a) { return a.id; });
  REQUIRE(named != status.allocations.end());
  CHECK((named->ns == "team" && named->pod == "trainer" && named->container == "main"));
  // What is set on it raises nobody's guarantee: there is no room to speak of.
  std::map<std::string, std::string> live;
  std::string error;
  CHECK(w.node.CheckSet("old", {{"memory-factor", "50"}}, &live, &error));
  CHECK(live == std::map<std::string, std::string>{{"memory-factor", "50"}});
  w.Attach(2, "old");  // lives after all, whatever kubelet says
  w.Pass(kSec);
  REQUIRE(w.port.Budget(2) != nullptr);
  CHECK(w.port.Budget(2)->guaranteed_bytes > 0);
}

TEST_CASE("what was lent comes back for a process that allocates and has not launched anything yet") {
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
  w.pages[2].gpu[0].live_bytes = 3 * kGiB;  // loads its model, or its first allocation waits
  for (int i = 0; i < 3; ++i) {
    w.Follow(1, 8 * kGiB);
    w.Pass(kSec / 20);
    w.pages[2].gpu[0].generation = w.port.Budget(2)->generation;
  }
  CHECK(w.port.Budget(2)->budget_bytes >= 3 * kGiB);
  // It goes on doing nothing: lent again.
  for (int i = 0; i < 25; ++i) {
    w.Follow(1, 8 * kGiB);
    w.pages[2].gpu[0].generation = w.port.Budget(2)->generation;
    w.Pass(kSec);
  }
  CHECK(w.port.Budget(2)->budget_bytes < kGiB);
}

TEST_CASE("folders of ended pods take nothing from living ones when the card is promised twice") {
  World w;
  w.Allocate("old", 100);
  w.Attach(1, "old");
  w.Pass(kSec);
  w.node.Closed(1, w.now);  // the pod has ended, its folder is still there
  w.Allocate("new", 100);   // kubelet gave the same units again
  w.Attach(2, "new");
  w.Pass(kSec);
  REQUIRE(w.port.Budget(2) != nullptr);
  CHECK(w.port.Budget(2)->budget_bytes == 4 * kGiB);  // it may only be between two processes
  for (int i = 0; i < 8; ++i) {
    w.Follow(2, kGiB);
    w.Pass(kSec);
    CHECK(w.port.Budget(2)->budget_bytes == 4 * kGiB);
  }
  w.Follow(2, 8 * kGiB);
  w.Pass(kSec);
  CHECK(w.port.Budget(2)->budget_bytes == 8 * kGiB);

  w.Allocate("newer", 100);  // without a process so far: may be starting, so it has at least its floor
  w.Pass(kSec);
  CHECK(w.port.Budget(2)->budget_bytes < 8 * kGiB);
  for (int i = 0; i < 11; ++i) {
    w.Follow(2, 8 * kGiB);
    w.Pass(kSec);
  }
  CHECK(w.port.Budget(2)->budget_bytes == 8 * kGiB);

  w.Attach(3, "old");  // lives after all
  for (int i = 0; i < 3; ++i) {
    w.Follow(2, 8 * kGiB);
    w.Follow(3, 8 * kGiB);
    w.Pass(kSec);
    REQUIRE(w.node.LedgerOf("GPU-a")->exposure() <= 8 * kGiB);
  }
  CHECK(w.port.Budget(2)->budget_bytes == 4 * kGiB);
  CHECK(w.port.Budget(3)->budget_bytes == 4 * kGiB);
}

TEST_CASE("a restarted agent does not shrink those that return for folders without a process") {
  World w;
  w.Allocate("old", 100);
  w.Allocate("living", 100);
  w.node.RecoverUntil(w.now + kSec);
  std::strcpy(w.pages[1].gpu[0].uuid, "GPU-a");
  w.pages[1].gpu[0].budget_bytes = 8 * kGiB;
  w.pages[1].gpu[0].live_bytes = 8 * kGiB;
  w.Attach(1, "living", SLUICE_HELLO_RETURNING);
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

TEST_CASE("wild frames and pages: the agent's books stay whole") {
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

TEST_CASE("a process belongs to the allocation that is mounted into its container") {
  const char* text =
      "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"
      "90 22 8:1 /var/lib/sluice/alloc/one-1234 /opt/sluice/run ro,relatime - ext4 /dev/sda1 rw\n"
      "91 22 8:1 /other /opt/sluice/runner ro - ext4 /dev/sda1 rw\n";
  CHECK(AllocationByMount(text) == "one-1234");
  CHECK(AllocationByMount("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n").empty());
  CHECK(AllocationByMount("garbage").empty());
  using namespace std::string_view_literals;
  CHECK(AllocationByEnvironment("A=1\0SLUICE_SOCKET=/a/alloc/id/agent.sock\0B=2"sv, "/a/alloc") == "id");
  CHECK(AllocationByEnvironment("SLUICE_SOCKET=/a/alloc/x/y/agent.sock\0"sv, "/a/alloc").empty());
  CHECK(AllocationByEnvironment("SLUICE_SOCKET=/elsewhere/id/agent.sock"sv, "/a/alloc").empty());
  CHECK(AllocationByEnvironment(""sv, "/a").empty());
}

TEST_CASE("working sets that exceed the card take turns: memory follows the token") {
  World w;
  w.Allocate("a", 50);
  w.Allocate("b", 50);
  w.Attach(1, "a");
  w.Attach(2, "b");
  uint64_t kernel[3] = {};
  const auto works = [&](SessionId s) {
    w.Follow(s, 6 * kGiB);
    w.pages[s].gpu[0].working_set_bytes = 6 * kGiB;
    w.pages[s].gpu[0].kernel_ns = kernel[s] += 20'000'000;
    w.pages[s].heartbeat_ns = w.now;
  };
  const auto last = [&](SessionId s, uint16_t type) -> const sluice_token* {
    const auto& sent = w.port.sent[s];
    for (auto f = sent.rbegin(); f != sent.rend(); ++f) {
      if (f->h.type == type) return &f->u.token;
    }
    return nullptr;
  };
  const auto say = [&](SessionId s, uint16_t type, uint64_t id, uint64_t used) {
    sluice_frame f = FrameOf(type);
    std::strcpy(f.u.token.uuid, "GPU-a");
    f.u.token.id = id;
    f.u.token.used_ns = used;
    f.u.token.burst_ns = used;
    w.node.Received(s, &f, sizeof(f), w.now);
    w.node.Settle();
  };
  for (int i = 0; i < 20; ++i) {
    works(1), works(2);
    w.Pass(kSec / 20);
    REQUIRE(w.node.LedgerOf("GPU-a")->exposure() <= 8 * kGiB);
  }
  REQUIRE(w.port.Budget(1)->tokens == 1);
  say(1, SLUICE_TOKEN_REQUEST, 0, 0);
  say(2, SLUICE_TOKEN_REQUEST, 0, 0);
  const auto pass = [&](int n) {
    for (int i = 0; i < n; ++i) {
      works(1), works(2);
      w.Pass(kSec / 100);
      REQUIRE(w.node.LedgerOf("GPU-a")->exposure() <= 8 * kGiB);
    }
  };
  pass(50);
  REQUIRE(last(1, SLUICE_TOKEN_GRANT) != nullptr);
  REQUIRE(last(2, SLUICE_TOKEN_GRANT) == nullptr);
  CHECK(last(2, SLUICE_PING) == nullptr);
  say(2, SLUICE_TOKEN_REQUEST, 0, 0);  // again: it hears that somebody is there
  CHECK(last(2, SLUICE_PING) != nullptr);
  CHECK(last(1, SLUICE_TOKEN_GRANT)->quantum_ns > kSec);  // turns are long where changing over is dear
  CHECK(w.port.Budget(1)->budget_bytes == 6 * kGiB);
  CHECK(w.port.Budget(2)->budget_bytes == 2 * kGiB);  // what is left stays with it
  say(1, SLUICE_TOKEN_RELEASE, last(1, SLUICE_TOKEN_GRANT)->id, 5 * kSec);
  say(1, SLUICE_TOKEN_REQUEST, 0, 0);
  pass(50);
  REQUIRE(last(2, SLUICE_TOKEN_GRANT) != nullptr);
  CHECK(w.port.Budget(2)->budget_bytes == 6 * kGiB);
  CHECK(w.port.Budget(1)->budget_bytes == 2 * kGiB);
  // A holder whose heart stops loses the token long before its lease is over.
  const size_t grants = w.port.sent[1].size();
  for (int i = 0; i < 300; ++i) {
    works(1);
    w.Pass(kSec / 100);
  }
  CHECK(last(2, SLUICE_TOKEN_REVOKE) != nullptr);
  CHECK(w.port.sent[1].size() > grants);
  CHECK(w.port.sent[1].back().h.type != 0);
  CHECK(last(1, SLUICE_TOKEN_GRANT)->id > last(2, SLUICE_TOKEN_GRANT)->id);
}

TEST_CASE("working sets of which two fit: the token goes to and fro between these, and no memory moves") {
  World w;
  uint64_t kernel[4] = {}, granted[4] = {};
  for (SessionId s = 1; s <= 3; ++s) {
    w.Allocate(std::string(1, static_cast<char>('a' + s)), 33);
    w.Attach(s, std::string(1, static_cast<char>('a' + s)));
  }
  const auto say = [&](SessionId s, uint16_t type) {
    sluice_frame f = FrameOf(type);
    std::strcpy(f.u.token.uuid, "GPU-a");
    f.u.token.id = granted[s];
    f.u.token.used_ns = kSec;
    w.node.Received(s, &f, sizeof(f), w.now);
    w.node.Settle();
  };
  const auto works = [&](SessionId s) {
    w.Follow(s, 3 * kGiB);
    w.pages[s].gpu[0].working_set_bytes = 3 * kGiB;
    w.pages[s].gpu[0].kernel_ns = kernel[s] += 1'000'000;
    w.pages[s].heartbeat_ns = w.now;
  };
  const auto pass = [&](int n) {
    for (int i = 0; i < n; ++i) {
      for (SessionId s = 1; s <= 3; ++s) works(s);
      w.Pass(kSec / 100);
    }
  };
  const auto holder = [&] {  // of the newest grant
    SessionId newest = 1;
    for (SessionId s = 1; s <= 3; ++s) {
      for (const sluice_frame& f : w.port.sent[s]) {
        if (f.h.type == SLUICE_TOKEN_GRANT) granted[s] = std::max(granted[s], f.u.token.id);
      }
      if (granted[s] > granted[newest]) newest = s;
    }
    return newest;
  };
  pass(200);
  REQUIRE(w.port.Budget(1)->tokens == 1);
  for (SessionId s = 1; s <= 3; ++s) say(s, SLUICE_TOKEN_REQUEST);
  const auto nap = [&](SessionId s) {
    say(s, SLUICE_TOKEN_RELEASE);
    say(s, SLUICE_TOKEN_REQUEST);
  };
  for (SessionId s = holder(); granted[1] == 0 || granted[2] == 0 || granted[3] == 0; s = holder()) {
    nap(s);
    pass(10);
  }
  const SessionId last = holder();
  CHECK(w.port.Budget(last)->budget_bytes >= 3 * kGiB);
  // Two sets are there. The token goes from one to the other, and nobody's budget moves.
  uint64_t generations[4] = {};
  for (SessionId s = 1; s <= 3; ++s) generations[s] = w.port.Budget(s)->generation;
  nap(last);
  pass(5);
  const SessionId next = holder();
  CHECK(next != last);
  CHECK(w.port.Budget(next)->budget_bytes >= 3 * kGiB);
  for (SessionId s = 1; s <= 3; ++s) CHECK(generations[s] == w.port.Budget(s)->generation);
}
