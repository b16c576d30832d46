// Launches that are met again while nothing comes or goes: what they leave undone at once is as if it had been done.
#include <catch2/catch_test_macros.hpp>
#include <map>
#include <mutex>
#include <random>

#include "hooklib/memory/lock.h"
#include "hooklib/policy/steady/launch_fast_path.h"
#include "test/unit/fake_card.h"

namespace sluice::policy {

namespace {

// Where launches are named nothing stands: each is looked at. On the third card those that may be are told in brief.
struct Cards {
  FakeCard looked, met, brief;
  std::map<size_t, SteadySets::Set*> known;  // by kind of launch, for `brief`
  uint64_t in_brief = 0;                     // launches

  Cards(uint64_t total, uint64_t capacity, Prefetch mode)
      : looked(total, capacity, mode), met(total, capacity, mode), brief(total, capacity, mode) {
    looked.residency.set_names_launches(true);
  }
  template <typename F>
  void All(F f) {
    f(looked);
    f(met);
    f(brief);
    known.clear();
  }
  // Null: in brief, so that nothing is to be done.
  const Plan* QueueInBrief(size_t kind, const std::vector<Extent>& set, StreamId stream, uint64_t id) {
    const auto it = known.find(kind);
    if (it != known.end() && brief.residency.PrepareSteady(stream, brief.seq[stream] + 1, id, it->second)) {
      brief.time.Queue(stream, ++brief.seq[stream]);
      ++in_brief;
      return nullptr;
    }
    const Plan& plan = brief.Queue(set, stream, id);
    if (!plan.is_empty) known.clear();
    if (SteadySets::Set* const again = brief.residency.steady_set()) known[kind] = again;
    return &plan;
  }
};

bool Same(const PlanStep& a, const PlanStep& b) {
  return a.drop == b.drop && a.unmap == b.unmap && a.evict == b.evict && a.fetch == b.fetch &&
         a.out_after == b.out_after && a.out_op == b.out_op && a.in_op == b.in_op && a.in_after_out == b.in_after_out;
}

bool Same(const Plan& a, const Plan& b) {
  return a.discard == b.discard && a.stream_discard == b.stream_discard && a.map_remote == b.map_remote &&
         a.unmap_remote == b.unmap_remote && a.repopulate == b.repopulate && a.probe.id == b.probe.id &&
         a.wait_in == b.wait_in && a.evict_after == b.evict_after && Same(a.now, b.now) && Same(a.ahead, b.ahead);
}

bool Same(const Mark& a, const Mark& b) { return a.stream == b.stream && a.seq == b.seq; }

// All that is noted of a chunk's use, and by whom it may leave. When it is used next is known when somebody asks.
bool Same(const Chunk& a, const Chunk& b) {
  return a.resident == b.resident && a.has_contents == b.has_contents && Same(a.use[0], b.use[0]) &&
         Same(a.use[1], b.use[1]) && a.use_epoch == b.use_epoch && a.last_use == b.last_use &&
         a.named_at == b.named_at && a.last_required_at == b.last_required_at && a.link_iteration == b.link_iteration &&
         a.link_bytes == b.link_bytes && a.previous_link_bytes == b.previous_link_bytes && a.unranked == b.unranked &&
         a.rank_stamp == b.rank_stamp && a.required_until == b.required_until && a.required_by == b.required_by;
}

}  // namespace

TEST_CASE("what is noted of launches that are met again, and what follows, is as if each had been looked at") {
  constexpr uint64_t kTotal = 64;
  uint64_t in_brief = 0;
  for (const Prefetch mode : {Prefetch::kPredict, Prefetch::kLaunch}) {
    for (unsigned seed = 0; seed < 40; ++seed) {
      std::mt19937 random(seed);
      const auto pick = [&](uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random); };
      Cards cards(kTotal, 48, mode);
      if (seed % 2) cards.All([](FakeCard& card) { card.residency.set_remote_access(false); });
      for (int phase = 0; phase < 12; ++phase) {
        struct Kind {
          uint64_t id;
          StreamId stream;
          std::vector<Extent> set;
        };
        const StreamId streams = pick(4) ? 1 : 3;
        std::vector<Kind> round(1 + pick(6));
        for (Kind& kind : round) {
          kind.id = 1 + pick(8);
          kind.stream = static_cast<StreamId>(1 + pick(streams));
          for (uint64_t i = 0, n = 1 + pick(3); i < n; ++i) {
            const Va begin = kBase + pick(kTotal - 6) * kChunkBytes + pick(2) * 4096;
            kind.set.push_back({begin, 1 + pick(5 * kChunkBytes)});
          }
        }
        const uint64_t launches = 50 + pick(300);
        for (uint64_t i = 0; i < launches; ++i) {
          const Kind& kind = round[i % round.size()];
          const Plan& a = cards.looked.Queue(kind.set, kind.stream, kind.id);
          const Plan& b = cards.met.Queue(kind.set, kind.stream, kind.id);
          REQUIRE(Same(a, b));
          const Plan* const c = cards.QueueInBrief(i % round.size(), kind.set, kind.stream, kind.id);
          if (c) {
            REQUIRE(Same(a, *c));
          } else {
            REQUIRE(b.is_empty);
          }
          REQUIRE(cards.looked.residency.named_bytes() == cards.met.residency.named_bytes());
          REQUIRE(cards.looked.residency.named_bytes() == cards.brief.residency.named_bytes());
          if (a.probe.id && pick(2)) {
            const LaunchProbe probe = a.probe;
            const uint64_t ns = pick(2) ? 1000 : 100'000'000;
            cards.All([&](FakeCard& card) { card.residency.NoteMeasured(probe, ns); });
          }
          if (pick(3) == 0) {
            for (FakeCard* card : {&cards.looked, &cards.met, &cards.brief}) card->Finish(kind.stream);
          }
          if (pick(100) == 0) {
            const Extent range = Chunks(pick(kTotal - 4), 1 + pick(4));
            cards.All([&](FakeCard& card) { card.residency.RemoveLive(range, range); });
            cards.All([&](FakeCard& card) { card.residency.AddLive(range); });
          }
          if (pick(150) == 0) {
            const uint64_t capacity = (40 + pick(16)) * kChunkBytes;
            cards.All([&](FakeCard& card) { card.residency.set_capacity(capacity); });
          }
          if (pick(200) == 0) {
            std::vector<std::vector<Extent>> gone;
            cards.All([&](FakeCard& card) { gone.push_back(card.residency.Shrink(9, 30 * kChunkBytes).now.evict); });
            REQUIRE(gone[0] == gone[1]);
            REQUIRE(gone[0] == gone[2]);
          }
          if (pick(20)) continue;
          const uint64_t since = cards.met.residency.launches() - pick(50);
          std::vector<uint64_t> touched;
          cards.All([&](FakeCard& card) { touched.push_back(card.residency.TouchedSince(since)); });
          REQUIRE(touched[0] == touched[1]);
          REQUIRE(touched[0] == touched[2]);
          for (uint64_t chunk = 0; chunk < kTotal; ++chunk) {
            REQUIRE(Same(cards.looked.At(chunk), cards.met.At(chunk)));
            REQUIRE(Same(cards.looked.At(chunk), cards.brief.At(chunk)));
          }
        }
        // One that was never there before.
        cards.All([&](FakeCard& card) { card.Queue({Chunks(phase, 1)}, 1, 1000 + static_cast<uint64_t>(phase)); });
        for (uint64_t chunk = 0; chunk < kTotal; ++chunk) {
          REQUIRE(Same(cards.looked.At(chunk), cards.met.At(chunk)));
          REQUIRE(cards.looked.At(chunk).next_use == cards.met.At(chunk).next_use);
          REQUIRE(Same(cards.looked.At(chunk), cards.brief.At(chunk)));
          REQUIRE(cards.looked.At(chunk).next_use == cards.brief.At(chunk).next_use);
        }
      }
      REQUIRE(cards.looked.residency.stats().hits == cards.met.residency.stats().hits);
      REQUIRE(cards.looked.residency.stats().hits == cards.brief.residency.stats().hits);
      in_brief += cards.in_brief;
    }
  }
  CHECK(in_brief > 1000);
}

