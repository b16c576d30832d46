#include "agent/ledger.h"

#include <catch2/catch_test_macros.hpp>
#include <numeric>
#include <random>

using namespace sluice::agent;  // NOLINT(google-build-using-namespace)

namespace {
constexpr Bytes kGiB = 1ull << 30;

Ledger::Policy Exact(Lending lending) { return {.lending = lending, .floor_percent = 10, .step = 1}; }

// A holder that follows the newest budget, and holds as much of it as it wants.
struct Holder {
  Bytes held = 0, wanted = 0;
  uint64_t generation = 0;
};
}  // namespace

TEST_CASE("ShareOut respects weights, caps and the total") {
  CHECK(ShareOut(100, {{1000, 1}, {1000, 3}}) == std::vector<Bytes>{25, 75});
  CHECK(ShareOut(100, {{10, 1}, {1000, 1}}) == std::vector<Bytes>{10, 90});
  CHECK(ShareOut(100, {{10, 1}, {20, 9}}) == std::vector<Bytes>{10, 20});
  CHECK(ShareOut(100, {{0, 1}, {50, 0}}) == std::vector<Bytes>{0, 0});
  CHECK(ShareOut(0, {{10, 1}}) == std::vector<Bytes>{0});
}

TEST_CASE("a process alone in its container gets the whole guarantee at once") {
  Ledger ledger(8 * kGiB, Exact(Lending::kIdle));
  ledger.SetGroup(1, 4 * kGiB, 50);
  ledger.AddMember(10, 1);
  const auto changes = ledger.Plan();
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].budget == 4 * kGiB);
  CHECK(ledger.Plan().empty());
  ledger.Update(10, {changes[0].generation, 0, 9 * kGiB});
  CHECK(ledger.Plan().empty());  // no other guarantee is idle: nothing to borrow
  ledger.SetPolicy(Exact(Lending::kAll));
  REQUIRE(ledger.Plan().size() == 1);
  CHECK(ledger.Find(10)->budget == 8 * kGiB);
}

TEST_CASE("the unused guarantee of an idle container is lent, and reclaimed when it wakes") {
  Ledger ledger(8 * kGiB, Exact(Lending::kIdle));
  ledger.SetGroup(1, 4 * kGiB, 50);
  ledger.SetGroup(2, 4 * kGiB, 50);
  ledger.AddMember(10, 1);
  ledger.AddMember(20, 2);
  (void)ledger.Plan();
  ledger.Update(10, {ledger.Find(10)->generation, kGiB, kGiB});
  ledger.Update(20, {ledger.Find(20)->generation, 4 * kGiB, 6 * kGiB});
  (void)ledger.Plan();
  CHECK(ledger.Find(10)->budget == 2 * kGiB);  // reclaimed from the idle one
  CHECK(ledger.Find(20)->budget == 4 * kGiB);  // not yet lent: the idle one has not reported that it follows
  CHECK_FALSE(ledger.settled());
  ledger.Update(10, {ledger.Find(10)->generation, kGiB, kGiB});
  (void)ledger.Plan();
  CHECK(ledger.Find(20)->budget == 6 * kGiB);
  CHECK(ledger.lent() == 2 * kGiB);

  ledger.Update(20, {ledger.Find(20)->generation, 6 * kGiB, 6 * kGiB});
  ledger.Update(10, {ledger.Find(10)->generation, 2 * kGiB, 4 * kGiB});  // wakes
  (void)ledger.Plan();
  CHECK(ledger.Find(20)->budget == 4 * kGiB);
  CHECK(ledger.Find(10)->budget == 2 * kGiB);
  CHECK(ledger.overdue() == 2 * kGiB);
  ledger.Update(20, {ledger.Find(20)->generation, 5 * kGiB, 6 * kGiB});  // follows, and has returned one of two GiB
  (void)ledger.Plan();
  CHECK(ledger.Find(10)->budget == 3 * kGiB);
  CHECK(ledger.overdue() == kGiB);
  // A stopped borrower does not answer: the owner goes on with less, and gets the rest when the borrower ends.
  (void)ledger.Plan();
  CHECK(ledger.Find(10)->budget == 3 * kGiB);
  ledger.RemoveMember(20);
  (void)ledger.Plan();
  CHECK(ledger.Find(10)->budget == 4 * kGiB);
  CHECK(ledger.overdue() == 0);
}

