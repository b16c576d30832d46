// Repeated launches while nothing is fetched or evicted: deferred notes have the same effect as immediate ones.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <iterator>
#include <map>
#include <mutex>
#include <random>

#include "hooklib/memory/lock.h"
#include "hooklib/policy/steady/launch_fast_path.h"
#include "test/unit/fake_gpu.h"

namespace sluice::policy {

namespace {

// Three GPUs with the same launches. The first names launches, so it has no steady-state sets and plans each launch.
// The third takes the fast path where it may.
struct ThreeGpus {
  FakeGpu planned, steady, fast;
  std::map<size_t, SteadySets::Set*> known;  // by kind of launch, for `fast`
  uint64_t fast_launches = 0;                // launches
  bool never = false;  // `fast` never takes it: with copies its iterations' lengths are less exact

  ThreeGpus(uint64_t total, uint64_t capacity, Prefetch mode)
      : planned(total, capacity, mode), steady(total, capacity, mode), fast(total, capacity, mode) {
    planned.residency.set_names_launches(true);
  }
  template <typename F>
  void All(F f) {
    f(planned);
    f(steady);
    f(fast);
    known.clear();
  }
  // Null: on the fast path, so that nothing is to be done.
  const Plan* QueueFast(size_t kind, const std::vector<Extent>& set, StreamId stream, uint64_t id) {
    const auto it = known.find(kind);
    if (!never && it != known.end() && fast.residency.PrepareSteady(stream, fast.seq[stream] + 1, id, it->second)) {
      fast.time.Queue(stream, ++fast.seq[stream]);
      ++fast_launches;
      return nullptr;
    }
    const Plan& plan = fast.Queue(set, stream, id);
    if (!plan.is_empty) known.clear();
    if (SteadySets::Set* const again = fast.residency.steady_set()) known[kind] = again;
    return &plan;
  }
};

bool Same(const PlanStep& a, const PlanStep& b) {
  return a.drop == b.drop && a.unmap == b.unmap && a.evict == b.evict && a.fetch == b.fetch &&
         a.out_after == b.out_after && a.out_op == b.out_op && a.in_op == b.in_op &&
         AwaitedEviction(a) == AwaitedEviction(b);
}

bool Same(const Plan& a, const Plan& b) {
  return a.discard == b.discard && a.stream_discard == b.stream_discard && a.map_remote == b.map_remote &&
         a.unmap_remote == b.unmap_remote && a.repopulate == b.repopulate && a.probe.id == b.probe.id &&
         a.wait_in == b.wait_in && a.evict_after == b.evict_after && Same(a.now, b.now) && Same(a.ahead, b.ahead);
}

bool Same(const Mark& a, const Mark& b) { return a.stream == b.stream && a.seq == b.seq; }

// All notes of a chunk's use but its link bytes (each path counts its own multiples of a period), and its place in the
// eviction order. Its next use is computed on demand.
bool Same(const Chunk& a, const Chunk& b) {
  return a.resident() == b.resident() && a.has_contents() == b.has_contents() && Same(a.use[0], b.use[0]) &&
         Same(a.use[1], b.use[1]) && a.use_epoch == b.use_epoch && a.last_use == b.last_use &&
         a.named_at == b.named_at && a.last_required_at == b.last_required_at && a.unranked == b.unranked &&
         a.rank_stamp == b.rank_stamp && a.required_until == b.required_until && a.required_by == b.required_by;
}

}  // namespace

TEST_CASE("deferred notes of repeated launches lead to the same plans as planning each launch") {
  constexpr uint64_t kTotal = 64;
  uint64_t fast_launches = 0;
  for (const Prefetch mode : {Prefetch::kPredict, Prefetch::kLaunch}) {
    for (unsigned seed = 0; seed < 40; ++seed) {
      std::mt19937 random(seed);
      const auto pick = [&](uint64_t n) { return std::uniform_int_distribution<uint64_t>(0, n - 1)(random); };
      ThreeGpus gpus(kTotal, 48, mode);
      const bool copies = gpus.never = seed % 4 == 2;
      if (seed % 2) gpus.All([](FakeGpu& gpu) { gpu.residency.set_remote_access(false); });
      for (int phase = 0; phase < 12; ++phase) {
        struct LaunchKind {
          uint64_t id;
          StreamId stream;
          std::vector<Extent> set;
        };
        const StreamId streams = pick(4) ? 1 : 3;
        std::vector<LaunchKind> iteration(1 + pick(6));
        for (LaunchKind& kind : iteration) {
          kind.id = copies ? pick(9) : 1 + pick(8);  // 0: a copy
          kind.stream = static_cast<StreamId>(1 + pick(streams));
          for (uint64_t i = 0, n = 1 + pick(3); i < n; ++i) {
            const Va begin = kBase + pick(kTotal - 6) * kChunkBytes + pick(2) * 4096;
            kind.set.push_back({begin, 1 + pick(5 * kChunkBytes)});
          }
        }
        const uint64_t launches = 50 + pick(300);
        for (uint64_t i = 0; i < launches; ++i) {
          const LaunchKind& kind = iteration[i % iteration.size()];
          const Plan& a = gpus.planned.Queue(kind.set, kind.stream, kind.id);
          const Plan& b = gpus.steady.Queue(kind.set, kind.stream, kind.id);
          REQUIRE(Same(a, b));
          const Plan* const c = gpus.QueueFast(i % iteration.size(), kind.set, kind.stream, kind.id);
          if (c) {
            REQUIRE(Same(a, *c));
          } else {
            REQUIRE(b.is_empty);
          }
          REQUIRE(gpus.planned.residency.named_bytes() == gpus.steady.residency.named_bytes());
          REQUIRE(gpus.planned.residency.named_bytes() == gpus.fast.residency.named_bytes());
          if (a.probe.id && pick(2)) {
            const LaunchProbe probe = a.probe;
            const uint64_t ns = pick(2) ? 1000 : 100'000'000;
            gpus.All([&](FakeGpu& gpu) { gpu.residency.NoteMeasured(probe, ns); });
          }
          if (pick(3) == 0) {
            for (FakeGpu* gpu : {&gpus.planned, &gpus.steady, &gpus.fast}) gpu->Finish(kind.stream);
          }
          if (pick(100) == 0) {
            const Extent range = Chunks(pick(kTotal - 4), 1 + pick(4));
            gpus.All([&](FakeGpu& gpu) { gpu.residency.RemoveLive(range, range); });
            gpus.All([&](FakeGpu& gpu) { gpu.residency.AddLive(range); });
          }
          if (pick(150) == 0) {
            const uint64_t capacity = (40 + pick(16)) * kChunkBytes;
            gpus.All([&](FakeGpu& gpu) { gpu.residency.set_capacity(capacity); });
          }
          if (pick(200) == 0) {
            std::vector<std::vector<Extent>> evicted;
            gpus.All([&](FakeGpu& gpu) { evicted.push_back(gpu.residency.Shrink(9, 30 * kChunkBytes).now.evict); });
            REQUIRE(evicted[0] == evicted[1]);
            REQUIRE(evicted[0] == evicted[2]);
          }
          if (pick(20)) continue;
          const uint64_t since = gpus.steady.residency.launches() - pick(50);
          std::vector<uint64_t> touched;
          gpus.All([&](FakeGpu& gpu) { touched.push_back(gpu.residency.CountUsed(since, 1).since_launch); });
          REQUIRE(touched[0] == touched[1]);
          REQUIRE(touched[0] == touched[2]);
          for (uint64_t chunk = 0; chunk < kTotal; ++chunk) {
            REQUIRE(Same(gpus.planned.At(chunk), gpus.steady.At(chunk)));
            REQUIRE(Same(gpus.planned.At(chunk), gpus.fast.At(chunk)));
          }
        }
        // A new launch.
        gpus.All([&](FakeGpu& gpu) { gpu.Queue({Chunks(phase, 1)}, 1, 1000 + static_cast<uint64_t>(phase)); });
        for (uint64_t chunk = 0; chunk < kTotal; ++chunk) {
          REQUIRE(Same(gpus.planned.At(chunk), gpus.steady.At(chunk)));
          REQUIRE(gpus.planned.At(chunk).next_use == gpus.steady.At(chunk).next_use);
          REQUIRE(Same(gpus.planned.At(chunk), gpus.fast.At(chunk)));
          REQUIRE(gpus.planned.At(chunk).next_use == gpus.fast.At(chunk).next_use);
        }
      }
      REQUIRE(gpus.planned.residency.stats().hits == gpus.steady.residency.stats().hits);
      REQUIRE(gpus.planned.residency.stats().hits == gpus.fast.residency.stats().hits);
      fast_launches += gpus.fast_launches;
    }
  }
  CHECK(fast_launches > 1000);
}

TEST_CASE("the fast path ends with a change of the order, of a set, or of the iteration") {
  FakeGpu gpu(16, 8, Prefetch::kPredict);
  const auto queue = [&](uint64_t first, uint64_t id) { gpu.Queue({Chunks(first, 2)}, 1, id); };
  const auto again = [&](uint64_t id, SteadySets::Set* set) {
    return gpu.residency.PrepareSteady(1, ++gpu.seq[1], id, set);
  };
  SteadySets::Set *a = nullptr, *b = nullptr;
  for (int i = 0; i < 200; ++i) {  // in which the first iteration ends
    queue(0, 7);
    a = gpu.residency.steady_set();
    queue(2, 8);
    b = gpu.residency.steady_set();
  }
  REQUIRE(a);
  REQUIRE(b);
  const uint64_t launches = gpu.residency.launches();
  CHECK_FALSE(again(8, b));  // not the one that is expected
  CHECK_FALSE(again(7, b));
  CHECK(gpu.residency.launches() == launches);
  CHECK(again(7, a));
  CHECK(again(8, b));
  CHECK(gpu.residency.launches() == launches + 2);
  CHECK(gpu.residency.named_bytes() == 2 * kChunkBytes);
  CHECK_FALSE(gpu.residency.PrepareSteady(2, 1, 7, a));  // another stream's
  // Iterations end all the same: sooner or later a launch has to be planned.
  int fast_launches = 0;
  while (fast_launches < 100000 && again(fast_launches % 2 == 0 ? 7 : 8, fast_launches % 2 == 0 ? a : b))
    ++fast_launches;
  CHECK(fast_launches < 10000);
  queue(fast_launches % 2 == 0 ? 0 : 2, fast_launches % 2 == 0 ? 7 : 8);
  gpu.residency.set_capacity(2 * kChunkBytes);  // less than is resident
  CHECK_FALSE(again(fast_launches % 2 == 0 ? 8 : 7, fast_launches % 2 == 0 ? b : a));
}

TEST_CASE("fast-path entries are kept as long as only launches take the lock") {
  LaunchFastPath fast_path;
  memory::CountedLock lock;
  SteadySets::Set set, other;
  const auto launch = [&] {
    const std::lock_guard guard(lock);
    return fast_path.NoteLocked(lock.acquisitions());
  };
  const uint64_t key = uint64_t{5} << 60;
  launch();
  CHECK_FALSE(fast_path.HasEntries());
  CHECK_FALSE(fast_path.Find(key));
  fast_path.Remember(key, &set);
  CHECK(fast_path.HasEntries());
  CHECK(launch());
  CHECK(fast_path.Find(key) == &set);
  CHECK_FALSE(fast_path.Find(key + 1));  // the same slot, another launch
  lock.lock();                           // another user: an allocation, the agent's thread
  lock.unlock();
  CHECK_FALSE(launch());
  CHECK_FALSE(fast_path.HasEntries());
  CHECK_FALSE(fast_path.Find(key));
  fast_path.Remember(key, &other);
  CHECK(launch());
  CHECK(fast_path.Find(key) == &other);
  fast_path.Clear();  // a plan had an action
  CHECK(launch());
  CHECK_FALSE(fast_path.Find(key));
}

TEST_CASE("a set is steady once it was seen twice, after 64 launches without a fetch or an eviction") {
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
  // Its notes stay in the set until they are settled.
  for (uint64_t launch = 77; launch < 80; ++launch) sets.NoteRepeat(set, launch, launch, {{}, true}, 3, true);
  CHECK(chunks[0]->last_use == 0);
  sets.Settle();
  CHECK(chunks[0]->last_use == 79);
  CHECK(chunks[0]->last_required_at == 79);
  CHECK(chunks[0]->use[0].seq == 79);
  CHECK(chunks[0]->link_bytes == 300);
  sets.NoteChange(80);
  CHECK_FALSE(sets.IsSteady(*set));
  // A set is not steady if a chunk's remembered uses are of other streams alone.
  for (Chunk* chunk : chunks) chunk->use[0] = {2, 1};
  for (const uint64_t launch : {145, 146}) {
    REQUIRE(sets.Find(launch, 1, 7, named) == set);
    sets.Confirm(set, launch, 1, 5, chunks);
  }
  CHECK_FALSE(sets.IsSteady(*set));
}

TEST_CASE("sets of hundreds of chunks are steady, and the next use of a paged cache's is its own") {
  constexpr uint64_t kCache = 600;
  ChunkTable table;
  table.AddArena(Chunks(0, kCache));
  std::vector<Chunk*> chunks;
  table.ForAll([&chunks](Chunk& chunk) {
    chunk.use[0] = {1, 1};
    chunk.named_bytes = 100;
    chunks.push_back(&chunk);
  });
  SteadySets sets;
  const auto confirm = [&](uint64_t id, size_t count, uint64_t now = 100) {
    SteadySets::Set* set = nullptr;
    for (const uint64_t launch : {now, now + 1}) {
      const std::vector<Extent> named = {Chunks(0, count)};
      set = sets.Find(launch, 1, id, named);
      REQUIRE(set);
      sets.Confirm(set, launch, 1, id, std::span(chunks).first(count));
    }
    return set;
  };
  SteadySets::Set* const large = confirm(7, 300);
  CHECK(sets.IsSteady(*large));
  CHECK_FALSE(SteadySets::IsWide(*large));
  SteadySets::Set* const wide = confirm(8, kCache);
  REQUIRE(sets.IsSteady(*wide));
  CHECK(SteadySets::IsWide(*wide));
  for (const uint64_t launch : {110, 115}) sets.NoteRepeat(wide, launch, launch, {{}, true}, 3, true);
  sets.Settle();
  for (const Chunk* chunk : chunks) {
    CHECK(chunk->use[0].seq == 115);
    CHECK(chunk->last_use == 115);
    CHECK(chunk->next_use == 120);
  }
  // Their memory is bounded: 436 of this size. The first ones stay, so that some launches of an iteration are steady.
  for (uint64_t id = 100; id < 600; ++id) CHECK(sets.IsSteady(*confirm(id, kCache)) == (id < 535));
  CHECK(sets.IsSteady(*wide));
  CHECK_FALSE(sets.IsSteady(*confirm(600, kCache, 20'000)));  // they give way once unused for 16,384 launches
  sets.NoteRepeat(wide, 36'400, 36'400, 3, true);
  sets.Settle();
  for (uint64_t id = 601; id < 605; ++id) CHECK(sets.IsSteady(*confirm(id, kCache, 40'000)));
  CHECK(sets.IsSteady(*wide));
  CHECK_FALSE(sets.IsSteady(*large));
}

TEST_CASE("a repeated launch is not planned until something is fetched or evicted") {
  FakeGpu gpu(16, 8);
  gpu.Queue({Chunks(0, 4)}, 1, 7);
  for (int i = 0; i < 100; ++i) gpu.Queue({Chunks(0, 4)}, 1, 7);
  const uint64_t last = gpu.At(0).last_use;
  gpu.Queue({Chunks(0, 4)}, 1, 7);
  CHECK(gpu.At(0).last_use == last);  // noted in the set
  CHECK(gpu.residency.CountUsed(gpu.residency.launches(), 1).since_launch == 4 * kChunkBytes);
  CHECK(gpu.At(0).last_use == gpu.residency.launches());
  gpu.Queue({Chunks(8)}, 1, 8);
  gpu.Queue({Chunks(0, 4)}, 1, 7);
  CHECK(gpu.At(0).last_use == gpu.residency.launches());
}

// Servers copy the inputs of each step in another stream.
TEST_CASE("launches of two streams in turn stay steady") {
  FakeGpu gpu(16, 8);
  const auto step = [&] {
    gpu.Queue({Chunks(0, 4)}, 1, 7);
    gpu.Queue({Chunks(3, 2)}, 2);
    gpu.Finish(1);
    gpu.Finish(2);
  };
  for (int i = 0; i < 100; ++i) step();
  const uint64_t last = gpu.At(0).last_use;
  step();
  CHECK(gpu.At(0).last_use == last);                      // noted in the set
  CHECK(gpu.At(3).last_use == gpu.residency.launches());  // the copy's own
  gpu.residency.CountUsed(gpu.residency.launches(), 1);
  CHECK(gpu.At(0).use[0].seq == gpu.seq[1]);
  CHECK(gpu.At(3).use[0].seq == gpu.seq[1]);
  CHECK(gpu.At(3).use[1].seq == gpu.seq[2]);
}

// A chunk remembers the uses of two streams. The third takes a place that is done.
TEST_CASE("a third stream's use of a chunk ends the steady sets of the stream whose use it replaces") {
  FakeGpu gpu(16, 8);
  for (int i = 0; i < 100; ++i) {
    for (const StreamId stream : {1u, 2u}) {
      gpu.Queue({Chunks(0, 4)}, stream, 7);
      gpu.Finish(stream);
    }
  }
  const auto is_noted = [&](StreamId stream) {
    const auto is_newest = [&](const Mark& use) { return use.stream == stream && use.seq == gpu.seq[stream]; };
    return std::any_of(std::begin(gpu.At(0).use), std::end(gpu.At(0).use), is_newest);
  };
  gpu.Queue({Chunks(0)}, 3, 8);
  CHECK(is_noted(3));
  gpu.Finish(3);
  for (const StreamId stream : {1u, 2u, 3u, 1u}) {
    gpu.Queue({Chunks(0, 4)}, stream, 7);
    CHECK(is_noted(stream));
    gpu.Finish(stream);
  }
}

// Its number comes again with the next stream.
TEST_CASE("the sets of a stream that ended are not steady any more") {
  FakeGpu gpu(16, 8);
  for (int i = 0; i < 100; ++i) {
    gpu.Queue({Chunks(0, 4)});
    gpu.Finish();
  }
  gpu.residency.ForgetStream(1);
  gpu.Queue({Chunks(0, 4)});
  gpu.residency.CountUsed(gpu.residency.launches(), 1);
  CHECK(gpu.At(0).use[0].stream == 1);
  CHECK(gpu.At(0).use[0].seq == gpu.seq[1]);
}

TEST_CASE("each of a thousand launches of a step gets a steady set, with copies between them") {
  FakeGpu gpu(64, 64, Prefetch::kPredict);
  uint64_t steady = 0;
  for (int step = 0; step < 6; ++step) {
    for (uint64_t i = 0; i < 1000; ++i) {
      if (i % 50 == 0) gpu.Queue({Chunks(60, 1)}, 2, 0);  // in another stream
      gpu.Queue({Chunks(i % 50, 4)}, 1, 1000 + i);
      if (step == 5 && gpu.residency.steady_set()) ++steady;
    }
  }
  CHECK(steady >= 990);
}

}  // namespace sluice::policy