TEST_CASE("a launch is told in brief only while its round repeats, all stands, and its window goes on") {
  FakeCard card(16, 8, Prefetch::kPredict);
  const auto queue = [&](uint64_t first, uint64_t id) { card.Queue({Chunks(first, 2)}, 1, id); };
  const auto again = [&](uint64_t id, SteadySets::Set* set) {
    return card.residency.PrepareSteady(1, ++card.seq[1], id, set);
  };
  SteadySets::Set *a = nullptr, *b = nullptr;
  for (int i = 0; i < 200; ++i) {  // in which the first window ends
    queue(0, 7);
    a = card.residency.steady_set();
    queue(2, 8);
    b = card.residency.steady_set();
  }
  REQUIRE(a);
  REQUIRE(b);
  const uint64_t launches = card.residency.launches();
  CHECK_FALSE(again(8, b));  // not the one that is expected
  CHECK_FALSE(again(7, b));
  CHECK(card.residency.launches() == launches);
  CHECK(again(7, a));
  CHECK(again(8, b));
  CHECK(card.residency.launches() == launches + 2);
  CHECK(card.residency.named_bytes() == 2 * kChunkBytes);
  CHECK_FALSE(card.residency.PrepareSteady(2, 1, 7, a));  // another stream's
  // Iterations end all the same: sooner or later it has to be told whole.
  int told = 0;
  while (told < 100000 && again(told % 2 == 0 ? 7 : 8, told % 2 == 0 ? a : b)) ++told;
  CHECK(told < 10000);
  queue(told % 2 == 0 ? 0 : 2, told % 2 == 0 ? 7 : 8);
  card.residency.set_capacity(2 * kChunkBytes);  // more is held than may be
  CHECK_FALSE(again(told % 2 == 0 ? 8 : 7, told % 2 == 0 ? b : a));
}