TEST_CASE("processes of one container share its budget by need") {
  Ledger ledger(8 * kGiB, Exact(Lending::kOff));
  ledger.SetGroup(1, 4 * kGiB, 50);
  ledger.AddMember(10, 1);
  ledger.AddMember(11, 1);
  (void)ledger.Plan();
  CHECK(ledger.budgets() == 4 * kGiB);
  for (const MemberId m : {10, 11}) ledger.Update(m, {ledger.Find(m)->generation, 0, m == 10 ? 3 * kGiB : 0});
  (void)ledger.Plan();
  ledger.Update(11, {ledger.Find(11)->generation, 0, 0});
  (void)ledger.Plan();
  CHECK(ledger.Find(10)->budget >= 3 * kGiB);
  CHECK(ledger.budgets() <= 4 * kGiB);
}

TEST_CASE("after a restart, the bytes of returning processes count before new budgets are planned") {
  Ledger ledger(8 * kGiB, Exact(Lending::kIdle));
  ledger.SetGroup(1, 4 * kGiB, 50);
  ledger.SetGroup(2, 4 * kGiB, 50);
  ledger.AddMember(20, 2);
  ledger.Restore(20, 6 * kGiB);  // it had borrowed
  ledger.AddMember(10, 1);
  (void)ledger.Plan();
  CHECK(ledger.exposure() <= 8 * kGiB);
  CHECK(ledger.Find(10)->budget == 2 * kGiB);
}

TEST_CASE("vacant allocations take no memory from used ones when guarantees exceed the capacity") {
  Ledger ledger(8 * kGiB, Exact(Lending::kIdle));
  ledger.SetGroup(1, 8 * kGiB, 100);
  ledger.AddMember(10, 1);
  for (GroupId old = 2; old < 8; ++old) ledger.SetGroup(old, 8 * kGiB, 100);  // folders of pods that ended
  (void)ledger.Plan();
  CHECK(ledger.Find(10)->budget < 2 * kGiB);  // they may be starting: all shrink in proportion
  for (GroupId old = 2; old < 8; ++old) ledger.Vacate(old);
  (void)ledger.Plan();
  CHECK(ledger.Find(10)->budget == 8 * kGiB);
  ledger.Vacate(1);  // has a process: not vacant
  (void)ledger.Plan();
  CHECK(ledger.Find(10)->budget == 8 * kGiB);
  ledger.Update(10, {ledger.Find(10)->generation, 8 * kGiB, 8 * kGiB});

  ledger.AddMember(20, 2);  // one of them is used after all: both are guaranteed the whole GPU
  (void)ledger.Plan();
  ledger.Update(20, {ledger.Find(20)->generation, 0, 8 * kGiB});
  (void)ledger.Plan();
  CHECK(ledger.Find(10)->budget == 4 * kGiB);
  ledger.Update(10, {ledger.Find(10)->generation, 4 * kGiB, 8 * kGiB});
  ledger.Update(20, {ledger.Find(20)->generation, 0, 8 * kGiB});
  (void)ledger.Plan();
  CHECK(ledger.Find(20)->budget == 4 * kGiB);
  ledger.RemoveMember(20);  // it keeps its share until it is vacant again
  (void)ledger.Plan();
  CHECK(ledger.Find(10)->budget < 8 * kGiB);
  ledger.Vacate(2);
  (void)ledger.Plan();
  CHECK(ledger.Find(10)->budget == 8 * kGiB);
}

