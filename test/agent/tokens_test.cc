#include "agent/tokens.h"

#include <catch2/catch_test_macros.hpp>
#include <map>
#include <random>
#include <utility>
#include <vector>

using sluice::agent::Arbiter;
using sluice::agent::Nanos;

namespace {

constexpr Nanos kUs = 1000, kMs = 1000 * kUs, kSec = 1000 * kMs;

// A card in virtual time. Tenants run kernels of a given length while they hold the token; nothing preempts a kernel.
struct Tenant {
  uint32_t request, limit;
  Nanos kernel;                       // length of each
  Nanos burst = 20 * kMs;             // work that is queued at once
  Nanos begin = 0, end = UINT64_MAX;  // has work between these
  enum class Fate { kHonest, kDies, kHangs } fate = Fate::kHonest;
  Nanos fate_at = UINT64_MAX;
  Nanos used = 0;
  bool asked = false;
};

struct Span {
  int tenant;
  Nanos begin, end;
};

class Card {
 public:
  Card(Arbiter::Policy policy, std::vector<Tenant> tenants) : arbiter(policy), tenants(std::move(tenants)) {
    for (size_t i = 0; i < this->tenants.size(); ++i)
      arbiter.SetClient(i + 1, this->tenants[i].request, this->tenants[i].limit);
  }

  void Run(Nanos until) {
    while (now < until) {
      for (size_t i = 0; i < tenants.size(); ++i) {
        Tenant& t = tenants[i];
        const bool alive = t.fate != Tenant::Fate::kDies || now < t.fate_at;
        if (alive && !t.asked && now >= t.begin && now < t.end) {
          t.asked = true;
          arbiter.Request(i + 1, i + 1, t.burst, now);
        }
      }
      bool granted = false;
      for (const Arbiter::Action& a : arbiter.Advance(now)) {
        if (a.kind == Arbiter::Action::Kind::kRevoke) continue;
        granted = true;
        Hold(a);
      }
      if (!granted) now = std::min(until, std::max(now + kMs, arbiter.NextWake(now).value_or(now + kMs)));
    }
  }

  void Hold(const Arbiter::Action& a) {
    Tenant& t = tenants[a.holder - 1];
    t.asked = false;
    if (t.fate != Tenant::Fate::kHonest && now >= t.fate_at) {
      if (t.fate == Tenant::Fate::kDies) arbiter.RemoveHolder(a.holder, now);
      if (t.fate == Tenant::Fate::kHangs) t.asked = true;  // never says a word again
      now += kMs;
      return;
    }
    const Nanos start = now;
    Nanos used = 0;
    while (used < std::min(a.quantum, t.burst)) used += t.kernel;
    now += used;
    t.used += used;
    spans.push_back({static_cast<int>(a.holder - 1), start, now});
    arbiter.Release(a.holder, a.id, used, t.burst, now);
  }

  // Shares over every window that begins at a multiple of 100 ms.
  std::vector<std::pair<double, double>> Extremes(Nanos from, Nanos to, Nanos window) const {
    std::vector<std::pair<double, double>> out(tenants.size(), {1, 0});
    for (Nanos begin = from; begin + window <= to; begin += 100 * kMs) {
      std::vector<Nanos> sum(tenants.size());
      for (const Span& s : spans) {
        const Nanos b = std::max(s.begin, begin), e = std::min(s.end, begin + window);
        if (b < e) sum[static_cast<size_t>(s.tenant)] += e - b;
      }
      for (size_t i = 0; i < tenants.size(); ++i) {
        const double share = static_cast<double>(sum[i]) / static_cast<double>(window);
        out[i] = {std::min(out[i].first, share), std::max(out[i].second, share)};
      }
    }
    return out;
  }

  Arbiter arbiter;
  std::vector<Tenant> tenants;
  std::vector<Span> spans;
  Nanos now = kSec;
};

}  // namespace

TEST_CASE("shares of 0.7 and 0.3 hold within two points over any 10 s") {
  for (const Nanos kernel : {50 * kUs, 3 * kMs, 40 * kMs}) {
    Card card({}, {{700000, 1000000, kernel}, {300000, 1000000, 200 * kUs}});
    card.Run(60 * kSec);
    const auto e = card.Extremes(kSec, 60 * kSec, 10 * kSec);
    INFO("kernel " << kernel << ": " << e[0].first << ".." << e[0].second << " and " << e[1].first << ".."
                   << e[1].second);
    CHECK(e[0].first >= 0.68);
    CHECK(e[0].second <= 0.72);
    CHECK(e[1].first >= 0.28);
    CHECK(e[1].second <= 0.32);
  }
}