TEST_CASE("what a launch has in brief is known as long as only launches have had the lock") {
  LaunchFastPath brief;
  memory::CountedLock lock;
  SteadySets::Set set, other;
  const auto launch = [&] {
    std::lock_guard held(lock);
    return brief.NoteLocked(lock.acquisitions());
  };
  const uint64_t key = uint64_t{5} << 60;
  launch();
  CHECK_FALSE(brief.HasEntries());
  CHECK_FALSE(brief.Find(key));
  brief.Remember(key, &set);
  CHECK(brief.HasEntries());
  CHECK(launch());
  CHECK(brief.Find(key) == &set);
  CHECK_FALSE(brief.Find(key + 1));  // its place, another launch
  lock.lock();                       // somebody else: an allocation, the agent's thread
  lock.unlock();
  CHECK_FALSE(launch());
  CHECK_FALSE(brief.HasEntries());
  CHECK_FALSE(brief.Find(key));
  brief.Remember(key, &other);
  CHECK(launch());
  CHECK(brief.Find(key) == &other);
  brief.Clear();  // a launch had something done
  CHECK(launch());
  CHECK_FALSE(brief.Find(key));
}

TEST_CASE("a set stands once it was met twice, after 64 launches in which nothing came or went") {
  ChunkTable table;
  table.AddArena(Chunks(0, 4));
  SteadySets sets;
  std::vector<Chunk*> chunks;
  table.ForAll([&chunks](Chunk& chunk) {
    chunk.use[0] = {1, 1};
    chunk.named_bytes = 100;
    chunks.push_back(&chunk);
  });
  const std::vector<Extent> named = {Chunks(0, 4)};
  sets.NoteChange(10);
  CHECK_FALSE(sets.Find(74, 1, 7, named));
  SteadySets::Set* const set = sets.Find(75, 1, 7, named);
  REQUIRE(set);
  sets.Confirm(set, 75, 1, 5, chunks);
  CHECK_FALSE(sets.IsSteady(*set));
  REQUIRE(sets.Find(76, 1, 7, named) == set);
  sets.Confirm(set, 76, 1, 5, chunks);
  CHECK(sets.IsSteady(*set));
  CHECK(set->chunks == chunks);
  // What is noted of it stays there until somebody asks.
  for (uint64_t launch = 77; launch < 80; ++launch) sets.NoteRepeat(set, launch, launch, {false, true}, 3);
  CHECK(chunks[0]->last_use == 0);
  sets.Settle(3);
  CHECK(chunks[0]->last_use == 79);
  CHECK(chunks[0]->last_required_at == 79);
  CHECK(chunks[0]->use[0].seq == 79);
  CHECK(chunks[0]->link_bytes == 300);
  sets.NoteChange(80);
  CHECK_FALSE(sets.IsSteady(*set));
  // Not one of which a chunk's use is remembered of other streams alone.
  for (Chunk* chunk : chunks) chunk->use[0] = {2, 1};
  for (const uint64_t launch : {145, 146}) {
    REQUIRE(sets.Find(launch, 1, 7, named) == set);
    sets.Confirm(set, launch, 1, 5, chunks);
  }
  CHECK_FALSE(sets.IsSteady(*set));
}

TEST_CASE("a launch that is met again is not looked at, until something comes or goes") {
  FakeCard card(16, 8);
  card.Queue({Chunks(0, 4)}, 1, 7);
  for (int i = 0; i < 100; ++i) card.Queue({Chunks(0, 4)}, 1, 7);
  const uint64_t last = card.At(0).last_use;
  card.Queue({Chunks(0, 4)}, 1, 7);
  CHECK(card.At(0).last_use == last);  // noted of the set
  CHECK(card.residency.TouchedSince(card.residency.launches()) == 4 * kChunkBytes);
  CHECK(card.At(0).last_use == card.residency.launches());
  card.Queue({Chunks(8)}, 1, 8);
  card.Queue({Chunks(0, 4)}, 1, 7);
  CHECK(card.At(0).last_use == card.residency.launches());
}

}  // namespace sluice::policy
