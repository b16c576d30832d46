// What is discarded in a stream's order: dead, owned by a living allocation, used by nobody but that stream.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators.hpp>

#include "test/unit/fake_card.h"

namespace sluice::policy {

namespace {

// An arena of 40 chunks that an allocator owns, 36 of which may be resident: all are alive, the first 36 resident and
// in use by stream 1, whose work the GPU has not begun.
struct Card : FakeCard {
  static constexpr uint64_t kAll = 40, kCapacity = 36;

  Card() : FakeCard(kAll, kCapacity) {
    residency.set_remote_access(false);
    residency.set_in_order(true);
    for (uint64_t i = 0; i < kCapacity; ++i) Launch({Chunks(i)});
  }
  const Plan& Launch(const std::vector<Extent>& set, StreamId stream = 1) { return Queue(set, stream); }
  void Report(Extent dead) { residency.RemoveLive(dead, Chunks(0, kAll)); }
};

}  // namespace

TEST_CASE("dead beside queued work: discarded in the stream's order, nothing living leaves for it") {
  Card card;
  card.Report(Chunks(4, 2));
  const Plan& plan = card.Launch({Chunks(38)});
  CHECK(plan.stream_discard ==
        std::vector<Extent>{Chunks(4, 2)});  // more than is needed, since the stream stands still for it
  CHECK(plan.discard.empty());
  CHECK(plan.now.evict.empty());
  CHECK(plan.now.fetch == std::vector<Extent>{Chunks(38)});
  CHECK_FALSE(card.residency.awaits_freed());
  // Alive again, it comes back without contents; the plan before is gone.
  card.residency.AddLive(Chunks(4, 2));
  const uint64_t in = card.residency.stats().bytes_in;
  const Plan& back = card.Launch({Chunks(4)});
  CHECK(back.stream_discard.empty());
  CHECK(back.now.fetch == std::vector<Extent>{Chunks(4, 2)});  // 5 is alive again, too
  CHECK(card.residency.stats().bytes_in == in);
}

TEST_CASE("what was discarded is fetched, even for a launch that is left to faults") {
  Card card;
  card.Report(Chunks(4, 2));
  const bool at_once = GENERATE(false, true);
  INFO((at_once ? "discarded at once" : "discarded in the stream's order"));
  if (at_once) {
    card.fences.Close();
    card.Finish();
  }
  const Plan& plan = card.Launch({Chunks(38, 2)});
  REQUIRE((at_once ? plan.discard : plan.stream_discard) == std::vector<Extent>{Chunks(4, 2)});
  card.residency.AddLive(Chunks(4, 2));
  std::vector<Extent> set{Chunks(0, Card::kAll)};
  uint64_t id = 0;
  bool passes = true;  // it does not fit, and leaves behind the launch
  SECTION("since it is larger than the capacity") { set = {Chunks(36, 4), Chunks(0, 36)}; }
  SECTION("to see what it touches") {
    card.residency.set_remote_access(true);
    id = 7;
  }
  SECTION("since nothing is fetched any more") {
    card.residency.set_prefetch(Prefetch::kOff);
    set = {Chunks(4, 2)};
    passes = false;
  }
  SECTION("nor is it used in host memory") {
    card.residency.NoteUnseenUse();  // it may hold anything again
    card.residency.chunks().Find(Chunks(4).base)->cold = true;
    card.residency.set_remote_access(true);
    id = 7;
  }
  const Plan& back = card.residency.Prepare(1, ++card.seq[1], set, id);
  const auto covers = [](const std::vector<Extent>& runs, Extent range) {
    return std::any_of(runs.begin(), runs.end(),
                       [&range](const Extent& run) { return run.base <= range.base && range.end() <= run.end(); });
  };
  CHECK(covers(back.now.fetch, Chunks(4, 2)));
  CHECK(back.wait_in != 0);
  CHECK(covers(back.evict_after, Chunks(5)) == passes);
  CHECK_FALSE(covers(back.map_remote, Chunks(4)));
}

TEST_CASE("what was discarded is brought on the spot where nothing can be queued") {
  Card card;
  card.Report(Chunks(4, 2));
  card.fences.Close();
  card.Finish();
  REQUIRE(card.Launch({Chunks(38, 2)}).discard == std::vector<Extent>{Chunks(4, 2)});
  card.residency.AddLive(Chunks(4, 2));
  card.time.transfers_instant = false;
  const bool on_its_way = GENERATE(false, true);
  INFO((on_its_way ? "another stream's launch brings it" : "nobody has brought it"));
  if (on_its_way) {
    REQUIRE(card.Launch({Chunks(4, 2)}, 2).now.fetch == std::vector<Extent>{Chunks(4, 2)});
    card.residency.chunks().ForEach(Chunks(4, 2), [](Chunk& chunk) { chunk.resident = false; });  // sent away again
  }
  const Plan& plan = card.residency.Prepare(1, ++card.seq[1], std::vector<Extent>{Chunks(0, 6)}, 0, false);
  CHECK(plan.populate_now == std::vector<Extent>{Chunks(4, 2)});  // and of the others nothing
  CHECK_FALSE(plan.is_empty);
}

TEST_CASE("what a launch brings though it does not name it makes no place for what it names") {
  Card card;
  card.Report(Chunks(4, 2));
  REQUIRE(card.Launch({Chunks(38, 2)}).stream_discard == std::vector<Extent>{Chunks(4, 2)});
  card.residency.AddLive(Chunks(4, 2));
  const Plan& plan = card.Launch({Chunks(0, 4), Chunks(6, 28), Chunks(36, 2)});  // all but two of what may be held
  CHECK(plan.now.fetch == std::vector<Extent>{Chunks(4, 2), Chunks(36, 2)});
  CHECK((card.Resident(4) && card.Resident(5)));
  for (const Extent& run : plan.now.evict) CHECK((run.end() <= Chunks(4).base || Chunks(6).base <= run.base));
}

TEST_CASE("what a launch brings though it does not name it stays until that launch is over") {
  FakeCard card(8, 4);
  card.residency.set_remote_access(false);
  card.residency.set_in_order(true);
  card.Queue({Chunks(0, 4)});
  card.residency.RemoveLive(Chunks(0), Chunks(0, 8));
  REQUIRE(card.Queue({Chunks(4)}).stream_discard == std::vector<Extent>{Chunks(0)});
  card.Finish();
  card.time.FinishTransfers(1, 100, 100);
  card.residency.AddLive(Chunks(0));
  card.time.transfers_instant = false;
  card.time.FinishTransfers(1, 2, 0);
  CHECK(card.Queue({Chunks(1)}).now.fetch == std::vector<Extent>{Chunks(0)});  // in the place of another
  CHECK(card.Queue({Chunks(0)}, 2).now.fetch == std::vector<Extent>{Chunks(0)});
  card.Finish(2);
  // The first stream's fetch may come behind anything that the second does.
  const Plan& plan = card.Queue({Chunks(5, 3)}, 2);
  CHECK_FALSE(plan.now.evict.empty());
  for (const Extent& run : plan.now.evict) CHECK(run.base >= Chunks(2).base);
}

TEST_CASE("what was discarded and passes through the card is for its stream like anything else") {
  FakeCard card(16, 4);
  card.residency.set_in_order(true);
  card.time.transfers_instant = false;
  card.Queue({Chunks(8, 4)});
  card.residency.RemoveLive(Chunks(8), Chunks(0, 16));
  REQUIRE(card.Queue({Chunks(12)}).stream_discard == std::vector<Extent>{Chunks(8)});
  card.residency.AddLive(Chunks(8));
  // Larger than the capacity, by a host that is far ahead: what does not fit of it, the last chunks, is left to faults,
  // but for this one, the first time.
  const auto passes = [&card] {
    const Plan& plan = card.Queue({Chunks(0, 9)}, 1, 7);
    return std::count(plan.now.fetch.begin(), plan.now.fetch.end(), Chunks(8)) == 1;
  };
  CHECK(passes());
  for (int i = 0; i < 4; ++i) CHECK_FALSE(passes());
}

TEST_CASE("what is taken and given back again and again comes once") {
  Card card;
  card.Report(Chunks(4));
  REQUIRE(card.Launch({Chunks(38)}).stream_discard == std::vector<Extent>{Chunks(4)});
  for (int i = 0; i < 3; ++i) {
    card.residency.AddLive(Chunks(4));
    if (i < 2) card.Report(Chunks(4));
  }
  const uint64_t held = card.residency.resident_bytes();
  CHECK(card.Launch({Chunks(38)}).now.fetch == std::vector<Extent>{Chunks(4)});
  CHECK(card.residency.resident_bytes() == held);  // in the place of another
  CHECK(card.Launch({Chunks(38)}).now.fetch.empty());
}

TEST_CASE("what was discarded is fetched for each stream until one of its fetches is over") {
  Card card;
  card.Report(Chunks(4));
  card.time.transfers_instant = false;
  REQUIRE(card.Launch({Chunks(38)}).stream_discard == std::vector<Extent>{Chunks(4)});
  card.residency.AddLive(Chunks(4));
  const uint64_t held = card.residency.resident_bytes() + kChunkBytes;
  bool stays = true;
  SECTION("and stays") { CHECK(card.Launch({Chunks(4)}, 1).now.fetch == std::vector<Extent>{Chunks(4)}); }
  SECTION("though another launch brought it") {
    CHECK(card.Launch({Chunks(0)}, 1).now.fetch == std::vector<Extent>{Chunks(4)});
  }
  SECTION("though it leaves behind the first launch") {
    CHECK_FALSE(card.Launch({Chunks(0, 4), Chunks(5, 35), Chunks(4)}, 1).evict_after.empty());
    stays = false;
  }
  const Plan& again = card.Launch({Chunks(4)}, 1);
  CHECK(again.now.fetch.empty() == stays);
  const Plan& other = card.Launch({Chunks(4)}, 2);
  CHECK(other.now.fetch == std::vector<Extent>{Chunks(4)});
  CHECK(other.wait_in == 1);
  if (!stays) return;
  CHECK(card.residency.resident_bytes() <= held);
  card.time.FinishTransfers(1, 100, 0);
  CHECK(card.Launch({Chunks(4)}, 3).now.fetch.empty());
  CHECK_FALSE(card.At(4).discarded);
}

TEST_CASE("once the work is over it is discarded at once") {
  Card card;
  card.Report(Chunks(4, 2));
  card.time.Finish(1, card.seq[1]);
  card.Launch({Chunks(5)});  // names it, so that it does not go
  card.fences.Close();
  card.time.Finish(1, card.seq[1]);
  const Plan& plan = card.Launch({Chunks(38)});
  CHECK(plan.stream_discard.empty());
  CHECK(plan.discard == std::vector<Extent>{Chunks(4)});
}

TEST_CASE("what dies in host memory is discarded there, and comes back without contents") {
  Card card;
  card.Launch({Chunks(36, 2)});  // in the place of 0 and 1, which are on their way out
  card.time.transfers_instant = false;
  card.Report(Chunks(0));
  CHECK(card.Launch({Chunks(38)}).stream_discard.empty());  // may still be on its way
  card.time.transfers_instant = true;
  SECTION("in the stream's order") {
    CHECK(card.Launch({Chunks(39)}).stream_discard == std::vector<Extent>{Chunks(0)});
  }
  SECTION("at once, if all that was queued is done") {
    card.fences.Close();
    card.time.Finish(1, card.seq[1]);
    CHECK(card.Launch({Chunks(39)}).discard == std::vector<Extent>{Chunks(0)});
  }
  SECTION("not what is used in host memory, nor under a driver without discard") {
    GIVEN("mapped_remote") { card.residency.chunks().Find(Chunks(0).base)->mapped_remote = true; }
    GIVEN("no discard") { card.residency.set_can_discard(false); }
    const Plan& plan = card.Launch({Chunks(39)});
    CHECK(plan.stream_discard.empty());
    CHECK(plan.discard.empty());
    return;
  }
  card.residency.AddLive(Chunks(0));
  const uint64_t in = card.residency.stats().bytes_in;
  CHECK(card.Launch({Chunks(0)}).now.fetch == std::vector<Extent>{Chunks(0)});
  CHECK(card.residency.stats().bytes_in == in);
}

TEST_CASE("what dies in host memory is discarded there though nobody needs room, before it is given out again") {
  Card card;
  card.Launch({Chunks(36, 2)});  // in the place of 0 and 1
  card.Report(Chunks(0));
  const Plan& plan = card.Launch({Chunks(10)});  // has all that it names
  CHECK(plan.stream_discard == std::vector<Extent>{Chunks(0)});
  CHECK_FALSE(plan.is_empty);
  CHECK_FALSE(card.residency.has_freed_chunks());
  card.residency.AddLive(Chunks(0));
  const uint64_t in = card.residency.stats().bytes_in;
  card.Launch({Chunks(0)});
  CHECK(card.residency.stats().bytes_in == in);
}

TEST_CASE("what dies in host memory and is alive again before anything could be discarded keeps its contents") {
  Card card;
  card.Launch({Chunks(36, 2)});
  card.Report(Chunks(0));
  card.residency.AddLive(Chunks(0));
  CHECK(card.Launch({Chunks(10)}).is_empty);
  const uint64_t in = card.residency.stats().bytes_in;
  card.Launch({Chunks(0)});
  CHECK(card.residency.stats().bytes_in == in + kChunkBytes);
}

TEST_CASE("not in any stream's order: what others may be given, use, or hold on to") {
  Card card;
  SECTION("others work") { card.residency.set_in_order(false), card.Report(Chunks(4)); }
  SECTION("freed, not reported") { card.residency.RemoveLive(Chunks(4)); }
  SECTION("reported, then the allocation itself is freed") {
    card.Report(Chunks(4));
    card.residency.NoteFreed(Chunks(0, Card::kAll));
  }
  SECTION("the allocation holds only a part of the chunk") {
    card.residency.RemoveLive(Chunks(4), {Chunks(4).base + 4096, Chunks(4, 9).bytes});
  }
  SECTION("captured") { card.residency.Pin(Chunks(4), true), card.Report(Chunks(4)); }
  SECTION("a second stream has used it") {
    card.Launch({Chunks(4)}, 2);
    card.Report(Chunks(4));
  }
  SECTION("a driver without discard") { card.residency.set_can_discard(false), card.Report(Chunks(4)); }
  SECTION("the launch itself names it") {
    card.Report(Chunks(4));
    CHECK(card.Launch({Chunks(4), Chunks(38)}).stream_discard.empty());
    return;
  }
  SECTION("a part of it lives") { card.residency.RemoveLive({Chunks(4).base, 4096}, Chunks(0, Card::kAll)); }
  const Plan& plan = card.Launch({Chunks(38)});
  CHECK(plan.stream_discard.empty());
  CHECK(plan.discard.empty());
  CHECK(plan.now.evict.size() == 1);
}

TEST_CASE("what two queues may be sending away is not discarded when the newer one is done") {
  FakeCard card(16, 4);
  card.residency.set_remote_access(false);
  card.time.transfers_instant = false;
  card.Queue({Chunks(0, 4), Chunks(5)}, 1);  // 5 does not fit: leaves behind it
  for (int i = 0; i < 2; ++i) card.Queue({Chunks(8, 4), Chunks(5)}, 2);
  card.Finish(1);
  card.Finish(2);
  card.residency.RemoveLive(Chunks(5));
  card.fences.Close();
  card.time.FinishTransfers(2, 100, 100);  // what stream 1 sends away is on its way
  CHECK(card.Queue({Chunks(13)}, 2).discard.empty());
  CHECK(card.Queue({Chunks(14)}, 2).discard.empty());
}

}  // namespace sluice::policy