TEST_CASE("a limit is exceeded by at most a quantum and the longest kernel, and is paced") {
  Card card({}, {{200000, 500000, 5 * kMs}, {100000, 1000000, kMs, 20 * kMs, 30 * kSec, 31 * kSec}});
  card.Run(40 * kSec);
  const auto e = card.Extremes(kSec, 29 * kSec, 10 * kSec);
  CHECK(e[0].second <= 0.5 + (20.0 + 5.0) / 10000);
  CHECK(e[0].first >= 0.47);
  const auto paced = card.Extremes(kSec, 29 * kSec, 2 * kSec);
  CHECK(paced[0].second <= 0.56);
}

TEST_CASE("what one leaves idle, the other uses") {
  Card card({}, {{500000, 1000000, kMs}, {500000, 1000000, kMs, 20 * kMs, 20 * kSec, 40 * kSec}});
  card.Run(60 * kSec);
  CHECK(card.Extremes(2 * kSec, 19 * kSec, 5 * kSec)[0].first > 0.99);
  const auto both = card.Extremes(30 * kSec, 40 * kSec, 5 * kSec);
  CHECK(both[1].first > 0.45);
}

TEST_CASE("who dies or hangs with the token loses it") {
  for (const auto fate : {Tenant::Fate::kDies, Tenant::Fate::kHangs}) {
    Card card({}, {{500000, 1000000, kMs, 20 * kMs, 0, UINT64_MAX, fate, 5 * kSec}, {500000, 1000000, kMs}});
    card.Run(40 * kSec);
    CHECK(card.Extremes(10 * kSec, 40 * kSec, 5 * kSec)[1].first > 0.9);
  }
}

TEST_CASE("tokens are demanded only while they are needed") {
  Arbiter arbiter({});
  const Nanos t = 100 * kSec;
  arbiter.SetClient(1, 500000, 1000000);
  CHECK_FALSE(arbiter.Demanded(t));
  for (Nanos n = 0; n < 10 * kSec; n += 100 * kMs) arbiter.Observe(1, 100 * kMs, true, t + n);
  CHECK_FALSE(arbiter.Demanded(t + 10 * kSec));  // alone, without a limit: never
  arbiter.SetClient(2, 500000, 1000000);
  // Two that use a little each: nobody starves on a card that has time.
  Arbiter calm({});
  calm.SetClient(1, 500000, 1000000);
  calm.SetClient(2, 500000, 1000000);
  for (Nanos n = 0; n < 10 * kSec; n += 100 * kMs) {
    calm.Observe(1, 20 * kMs, true, t + n);
    calm.Observe(2, 20 * kMs, true, t + n);
  }
  CHECK_FALSE(calm.Demanded(t + 10 * kSec));
  // One takes nearly all.
  for (Nanos n = 0; n < 10 * kSec; n += 100 * kMs) {
    arbiter.Observe(1, 90 * kMs, true, t + 10 * kSec + n);
    arbiter.Observe(2, 10 * kMs, true, t + 10 * kSec + n);
  }
  CHECK(arbiter.Demanded(t + 20 * kSec));
  // Once everyone has its share by them, they stay: without them it would be lost again.
  for (Nanos n = 0; n < 10 * kSec; n += 100 * kMs) {
    arbiter.Observe(1, 50 * kMs, true, t + 20 * kSec + n);
    arbiter.Observe(2, 50 * kMs, true, t + 20 * kSec + n);
  }
  CHECK(arbiter.Demanded(t + 30 * kSec));
  for (Nanos n = 0; n < 10 * kSec; n += 100 * kMs) {
    arbiter.Observe(1, 20 * kMs, true, t + 30 * kSec + n);
    arbiter.Observe(2, 20 * kMs, true, t + 30 * kSec + n);
  }
  CHECK_FALSE(arbiter.Demanded(t + 40 * kSec));  // the card has time to spare
  arbiter.RemoveClient(2);
  CHECK_FALSE(arbiter.Demanded(t + 40 * kSec));
  arbiter.SetClient(1, 500000, 800000);
  CHECK(arbiter.Demanded(t + 40 * kSec - kMs));
  CHECK_FALSE(arbiter.Demanded(t + 50 * kSec));  // no work, no token
  calm.SetPressure(true, 50 * kMs);
  CHECK(calm.Demanded(t + 10 * kSec));
  CHECK(calm.QuantumOf(1) == 2 * kSec);  // switching costs: longer turns,
  calm.SetPressure(true, kSec);
  CHECK(calm.QuantumOf(1) == 15 * kSec);  // up to its share of the time over which shares hold then
  calm.SetPressure(false, 0);
  CHECK(calm.QuantumOf(1) == kMs);
}