TEST_CASE("while guarantees fit the GPU, an allocation without a process keeps its floor") {
  Ledger ledger(8 * kGiB, Exact(Lending::kIdle));
  ledger.SetGroup(1, 4 * kGiB, 50);
  ledger.SetGroup(2, 4 * kGiB, 50);
  ledger.AddMember(10, 1);
  ledger.Vacate(2);
  (void)ledger.Plan();
  ledger.Update(10, {ledger.Find(10)->generation, 0, 8 * kGiB});
  (void)ledger.Plan();
  CHECK(ledger.Find(10)->budget == 8 * kGiB - 4 * kGiB * 10 / 100);
}

// 10,000 random histories of attached and ended processes, reports (true, missing and false), changed guarantees and
// policies, beside groups with any guarantee and no process.
TEST_CASE("the sum of exposures never exceeds the capacity") {
  std::mt19937_64 random(20261121);
  const auto below = [&](uint64_t n) { return n == 0 ? 0 : random() % n; };
  for (int run = 0; run < 10000; ++run) {
    const Bytes capacity = (1 + below(64)) * kGiB;
    const auto lending = static_cast<Lending>(below(4));
    Ledger ledger(capacity,
                  {.lending = lending, .floor_percent = static_cast<uint32_t>(below(60)), .step = 1 + below(kGiB)});
    std::map<GroupId, Bytes> guarantees;
    std::map<MemberId, Holder> holders;
    std::map<MemberId, GroupId> home;
    MemberId next = 1;
    Bytes guaranteed = 0;
    const int steps = 5 + static_cast<int>(below(30));
    for (int step = 0; step < steps; ++step) {
      if (below(8) == 0) ledger.SetGroup(100 + below(4), below(2 * capacity), 1 + below(100));
      if (below(4) == 0) ledger.Vacate(1 + below(8));
      switch (below(7)) {
        case 0: {
          const Bytes g = below(capacity - guaranteed + 1);
          const GroupId id = 1 + below(8);
          if (guarantees.contains(id)) break;
          guarantees[id] = g;
          guaranteed += g;
          ledger.SetGroup(id, g, 1 + below(100));
          break;
        }
        case 1:
          if (guarantees.empty()) break;
          {
            auto it = guarantees.begin();
            std::advance(it, below(guarantees.size()));
            ledger.AddMember(next, it->first);
            home[next] = it->first;
            holders[next++] = {};
          }
          break;
        case 2:
          if (!holders.empty()) {
            auto it = holders.begin();
            std::advance(it, below(holders.size()));
            ledger.RemoveMember(it->first);
            home.erase(it->first);
            holders.erase(it);
          }
          break;
        case 3:
          if (!guarantees.empty() && below(4) == 0) {
            auto it = guarantees.begin();
            std::advance(it, below(guarantees.size()));
            ledger.RemoveGroup(it->first);
            guaranteed -= it->second;
            std::erase_if(home, [&](const auto& h) {
              if (h.second != it->first) return false;
              holders.erase(h.first);
              return true;
            });
            guarantees.erase(it);
          }
          break;
        default:
          for (auto& [id, h] : holders) {
            if (below(3) == 0) continue;  // silent
            const auto* view = ledger.Find(id);
            h.wanted = below(2 * capacity);
            h.generation = view->generation;
            // A follower holds at most the budget once it has evicted; some reports are false.
            h.held = below(8) == 0 ? below(2 * capacity) : std::min(h.wanted, view->budget);
            ledger.Update(id, {h.generation, h.held, h.wanted});
          }
      }
      (void)ledger.Plan();
      REQUIRE(ledger.exposure() <= capacity);
      REQUIRE(ledger.budgets() <= ledger.exposure());
      if (lending == Lending::kOff) {
        for (const auto& [gid, g] : guarantees) {
          Bytes has = 0;
          for (const auto& [m, home_id] : home) has += home_id == gid ? ledger.Find(m)->budget : 0;
          REQUIRE(has <= g);
        }
      }
    }
    for (const auto& [gid, g] : guarantees) ledger.Vacate(gid);  // without effect on those with members
    for (GroupId old = 100; old < 104; ++old) ledger.Vacate(old);
    // Once all holders follow, each group has at least the smaller of its wanted bytes and its guarantee, within one
    // step.
    for (int round = 0; round < 64; ++round) {
      for (const auto& [id, h] : holders) {
        const auto* view = ledger.Find(id);
        ledger.Update(id, {view->generation, std::min(h.wanted, view->budget), h.wanted});
      }
      (void)ledger.Plan();
      REQUIRE(ledger.exposure() <= capacity);
    }
    for (const auto& [gid, g] : guarantees) {
      Bytes has = 0, wanted = 0;
      bool any = false;
      for (const auto& [m, home_id] : home) {
        if (home_id != gid) continue;
        any = true;
        has += ledger.Find(m)->budget;
        wanted += holders.at(m).wanted;
      }
      if (any && lending != Lending::kEven) REQUIRE(has + 64 >= std::min(wanted, g));
    }
    REQUIRE(ledger.overdue() == 0);
  }
}

