#include "hooklib/policy/residency.h"

#include <catch2/catch_test_macros.hpp>
#include <random>

#include "test/unit/fake_card.h"

namespace sluice::policy {

namespace {

uint64_t Bytes(const std::vector<Extent>& runs) {
  uint64_t sum = 0;
  for (const Extent& run : runs) sum += run.bytes;
  return sum;
}

// An arena of `total` chunks, all alive, of which `capacity` may be resident.
struct Card : FakeCard {
  using FakeCard::FakeCard;
  const Plan& Launch(const std::vector<Extent>& set, StreamId stream = 1, bool finish = true, uint64_t id = 0) {
    const Plan& plan = Queue(set, stream, id);
    if (finish) Finish(stream);
    return plan;
  }
};

}  // namespace

TEST_CASE("what is missing is fetched in merged runs, what is resident costs nothing") {
  Card card(16, 8);
  const Plan& first = card.Launch({Chunks(0, 2), Chunks(2, 2)});
  CHECK(first.now.fetch == std::vector<Extent>{Chunks(0, 4)});
  CHECK(first.wait_in == first.now.in_op);
  const Plan& again = card.Launch({Chunks(1, 2)});
  CHECK(again.now.empty());
  CHECK(again.wait_in == 0);
  CHECK(card.residency.resident_bytes() == 4 * kChunkBytes);
}

TEST_CASE("resident bytes never exceed the capacity while victims are to be had") {
  for (unsigned seed = 1; seed <= 30; ++seed) {
    for (Prefetch mode : {Prefetch::kOff, Prefetch::kLaunch, Prefetch::kPredict}) {
      Card card(64, 16, mode);
      std::mt19937 random(seed);
      for (int i = 0; i < 500; ++i) {
        const uint64_t first = random() % 60, count = random() % 4 + 1;
        card.Launch({Chunks(first, count)}, random() % 3 + 1, true, random() % 8 + 1);
        REQUIRE(card.residency.resident_bytes() <= 16 * kChunkBytes);
      }
      CHECK(card.residency.stats().over_budget_launches == 0);
      uint64_t resident = 0;
      card.residency.chunks().ForAll([&](Chunk& chunk) { resident += chunk.resident ? kChunkBytes : 0; });
      CHECK(resident == card.residency.resident_bytes());
    }
  }
}

TEST_CASE("least recently used leaves first where nothing is predicted") {
  Card card(8, 2);
  card.Launch({Chunks(0)});
  card.Launch({Chunks(1)});
  card.Launch({Chunks(0)});
  const Plan& plan = card.Launch({Chunks(2)});
  CHECK(plan.now.evict == std::vector<Extent>{Chunks(1)});
}

TEST_CASE("a victim is finished, or earlier in the same stream, whose position the eviction then waits for") {
  Card card(8, 2);
  card.Launch({Chunks(0)}, 1, false);  // unfinished
  card.Launch({Chunks(1)}, 1, false);
  const Plan& plan = card.Launch({Chunks(2)}, 1, false);
  REQUIRE(plan.now.evict == std::vector<Extent>{Chunks(0)});
  CHECK(plan.now.out_after == 1);  // the position of chunk 0's last use
  CHECK(plan.now.in_after_out == plan.now.out_op);
}

TEST_CASE("no launch waits for another stream's unfinished work: it goes over budget, and that is counted") {
  Card card(8, 2);
  card.Launch({Chunks(0, 2)}, 1, false);
  const Plan& plan = card.Launch({Chunks(2)}, 2, false);
  CHECK(plan.now.evict.empty());
  CHECK(plan.now.fetch == std::vector<Extent>{Chunks(2)});
  CHECK(card.residency.stats().over_budget_launches == 1);
  CHECK(card.residency.stats().over_budget_max == kChunkBytes);
  card.time.Finish(1, 1);
  const Plan& later = card.Launch({Chunks(3)}, 2, false);
  CHECK(Bytes(later.now.evict) >= kChunkBytes);
  CHECK(card.residency.resident_bytes() <= 2 * kChunkBytes);
}

TEST_CASE("a launch larger than the budget runs: what fits is fetched, the rest leaves right behind it") {
  Card card(16, 4);
  card.Launch({Chunks(0, 3)});
  card.Launch({Chunks(3, 3)});
  card.Launch({Chunks(12, 4)});
  const Plan& plan = card.Launch({Chunks(0, 6)});
  CHECK(Bytes(plan.now.fetch) == 4 * kChunkBytes);
  CHECK(Bytes(plan.evict_after) == 2 * kChunkBytes);
  CHECK(plan.evict_after_op != 0);
  CHECK(card.residency.stats().over_budget_launches == 1);
  CHECK(card.residency.resident_bytes() <= 4 * kChunkBytes);
  CHECK(card.residency.stats().fault_bytes == 2 * kChunkBytes);
}

TEST_CASE("what leaves behind a launch is numbered behind all else of its plan, and waited for by later ones alone") {
  SECTION("beside what leaves since the capacity has shrunk") {
    Card card(16, 8);
    card.Launch({Chunks(0, 8)});
    card.residency.NoteFaultResidue(Chunks(12, 2));
    card.residency.set_capacity(6 * kChunkBytes);
    const Plan& plan = card.Launch({Chunks(0)});
    CHECK(plan.evict_after == std::vector<Extent>{Chunks(12, 2)});
    CHECK(plan.now.out_op == 1);
    CHECK(plan.evict_after_op == 2);
  }
  SECTION("beside what is fetched for launches to come") {
    // Rounds of 12 launches in room for 10; before each, faults may have brought any of what is not there.
    Card card(16, 10, Prefetch::kPredict);
    card.residency.set_remote_access(false);
    uint64_t newest = 0, both = 0;
    for (uint64_t i = 0; i < 60; ++i) {
      if (i % 2) card.residency.NoteFaultResidue(Chunks(i % 4 == 1 ? 13 : 0, 12));
      const Plan& plan = card.Launch({Chunks(i % 12)}, 1, true, i % 12 + 1);
      for (const uint64_t op : {plan.now.out_op, plan.ahead.out_op, plan.evict_after_op}) {
        if (op) CHECK(op == ++newest);
      }
      if (!plan.evict_after_op || !plan.ahead.in_op) continue;
      ++both;
      CHECK(plan.ahead.in_after_out < plan.evict_after_op);
      for (const Extent& run : plan.ahead.fetch) {
        for (const Extent& gone : plan.evict_after) CHECK((run.end() <= gone.base || gone.end() <= run.base));
      }
    }
    CHECK(both > 0);
  }
}

TEST_CASE("dead bytes are discarded only behind the fence of their free, with a launch between") {
  Card card(8, 2);
  card.Launch({Chunks(0)}, 1, false);
  card.residency.RemoveLive(Chunks(0));
  CHECK(card.Launch({Chunks(1)}, 1, false).discard.empty());
  // Room is needed, but the kernel that used chunk 0 has not finished: it leaves with its bytes, not without.
  const Plan& copied = card.Launch({Chunks(2)}, 1, false);
  CHECK(copied.discard.empty());
  CHECK(Bytes(copied.now.evict) == kChunkBytes);

  card.time.Finish(1, card.seq[1]);
  card.residency.RemoveLive(Chunks(2));
  card.Launch({Chunks(3)});
  card.Launch({Chunks(4)});
  card.fences.Close();
  bool discarded = false;
  for (uint64_t i = 5; i < 8; ++i) discarded |= card.Launch({Chunks(i)}).discard == std::vector<Extent>{Chunks(2)};
  if (!discarded) CHECK_FALSE(card.residency.chunks().Find(Chunks(2).base)->resident);
  // A chunk that was discarded and is alive again comes back without a copy.
  Card other(8, 2);
  other.Launch({Chunks(0)});
  other.residency.RemoveLive(Chunks(0));
  other.Launch({Chunks(1)});
  other.fences.Close();
  REQUIRE(other.Launch({Chunks(2)}).discard == std::vector<Extent>{Chunks(0)});
  CHECK(other.residency.stats().bytes_out == 0);
  other.residency.AddLive(Chunks(0));
  other.Launch({Chunks(0)});
  CHECK(other.residency.stats().bytes_in == 0);
}

TEST_CASE("bytes freed and taken again keep their contents if they were never discarded in between") {
  Card card(8, 2);
  card.Launch({Chunks(0)});
  card.residency.RemoveLive(Chunks(0));
  card.residency.AddLive(Chunks(0));
  for (uint64_t i = 1; i < 6; ++i) CHECK(card.Launch({Chunks(i)}).discard.empty());
  const uint64_t in = card.residency.stats().bytes_in;
  card.Launch({Chunks(0)});
  CHECK(card.residency.stats().bytes_in == in + kChunkBytes);
}

TEST_CASE("pinned bytes (captured, or the host's too) are never discarded") {
  Card card(8, 2);
  card.Launch({Chunks(0)});
  card.residency.Pin(Chunks(0), true);
  card.residency.RemoveLive(Chunks(0));
  for (uint64_t i = 1; i < 7; ++i) CHECK(card.Launch({Chunks(i)}).discard.empty());
}

TEST_CASE("with the order known, less is moved than by least recently used") {
  // A cyclic walk over 12 chunks in room for 8: LRU misses every time.
  uint64_t moved[2] = {};
  for (int i = 0; i < 2; ++i) {
    Card card(12, 8, i ? Prefetch::kPredict : Prefetch::kLaunch);
    for (int step = 0; step < 20; ++step) {
      for (uint64_t k = 0; k < 12; ++k) card.Launch({Chunks(k)}, 1, true, i ? k + 1 : 0);
    }
    moved[i] = card.residency.stats().bytes_in + card.residency.stats().bytes_out;
  }
  CHECK(moved[1] * 2 < moved[0]);
}

TEST_CASE("a change of phase or shape is relearnt within two steps") {
  // Train, evaluate, generate, and round again: other launches, other orders, other chunks, in room for 8.
  Card card(18, 8, Prefetch::kPredict);
  card.residency.set_remote_access(false);
  const auto moved = [&card] { return card.residency.stats().bytes_in + card.residency.stats().bytes_out; };
  for (uint64_t phase = 0; phase < 6; ++phase) {
    uint64_t third = 0, last = 0;
    for (int step = 0; step < 12; ++step) {
      const uint64_t before = moved();
      for (uint64_t k = 0; k < 12; ++k) {
        const uint64_t chunk = phase % 3 == 0 ? k : phase % 3 == 1 ? 17 - k : (k * 5) % 12 + 3;
        card.Launch({Chunks(chunk)}, 1, true, 100 * (phase % 3) + k + 1);
      }
      last = moved() - before;
      if (step == 2) third = last;
    }
    INFO("phase " << phase << ": the third step moves " << third / kChunkBytes << " chunks, the last "
                  << last / kChunkBytes);
    CHECK(third <= 2 * last);
    CHECK(last <= 16 * kChunkBytes);  // by least recently used 12 come and 12 leave
  }
}

TEST_CASE("room that another stream is still emptying is not counted on") {
  Card card(8, 2);
  card.time.transfers_instant = false;
  card.Launch({Chunks(0, 2)}, 1);
  card.time.FinishTransfers(1, 1, 0);
  card.Launch({Chunks(2)}, 1, false);  // sends one away; not gone yet
  card.Launch({Chunks(3)}, 2, false);
  // Stream 2 may count neither on that room nor on chunk 2, which stream 1 still uses: only one finished chunk may
  // leave.
  CHECK(card.residency.resident_bytes() <= 2 * kChunkBytes);
}

TEST_CASE("bytes by faults are those that hold anything and are not fetched") {
  Card card(16, 4, Prefetch::kOff);
  card.Launch({Chunks(0, 4)});  // fresh: made where it is written
  CHECK(card.residency.stats().fault_bytes == 0);
  card.Launch({Chunks(4, 4)});
  card.Launch({Chunks(0, 4)});
  CHECK(card.residency.stats().fault_bytes == 4 * kChunkBytes);

  // What lived while nobody looked has contents too.
  Card late(16, 16);
  late.residency.NoteUnseenUse();
  late.Launch({Chunks(0, 4)});
  CHECK(late.residency.stats().bytes_in == 4 * kChunkBytes);
  late.residency.Prepare(1, ++late.seq[1], std::vector<Extent>{Chunks(4, 4)}, 0, false);  // nothing could be queued
  CHECK(late.residency.stats().fault_bytes == 4 * kChunkBytes);

  Card denied(16, 4);
  denied.Launch({Chunks(0, 4)});
  denied.Launch({Chunks(4, 4)});
  const uint64_t in = denied.residency.stats().bytes_in;
  const Plan& plan = denied.Launch({Chunks(0, 2), Chunks(8, 2)});  // the driver refuses
  denied.residency.NoteNotFetched(plan.now);
  CHECK(denied.residency.stats().bytes_in == in);
  CHECK(denied.residency.stats().fault_bytes == 2 * kChunkBytes);
}

TEST_CASE("a shrunken budget sends finished chunks away at once") {
  Card card(16, 8);
  card.Launch({Chunks(0, 8)});
  card.residency.set_capacity(3 * kChunkBytes);
  const PlanStep& step = card.residency.Shrink(3, 3 * kChunkBytes).now;
  CHECK(Bytes(step.evict) == 5 * kChunkBytes);
  CHECK(card.residency.resident_bytes() == 3 * kChunkBytes);
}

TEST_CASE("what would have to leave for a launch is what is alive") {
  Card card(8, 4);
  card.Launch({Chunks(0, 3)});
  CHECK(card.residency.BytesToEvict(std::vector{Chunks(1, 3)}) == 0);
  CHECK(card.residency.BytesToEvict(std::vector{Chunks(3, 3)}) == 2 * kChunkBytes);
  // What several extents share counts once.
  CHECK(card.residency.BytesToEvict(std::vector{Chunks(3, 3), Chunks(4, 2), Chunks(5, 1)}) == 2 * kChunkBytes);
  card.residency.RemoveLive(Chunks(0));
  CHECK(card.residency.BytesToEvict(std::vector{Chunks(3, 3)}) == kChunkBytes);
  card.residency.set_capacity(8 * kChunkBytes);
  CHECK(card.residency.BytesToEvict(std::vector{Chunks(3, 3)}) == 0);
}

TEST_CASE("while the capacity is being raised nothing leaves for what is only predicted") {
  uint64_t left[2] = {};
  for (const bool filling : {false, true}) {
    Card card(48, 32, Prefetch::kPredict);
    card.residency.set_remote_access(false);
    for (uint64_t i = 0; i < 48 * 20; ++i) {
      card.residency.set_budget_rising(filling);
      const Plan& plan = card.Launch({Chunks(i % 48)}, 1, true, i % 48 + 1);
      left[filling] += Bytes(plan.ahead.evict);
    }
  }
  CHECK(left[false] > 0);
  CHECK(left[true] == 0);
}

// Nobody asks who leaves first while nothing has to.
TEST_CASE("what is named twice is named by so many bytes, and no chunk by more than it has") {
  constexpr uint64_t kHalf = kChunkBytes / 2, kQuarter = kChunkBytes / 4;
  FakeCard card(8, 8);
  const auto named = [&card](const std::vector<Extent>& set) {
    card.Queue(set);
    std::vector<uint64_t> quarters;
    for (uint64_t i = 0; i < 4; ++i) quarters.push_back(card.At(i).named_bytes / kQuarter);
    return quarters;
  };
  const Extent middle{kBase + kHalf + kQuarter, 2 * kChunkBytes + kHalf}, first{kBase, kQuarter};
  using Quarters = std::vector<uint64_t>;
  CHECK(named({middle}) == Quarters{1, 4, 4, 1});
  CHECK(named({middle, middle}) == Quarters{2, 4, 4, 2});
  CHECK(named({middle, middle, middle, middle, middle}) == Quarters{4, 4, 4, 4});
  CHECK(named({first, first, middle}) == Quarters{3, 4, 4, 1});
  CHECK(named({Chunks(1), middle, first}) == Quarters{2, 4, 4, 1});
  CHECK(named({Chunks(0, 2), Chunks(0, 2), Chunks(3)}) == Quarters{4, 4, 4, 4});  // 2 as before
}

TEST_CASE("what is kept of who leaves first does not grow where all that launches name is there") {
  for (const Prefetch mode : {Prefetch::kOff, Prefetch::kLaunch, Prefetch::kPredict}) {
    FakeCard card(24, 16, mode);
    card.residency.set_remote_access(false);
    for (uint64_t i = 0; i < 24; ++i) card.Queue({Chunks(i)});
    card.Finish();
    for (int round = 0; round < 1000; ++round) {
      for (uint64_t i = 0; i < 4; ++i) card.Queue({Chunks(8 + 4 * i, 4)}, 1, 1 + i);
      card.Finish();
    }
    CHECK(card.residency.ranked_entries() <= 2 * 24);
    // And who was used long ago goes first all the same.
    card.Queue({Chunks(12, 12)}, 1, 9);
    card.Finish();
    card.Queue({Chunks(0, 4)}, 1, 10);
    for (uint64_t i = 8; i < 12; ++i) CHECK_FALSE(card.Resident(i));
    for (uint64_t i = 12; i < 24; ++i) CHECK(card.Resident(i));
  }
}

TEST_CASE("a host that never waits waits once where all that would be tried is always still on its way out") {
  FakeCard card(40, 20, Prefetch::kPredict);
  card.time.transfers_instant = false;
  uint64_t in = 0, out = 0;
  bool tried = false;
  const auto step = [&](uint64_t i) {
    const Plan& plan = card.Queue({Chunks(i % 4 * 10, 10)}, 1, 7);
    tried |= plan.probe.exploratory;
    in = std::max({in, plan.now.in_op, plan.ahead.in_op});
    out = std::max({out, plan.now.out_op, plan.ahead.out_op});
    card.Finish();
    // Eight departures behind.
    card.time.FinishTransfers(1, in, out - std::min<uint64_t>(out, 8));
  };
  uint64_t n = 0;
  for (; n < 100 && !card.residency.ShouldAwaitProbes(7); ++n) step(n);
  CHECK_FALSE(tried);
  REQUIRE(n < 100);
  CHECK_FALSE(card.residency.ShouldAwaitProbes(8));
  for (int i = 0; i < 4; ++i) {
    REQUIRE(card.residency.ShouldAwaitProbes(7));
    card.residency.NoteAwaitedProbes(7);  // in vain
  }
  CHECK_FALSE(card.residency.ShouldAwaitProbes(7));
  for (n = 0; n < 200 && !card.residency.ShouldAwaitProbes(7); ++n) step(n);
  CHECK(n > 40);  // the next time later
  REQUIRE(n < 200);
  CHECK_FALSE(tried);
  // One that misses nothing says nothing.
  for (int i = 0; i < 4 && card.residency.ShouldAwaitProbes(7); ++i) {
    card.time.FinishTransfers(1, in, out);
    card.residency.NoteAwaitedProbes(7);
    step(n++);
  }
  CHECK(tried);
  CHECK_FALSE(card.residency.ShouldAwaitProbes(7));
}

}  // namespace sluice::policy