TEST_CASE("a lie about used time is bounded by the clock, and stale words change nothing") {
  Arbiter arbiter({});
  arbiter.SetClient(1, 500000, 1000000);
  arbiter.Request(1, 7, 10 * kMs, kSec);
  const auto a = arbiter.Advance(kSec);
  REQUIRE(a.size() == 1);
  arbiter.Release(7, a[0].id + 1, kSec, kMs, kSec + kMs);
  arbiter.Release(8, a[0].id, kSec, kMs, kSec + kMs);
  CHECK(arbiter.Share(1, kSec + kMs) == 0);
  arbiter.Release(7, a[0].id, 1000 * kSec, kMs, kSec + 5 * kMs);
  CHECK(arbiter.Share(1, kSec + 5 * kMs) <= 0.0005 + 1e-9);
  arbiter.Release(7, a[0].id, 1000 * kSec, kMs, kSec + 9 * kMs);
  CHECK(arbiter.Share(1, kSec + 9 * kMs) <= 0.0005 + 1e-9);
}

TEST_CASE("random tenants: never two holders, never a limit broken, never time lost while somebody may run") {
  std::mt19937 random(7);
  for (int run = 0; run < 60; ++run) {
    std::vector<Tenant> tenants;
    const int n = 1 + static_cast<int>(random() % 5);
    for (int i = 0; i < n; ++i) {
      Tenant t{};
      t.request = 1000000 / static_cast<uint32_t>(n);
      t.limit = random() % 3 == 0 ? std::max<uint32_t>(t.request, 100000 + random() % 900000) : 1000000;
      t.kernel = (20 + random() % 5000) * kUs;
      t.burst = (1 + random() % 50) * kMs;
      tenants.push_back(t);
    }
    Card card({}, tenants);
    card.Run(25 * kSec);
    for (size_t i = 1; i < card.spans.size(); ++i) REQUIRE(card.spans[i].begin >= card.spans[i - 1].end);
    const auto e = card.Extremes(kSec, 25 * kSec, 10 * kSec);
    double least = 0;
    for (int i = 0; i < n; ++i) {
      const Tenant& t = tenants[static_cast<size_t>(i)];
      const double slack = static_cast<double>(t.burst + t.kernel) / static_cast<double>(10 * kSec) + 0.015;
      REQUIRE(e[static_cast<size_t>(i)].second <= t.limit / 1e6 + slack);
      REQUIRE(e[static_cast<size_t>(i)].first >= t.request / 1e6 - 0.03);
      least += e[static_cast<size_t>(i)].first;
    }
  }
}

TEST_CASE("kernels that run on beyond their lease are paid for when they end") {
  Arbiter arbiter({});
  arbiter.SetClient(1, 500000, 1000000);
  arbiter.SetClient(2, 500000, 1000000);
  arbiter.Request(1, 7, 0, kSec);
  const auto grant = arbiter.Advance(kSec).front();
  CHECK(grant.lease == 104 * kMs);
  arbiter.Request(2, 8, 0, kSec);
  const auto after = arbiter.Advance(kSec + grant.lease);
  REQUIRE(after.size() == 2);  // revoked, and the other one runs beside the kernel that will not end
  CHECK(after[0].kind == Arbiter::Action::Kind::kRevoke);
  CHECK(after[1].holder == 8);
  arbiter.Release(7, grant.id, 2 * kSec, 2 * kSec, 3 * kSec);
  CHECK(arbiter.Share(1, 3 * kSec) > 0.199);
  CHECK(arbiter.Share(1, 3 * kSec) < 0.201);
  arbiter.Release(7, grant.id, 2 * kSec, 2 * kSec, 3 * kSec);  // once
  CHECK(arbiter.Share(1, 3 * kSec) < 0.201);
}