TEST_CASE("parked groups have no floor, and with lending off their memory stays unused") {
  constexpr Bytes kUnmanaged = kGiB / 4;
  for (const Lending lending : {Lending::kIdle, Lending::kAll, Lending::kOff}) {
    Ledger ledger(8 * kGiB, Exact(lending));
    ledger.SetGroup(1, 4 * kGiB, 50);
    ledger.SetGroup(2, 4 * kGiB, 50);
    ledger.AddMember(1, 1);
    ledger.AddMember(2, 2);
    const auto settle = [&](Bytes one, Bytes two) {
      for (int round = 0; round < 4; ++round) {
        for (const auto& [m, wanted] : {std::pair<MemberId, Bytes>{1, one}, {2, two}}) {
          const auto* view = ledger.Find(m);
          ledger.Update(m, {view->generation, std::min(view->budget, wanted), wanted});
        }
        (void)ledger.Plan();
        REQUIRE(ledger.exposure() <= 8 * kGiB);
      }
    };
    settle(4 * kGiB, 8 * kGiB);
    CHECK(ledger.Find(1)->budget == 4 * kGiB);
    ledger.SetParked(1, true);
    settle(kUnmanaged, 8 * kGiB);
    CHECK(ledger.Find(1)->budget == kUnmanaged);
    CHECK(ledger.Find(2)->budget == (lending == Lending::kOff ? 4 * kGiB : 8 * kGiB - kUnmanaged));
    ledger.SetParked(1, false);
    settle(4 * kGiB, 8 * kGiB);
    CHECK(ledger.Find(1)->budget == 4 * kGiB);
    CHECK(ledger.Find(2)->budget == 4 * kGiB);
  }
}

TEST_CASE("after a restart, a claim beyond a guarantee takes nothing from a claim within another's") {
  Ledger l(8 * kGiB, {});
  l.SetGroup(1, 4 * kGiB, 50);
  l.SetGroup(2, 4 * kGiB, 50);
  l.AddMember(10, 1);
  l.Restore(10, 8 * kGiB);  // says that all is its
  l.Plan();
  CHECK(l.Find(10)->exposure == 8 * kGiB);
  l.AddMember(20, 2);
  l.Restore(20, 3 * kGiB);
  CHECK(l.Find(20)->exposure == 3 * kGiB);
  CHECK(l.Find(10)->exposure == 5 * kGiB);
  CHECK(l.exposure() <= l.capacity());
  l.Update(20, {0, 3 * kGiB, 3 * kGiB});
  bool told = false;
  for (const Ledger::Change& c : l.Plan()) told |= c.member == 10;
  CHECK(told);
  CHECK(l.Find(20)->budget >= 3 * kGiB);
  // A second liar's claim beyond its guarantee gets the rest.
  l.AddMember(21, 2);
  l.Restore(21, 8 * kGiB);
  CHECK(l.Find(21)->exposure <= kGiB);
  CHECK(l.exposure() <= l.capacity());
}
