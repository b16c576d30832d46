// Node: tokens, and the memory that follows them.
#include <catch2/catch_test_macros.hpp>

#include "node_rig.h"

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

TEST_CASE("working sets that exceed the GPU by little take no turns with its memory") {
  World w;
  w.Allocate("a", 50);
  w.Allocate("b", 50);
  w.Attach(1, "a");
  w.Attach(2, "b");
  const auto tokens_with = [&](Bytes each) {
    for (int i = 0; i < 20; ++i) {
      for (const SessionId s : {1, 2}) {
        w.Follow(s, 6 * kGiB);
        w.pages[s].gpu[0].working_set_bytes = each;
        w.pages[s].heartbeat_ns = w.now;
      }
      w.Pass(kSec / 20);
    }
    return w.port.Budget(1)->tokens;
  };
  CHECK(tokens_with(4 * kGiB + kGiB / 16) == 0);
  CHECK(tokens_with(4 * kGiB + kGiB / 4) == 1);
}

TEST_CASE("memory follows the token while working sets exceed the GPU") {
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
  const auto send = [&](SessionId s, uint16_t type, uint64_t id, uint64_t used) {
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
  send(1, SLUICE_TOKEN_REQUEST, 0, 0);
  send(2, SLUICE_TOKEN_REQUEST, 0, 0);
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
  send(2, SLUICE_TOKEN_REQUEST, 0, 0);  // repeated: PING shows that the agent runs
  CHECK(last(2, SLUICE_PING) != nullptr);
  CHECK(last(1, SLUICE_TOKEN_GRANT)->quantum_ns > kSec);  // time slices are long because switches are costly
  CHECK(w.port.Budget(1)->budget_bytes == 6 * kGiB);
  CHECK(w.port.Budget(2)->budget_bytes == 2 * kGiB);  // it keeps the rest
  send(1, SLUICE_TOKEN_RELEASE, last(1, SLUICE_TOKEN_GRANT)->id, 5 * kSec);
  send(1, SLUICE_TOKEN_REQUEST, 0, 0);
  pass(50);
  REQUIRE(last(2, SLUICE_TOKEN_GRANT) != nullptr);
  CHECK(w.port.Budget(2)->budget_bytes == 6 * kGiB);
  CHECK(w.port.Budget(1)->budget_bytes == 2 * kGiB);
  // A holder without a heartbeat loses the token long before its lease ends.
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

TEST_CASE("the token alternates between two working sets that fit, and no memory moves") {
  World w;
  uint64_t kernel[4] = {}, granted[4] = {};
  for (SessionId s = 1; s <= 3; ++s) {
    w.Allocate(std::string(1, static_cast<char>('a' + s)), 33);
    w.Attach(s, std::string(1, static_cast<char>('a' + s)));
  }
  const auto send = [&](SessionId s, uint16_t type) {
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
  for (SessionId s = 1; s <= 3; ++s) send(s, SLUICE_TOKEN_REQUEST);
  const auto pause = [&](SessionId s) {
    send(s, SLUICE_TOKEN_RELEASE);
    send(s, SLUICE_TOKEN_REQUEST);
  };
  for (SessionId s = holder(); granted[1] == 0 || granted[2] == 0 || granted[3] == 0; s = holder()) {
    pause(s);
    pass(10);
  }
  const SessionId last = holder();
  CHECK(w.port.Budget(last)->budget_bytes >= 3 * kGiB);
  // Two working sets are resident. The token moves from one to the other, and no budget changes.
  uint64_t generations[4] = {};
  for (SessionId s = 1; s <= 3; ++s) generations[s] = w.port.Budget(s)->generation;
  pause(last);
  pass(5);
  const SessionId next = holder();
  CHECK(next != last);
  CHECK(w.port.Budget(next)->budget_bytes >= 3 * kGiB);
  for (SessionId s = 1; s <= 3; ++s) CHECK(generations[s] == w.port.Budget(s)->generation);
}
