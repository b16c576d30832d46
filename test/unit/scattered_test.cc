// When what faults have scattered is due to be sent away, and what becomes of it where it is in use then.
#include <catch2/catch_test_macros.hpp>
#include <vector>

#include "hooklib/policy/evict/fault_residue.h"
#include "test/unit/fake_card.h"

namespace sluice::policy {

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

struct Swept {
  ChunkTable table;
  FaultResidue scattered;
  uint64_t now = 1000;

  Swept() { table.AddArena(Chunks(0, 8)); }
  Chunk* At(uint64_t chunk) { return table.Find(Chunks(chunk).base); }
  std::vector<Va> Sweep() {
    std::vector<Va> asked;
    scattered.Sweep(&table, now, [&asked](Chunk* chunk) {
      asked.push_back(chunk->base);
      return true;
    });
    return asked;
  }
};

}  // namespace

TEST_CASE("what is scattered is due once it is 64 MiB, by the times of launches or by what the driver counts") {
  for (const bool counted : {false, true}) {
    Swept card;
    card.At(0)->has_contents = true;
    card.scattered.Add(card.At(0));
    card.scattered.NoteBytes(kMiB, card.now);
    card.Sweep();
    card.scattered.Add(card.At(0));
    card.scattered.NoteBytes(kMiB, card.now);
    CHECK_FALSE(card.scattered.IsDue(card.now));
    if (counted) {
      card.scattered.set_counted_bytes(64 * kMiB);
    } else {
      card.scattered.NoteBytes(63 * kMiB, card.now);
    }
    CHECK(card.scattered.IsDue(card.now));
    card.Sweep();
    card.scattered.NoteBytes(kMiB, card.now);
    CHECK_FALSE(card.scattered.IsDue(card.now));  // both begin anew
  }
}

TEST_CASE("what is scattered is due from time to time, ever more rarely, and soon again where anything new was named") {
  Swept card;
  const auto launches_to_sweep = [&card] {
    for (uint64_t n = 1;; ++n) {
      ++card.now;
      card.scattered.NoteBytes(0, card.now);
      if (!card.scattered.IsDue(card.now)) continue;
      card.Sweep();
      return n;
    }
  };
  card.scattered.Add(card.At(0));
  card.scattered.NoteBytes(0, card.now);
  card.Sweep();
  CHECK(launches_to_sweep() == 16);
  CHECK(launches_to_sweep() == 32);
  CHECK(launches_to_sweep() == 64);
  card.scattered.Add(card.At(0));  // named before: it changes nothing
  CHECK(launches_to_sweep() == 128);
  card.scattered.Add(card.At(1));
  CHECK(launches_to_sweep() == 16);
}

TEST_CASE("what is scattered is due once no launch has brought any for 1,024 launches") {
  Swept card;
  card.At(0)->has_contents = true;
  card.scattered.NoteBytes(kMiB, card.now);
  card.Sweep();
  card.scattered.Add(card.At(0));
  card.scattered.NoteBytes(kMiB, card.now);
  CHECK(card.scattered.IsRecent(card.now + 1023));
  CHECK_FALSE(card.scattered.IsRecent(card.now + 1024));
  CHECK(card.scattered.IsDue(card.now + 1024));
}

TEST_CASE("pages count by the chunk, and only while anything is scattered") {
  Swept card;
  std::vector<Va> pages;
  for (uint64_t i = 0; i < 33; ++i) pages.push_back(kBase + i * kChunkBytes);
  const auto brought = [&](const std::vector<Va>& of) {
    card.scattered.NoteBytes(0, card.now);
    card.scattered.NoteFaultedIn(of);
    return card.scattered.IsDue(card.now);
  };
  card.Sweep();
  CHECK_FALSE(brought(pages));
  card.At(0)->has_contents = true;
  card.scattered.Add(card.At(0));
  CHECK_FALSE(brought(std::vector<Va>(40, kBase)));
  CHECK(brought(pages));
}

TEST_CASE("each chunk is asked about once in a sweep, not once it has left, nor once its arena is gone") {
  Swept card;
  for (int twice = 0; twice < 2; ++twice) {
    for (const uint64_t chunk : {0, 1, 2}) card.scattered.Add(card.At(chunk));
  }
  FaultResidue::Remove(card.At(1));
  CHECK(card.Sweep() == std::vector<Va>{Chunks(0).base, Chunks(2).base});
  CHECK(card.scattered.empty());
  card.At(0)->in_fault_residue = false;
  card.scattered.Add(card.At(0));
  card.table.RemoveArena(kBase);
  CHECK(card.Sweep().empty());
  CHECK(card.scattered.empty());
}

TEST_CASE("what several streams use when it is to leave goes with the first launch once all of that is over") {
  FakeCard card(64, 16, Prefetch::kOff);
  const std::vector<Extent> all{Chunks(0, 64)};
  for (const StreamId stream : {1, 2, 3}) {
    const Plan& plan = card.Queue(all, stream, 7);
    CHECK(plan.evict_after.empty() == (stream != 1));  // the first is alone
  }
  CHECK(card.residency.ResidueSweepPending());
  for (const StreamId stream : {1, 2, 3}) card.Finish(stream);
  CHECK_FALSE(card.residency.ResidueSweepPending());
  uint64_t leaves = 0;
  for (const Extent& run : card.Queue({Chunks(0)}, 1, 8).evict_after) leaves += run.bytes;
  CHECK(leaves == 48 * kChunkBytes);
}

TEST_CASE("what is in use whenever it is to leave is not waited for again and again") {
  FakeCard card(64, 16, Prefetch::kOff);
  const std::vector<Extent> all{Chunks(0, 64)};
  for (const StreamId stream : {1, 2}) card.Queue(all, stream, 7);
  int waits = 0;
  while (card.residency.ResidueSweepPending()) {
    REQUIRE(++waits <= 8);
    card.Queue(all, 2, 7);  // it did not wait
    card.Finish(1);
    card.time.Finish(2, card.seq[2] - 1);
    CHECK_FALSE(card.residency.ResidueSweepPending());
    CHECK(card.Queue(all, 1, 7).evict_after.empty());
  }
  CHECK(waits == 4);
  const auto launches_to_wait = [&] {
    uint64_t launches = 0;
    for (; !card.residency.ResidueSweepPending(); ++launches) card.Queue(all, 1, 7);
    return launches;
  };
  CHECK(launches_to_wait() == 16);
  card.residency.PauseResidueSweep();
  CHECK(launches_to_wait() == 1024);
  // It leaves with the next launch all the same, once it is over.
  for (const StreamId stream : {1, 2}) card.Finish(stream);
  CHECK_FALSE(card.Queue(all, 1, 7).evict_after.empty());
}

TEST_CASE("what is in use when it is to leave is not waited for while a capture forbids to ask") {
  FakeCard card(64, 16, Prefetch::kOff);
  for (const StreamId stream : {1, 2}) card.Queue({Chunks(0, 64)}, stream, 7);
  card.time.capturing = true;
  CHECK_FALSE(card.residency.ResidueSweepPending());
  card.time.capturing = false;
  CHECK(card.residency.ResidueSweepPending());
}

}  // namespace sluice::policy
