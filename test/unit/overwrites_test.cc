// What a launch overwrites whole: which chunks come back empty.
#include <catch2/catch_test_macros.hpp>

#include "test/unit/fake_card.h"

namespace sluice::policy {

namespace {

// An arena of `total` chunks, all alive and written, of which `capacity` may be resident; the last ones are.
struct Card : FakeCard {
  Card(uint64_t total, uint64_t capacity, Prefetch mode = Prefetch::kLaunch) : FakeCard(total, capacity, mode) {
    residency.set_remote_access(false);
    for (uint64_t i = 0; i < total; ++i) Launch({Chunks(i)});
  }
  // The last `overwritten` of the set are overwritten whole.
  const Plan& Launch(const std::vector<Extent>& set, size_t overwritten = 0, uint64_t id = 0, StreamId stream = 1) {
    const Plan& plan = Queue(set, stream, id, overwritten);
    Finish(stream);
    return plan;
  }
};

}  // namespace

TEST_CASE("overwritten whole: it comes back empty, in place of what leaves, and counts as a use") {
  Card card(8, 4);
  const uint64_t saved = card.residency.stats().bytes_saved;
  const Plan& plan = card.Launch({Chunks(0, 2)}, 1);
  CHECK(plan.repopulate == std::vector<Extent>{Chunks(0, 2)});
  CHECK(plan.now.fetch.empty());
  CHECK(plan.wait_in == 0);
  CHECK(plan.now.evict == std::vector<Extent>{Chunks(4, 2)});
  CHECK(plan.repopulate_after == plan.now.out_op);
  CHECK(card.residency.stats().bytes_saved == saved + 2 * kChunkBytes);
  CHECK(card.Launch({Chunks(0, 2)}, 1).repopulate.empty());  // resident
  card.residency.NoteNotRepopulated(plan);
  CHECK(card.residency.stats().bytes_saved == saved + 2 * kChunkBytes);
  card.Launch({Chunks(4, 4)});
  // It holds what the launch wrote: without another overwriting it is fetched.
  const Plan& back = card.Launch({Chunks(0, 2)});
  CHECK(back.repopulate.empty());
  CHECK(back.now.fetch == std::vector<Extent>{Chunks(0, 2)});
}

TEST_CASE("only whole chunks, alive to the last byte, of allocations that only launches write") {
  Card card(8, 4);
  const Extent middle{kBase + kChunkBytes / 2, 2 * kChunkBytes};
  const Plan& edges = card.Launch({middle}, 1);
  CHECK(edges.repopulate == std::vector<Extent>{Chunks(1)});
  CHECK(edges.now.fetch == std::vector<Extent>{Chunks(0), Chunks(2)});
  card.Launch({Chunks(4, 4)});
  card.residency.RemoveLive({kBase + 4096, 512});
  CHECK(card.Launch({Chunks(0, 2)}, 1).repopulate == std::vector<Extent>{Chunks(1)});
  card.Launch({Chunks(4, 4)});
  card.residency.Pin(Chunks(1), true);
  CHECK(card.Launch({Chunks(1, 2)}, 1).repopulate == std::vector<Extent>{Chunks(2)});
}

TEST_CASE("what the launch names in any other way is fetched, in whichever order the ranges come") {
  Card card(8, 4);
  const Plan& plan = card.Launch({{kBase + kChunkBytes + 100, 8}, Chunks(0, 3)}, 1);
  CHECK(plan.repopulate == std::vector<Extent>{Chunks(0), Chunks(2)});
  CHECK(plan.now.fetch == std::vector<Extent>{Chunks(1)});
}

TEST_CASE("a departure that may still run is waited for by nobody: the contents come") {
  Card card(8, 4);
  card.time.transfers_instant = false;
  card.time.FinishTransfers(1, 100, 100);
  card.Launch({Chunks(0, 4)});                                                            // 4 to 7 leave
  CHECK(card.Launch({Chunks(4, 2)}, 1).repopulate == std::vector<Extent>{Chunks(4, 2)});  // long gone
  card.time.FinishTransfers(1, 100, 0);
  card.Launch({Chunks(0, 4)});
  const Plan& pending = card.Launch({Chunks(4, 2)}, 1);
  CHECK(pending.repopulate.empty());
  CHECK(pending.now.fetch == std::vector<Extent>{Chunks(4, 2)});
}

TEST_CASE("what a launch over the budget leaves behind is on its way out, too") {
  Card card(8, 4);
  card.time.transfers_instant = false;
  card.time.FinishTransfers(1, 100, 100);
  const Plan over = card.Launch({Chunks(0, 6)});
  REQUIRE(over.evict_after.size() == 1);
  card.time.FinishTransfers(1, 100, over.evict_after_op - 1);
  const Extent left{over.evict_after[0].base, kChunkBytes};
  CHECK(card.Launch({left}, 1, 0, 2).repopulate.empty());
}

TEST_CASE("never without discard, with the switch off, by faults, or while nothing may be queued") {
  for (int which = 0; which < 3; ++which) {
    Card card(8, 4, which == 2 ? Prefetch::kOff : Prefetch::kLaunch);
    if (which == 0) card.residency.set_can_discard(false);
    if (which == 1) card.residency.set_repopulates(false);
    CHECK(card.Launch({Chunks(0, 2)}, 1).repopulate.empty());
  }
  Card card(8, 4);
  const Extent set[] = {Chunks(0, 2)};
  CHECK(card.residency.Prepare(1, 99, set, 0, false, 1).repopulate.empty());
}

TEST_CASE("what the predicted launch overwrites is not brought ahead of it") {
  uint64_t fetched[2] = {}, renewed[2] = {};
  for (const bool renews : {false, true}) {
    Card card(24, 16, Prefetch::kPredict);
    card.residency.set_repopulates(renews);
    for (int round = 0; round < 20; ++round) {
      for (uint64_t i = 0; i < 12; ++i) {
        // Reads one chunk, overwrites another one.
        const Plan& plan = card.Launch({Chunks(i), Chunks(12 + i)}, 1, 2 * i + 3);
        for (const std::vector<Extent>* runs : {&plan.now.fetch, &plan.ahead.fetch}) {
          for (const Extent& run : *runs) {
            if (round > 2 && run.end() > Chunks(12).base) fetched[renews] += run.bytes / kChunkBytes;
          }
        }
        for (const Extent& run : plan.repopulate) renewed[renews] += run.bytes / kChunkBytes;
      }
    }
  }
  CHECK(fetched[false] > 50);
  CHECK(fetched[true] < fetched[false] / 4);
  CHECK(renewed[true] > 50);
  CHECK(renewed[false] == 0);
}

}  // namespace sluice::policy
