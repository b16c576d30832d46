// A node with one GPU of 8 GiB, driven by hand: frames in, frames out, pages in ordinary memory.
#ifndef SLUICE_TEST_AGENT_NODE_RIG_H_
#define SLUICE_TEST_AGENT_NODE_RIG_H_

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/node.h"

namespace sluice::agent {

inline constexpr uint64_t kSec = 1'000'000'000;
inline constexpr Bytes kGiB = 1ull << 30;

class FakePort : public Port {
 public:
  void Send(SessionId session, const sluice_frame& frame) override { sent[session].push_back(frame); }
  void Close(SessionId session) override { closed.insert(session); }
  void SendSoon() override { ++soon; }
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
  int soon = 0;
};

inline sluice_frame FrameOf(uint16_t type) {
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
  // The process follows its newest budget and holds as much of `live` as that allows.
  void Follow(SessionId s, Bytes live) {
    const sluice_budget* b = port.Budget(s);
    sluice_gpu_slot& c = pages[s].gpu[0];
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
    while (node.Tick(now) == 0) {
    }
  }
  FakePort port;
  Node node;
  uint64_t now = 100 * kSec;
  std::map<SessionId, sluice_page> pages;
};

}  // namespace sluice::agent

#endif  // SLUICE_TEST_AGENT_NODE_RIG_H_