TEST_CASE("under pressure three tenants take long turns, one after the other") {
  Card card({}, {{333333, 1000000, 10 * kMs, 60 * kSec},
                 {333333, 1000000, 10 * kMs, 60 * kSec},
                 {333333, 1000000, 10 * kMs, 60 * kSec}});
  card.arbiter.SetPressure(true, kSec);
  card.Run(120 * kSec);
  const auto e = card.Extremes(31 * kSec, 120 * kSec, 30 * kSec);
  for (const auto& [least, most] : e) {
    CHECK(least > 0.3);
    CHECK(most < 0.37);
  }
  CHECK(card.spans.size() < 20);  // turns of ten seconds
}

TEST_CASE("under pressure who wakes does not wait for the end of a long turn, and who always works does") {
  Arbiter arbiter({});
  arbiter.SetClient(1, 500000, 1000000);
  arbiter.SetClient(2, 500000, 1000000);
  // The first one had the card to itself, without tokens. The second wakes; together they exceed it.
  // (Its time is known from samples: they may have missed a quarter.)
  for (Nanos now = kSec; now <= 10 * kSec; now += 100 * kMs) arbiter.Observe(1, 75 * kMs, true, now);
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
  // The first one waits now, and has had more than its share: for all of the turn.
  arbiter.Request(1, 11, 20 * kMs, now);
  const uint64_t second = actions[1].id;
  const Nanos quantum = actions[1].quantum;
  for (const Nanos end = now + quantum; now < end; now += 100 * kMs) CHECK(arbiter.Advance(now).empty());
  arbiter.Release(22, second, quantum, 20 * kMs, now);
  arbiter.Request(2, 22, 20 * kMs, now);
  actions = arbiter.Advance(now);
  REQUIRE((actions.size() == 1 && actions[0].holder == 11));
  // Nor does the second now, which has just had its turn.
  for (const Nanos end = now + actions[0].quantum; now < end; now += 100 * kMs) CHECK(arbiter.Advance(now).empty());
}

TEST_CASE("under pressure a turn that has just begun pays for its change of hands before it is ended") {
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

TEST_CASE("under pressure who naps leaves the card to one whose memory is there, until that has paid for its coming") {
  Arbiter arbiter({});
  for (uint64_t c = 1; c <= 3; ++c) arbiter.SetClient(c, 333333, 1000000);
  arbiter.SetPressure(true, 100 * kMs);
  Nanos now = 100 * kSec;
  const auto turn = [&](bool naps) {
    const auto actions = arbiter.Advance(now);
    REQUIRE(actions.size() == 1);
    const uint64_t holder = actions[0].holder;
    now += 200 * kMs;
    if (!naps) arbiter.Request(holder, holder, 0, now);
    arbiter.Release(holder, actions[0].id, 200 * kMs, 0, now);
    if (naps) arbiter.Request(holder, holder, 0, now);
    return holder;
  };
  for (uint64_t c = 1; c <= 3; ++c) arbiter.Request(c, c, 0, now);
  CHECK(turn(true) == 1);
  arbiter.SetSeated({2, 1}, now);
  // The third one waits until its coming costs a quarter of the time.
  const Nanos paid = now + 400 * kMs;
  for (uint64_t expected = 2; now < paid; expected = 3 - expected) REQUIRE(turn(true) == expected);
  CHECK(turn(true) == 3);
  // Those that always work go in turn, whoever is seated.
  arbiter.SetSeated({1, 3}, now);
  const uint64_t first = turn(false), second = turn(false), third = turn(false);
  CHECK((first != second && second != third && third != first));
}

TEST_CASE("under pressure nobody waits for more than one change of hands to each of the others") {
  constexpr Nanos kStep = 10 * kMs;
  struct Napper {
    Nanos work = 0, nap = 0;        // for so long, then
    Nanos left = 0, wakes = kSec;   // of the work; when it begins again
    Nanos asked = 0;                // waits since then; 0: does not
    std::map<uint64_t, int> ahead;  // whose memory came meanwhile, and how often
  };
  std::mt19937 random(11);
  for (int run = 0; run < 100; ++run) {
    Arbiter arbiter({});
    const size_t n = 2 + random() % 6, seats = 1 + random() % (n - 1);
    const Nanos cost = (20 + random() % 600) * kMs;
    std::vector<Napper> all(n + 1);  // from 1, as the clients
    for (uint64_t c = 1; c <= n; ++c) {
      arbiter.SetClient(c, static_cast<uint32_t>(1000000 / n), 1000000);
      all[c].work = all[c].left = (100 + random() % 4000) * kMs;
      all[c].nap = random() % 4 == 0 ? 0 : (50 + random() % 3000) * kMs;  // 0: always has work
    }
    arbiter.SetPressure(true, cost);
    std::vector<uint64_t> seated;
    uint64_t holder = 0, id = 0;
    Nanos now = kSec, since = 0, begins = 0, quantum = 0, longest_turn = 0, longest_wait = 0;
    const auto ask = [&](uint64_t c) {
      arbiter.Request(c, c, 0, now);
      all[c].asked = now;
      all[c].ahead.clear();
    };
    const auto end = [&](bool naps) {
      if (!naps) ask(holder);
      arbiter.Release(holder, id, now - since, 0, now);
      longest_turn = std::max(longest_turn, now - since);
      holder = 0;
    };
    for (; now < 200 * kSec; now += kStep) {
      for (uint64_t c = 1; c <= n; ++c) {
        if (c != holder && all[c].asked == 0 && now >= all[c].wakes) ask(c);
      }
      if (holder != 0 && now >= begins) {
        Napper& h = all[holder];
        h.left -= std::min(h.left, kStep);
        const bool naps = h.left == 0 && h.nap > 0;
        if (naps || now - since >= quantum) {
          if (h.left == 0) h.left = h.work;
          if (naps) h.wakes = now + h.nap;
          end(naps);
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
        longest_wait = std::max(longest_wait, now - std::exchange(all[holder].asked, 0));
        // As Node::Seat(): those whose turn is longest ago stay.
        const bool comes = std::erase(seated, holder) == 0;
        if (seated.size() > seats - 1) seated.resize(seats - 1);
        seated.push_back(holder);
        if (!comes) continue;
        begins = now + cost;
        arbiter.SetSeated(seated, now);
        for (uint64_t c = 1; c <= n; ++c) {
          if (all[c].asked != 0) REQUIRE(++all[c].ahead[holder] == 1);
        }
      }
    }
    INFO("run " << run << ": " << n << " tenants, " << seats << " seats, a change costs " << cost / kMs
                << " ms; longest turn " << longest_turn / kMs << " ms, wait " << longest_wait / kMs);
    REQUIRE(longest_turn > 0);
    REQUIRE(longest_wait <= n * (4 * cost + longest_turn));
  }
}

TEST_CASE("distributed jobs with a rank on two cards each finish: a lease ends for the arbiter, the kernel runs on") {
  // Each rank's kernel ends once the other rank's has begun. Both jobs hold one card and wait for the other one.
  Arbiter cards[2] = {Arbiter({}), Arbiter({})};
  struct Rank {
    int round = 0;  // kernels begun
    bool asked = false, running = false;
    uint64_t id = 0;
  } ranks[2][2];  // job, card
  constexpr int kRounds = 20;
  for (auto& c : cards) {
    c.SetClient(1, 500000, 1000000);
    c.SetClient(2, 500000, 1000000);
  }
  Nanos now = kSec;
  const auto done = [&] {
    for (const auto& job : ranks)
      for (const auto& r : job)
        if (r.round < kRounds || r.running) return false;
    return true;
  };
  // The worst order: job 0 asks on card 0 first, job 1 on card 1.
  for (; !done() && now < 300 * kSec; now += kMs) {
    for (int n = 0; n < 4; ++n) {
      const int card = n % 2, job = (n / 2 + card) % 2;
      Rank &r = ranks[job][card], &peer = ranks[job][1 - card];
      if (r.running && peer.round >= r.round) {  // both ranks have begun this round
        r.running = false;
        cards[card].Release(static_cast<uint64_t>(job) + 1, r.id, kMs, kMs, now);
      }
      if (!r.running && !r.asked && r.round < kRounds) {
        r.asked = true;
        cards[card].Request(static_cast<uint64_t>(job) + 1, static_cast<uint64_t>(job) + 1, kMs, now);
      }
    }
    for (int card = 0; card < 2; ++card) {
      for (const auto& a : cards[card].Advance(now)) {
        if (a.kind == Arbiter::Action::Kind::kRevoke) continue;
        Rank& r = ranks[a.holder - 1][card];
        r.asked = false;
        r.running = true;
        r.id = a.id;
        ++r.round;
      }
    }
  }
  CHECK(done());
}
