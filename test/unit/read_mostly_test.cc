// What copies alone wrote: which chunks come as duplicates, which leave without a copy, and what ends it.
#include <bitset>
#include <catch2/catch_test_macros.hpp>
#include <random>

#include "test/unit/fake_card.h"

namespace sluice::policy {

namespace {

using Runs = std::vector<Extent>;

// An arena of `total` chunks, all alive, of which `capacity` may be resident. Copies wrote all of it and it has left
// the card once; the last ones are there.
struct Card : FakeCard {
  Card(uint64_t total, uint64_t capacity, Prefetch mode = Prefetch::kLaunch) : FakeCard(total, capacity, mode) {
    residency.set_remote_access(false);
    residency.set_read_mostly(true);
    for (int round = 0; round < 2; ++round) {
      for (uint64_t i = 0; i < total; ++i) Launch({Chunks(i)});
    }
    residency.NoteCopied(Chunks(0, total));
  }
  const Plan& Launch(const Runs& set, uint64_t id = 0) {
    const Plan& plan = Queue(set, 1, id);
    Finish();
    return plan;
  }
  // Larger than the capacity, its first extent by most nodes; fetching the rest is the fastest way.
  const Plan& LaunchLarger(const Runs& set) {
    residency.DropExcessDuplicates();
    const Plan& plan = Queue(set, 1, 7, 0, 1);
    Finish();
    residency.NoteMeasured(plan.graph_probe, plan.graph_probe.strategy == GraphStrategy::kFetch ? 1000 : 2000);
    return plan;
  }
  // The chunk is on the card, as a duplicate if it may be; whether it is one.
  bool Duplicate(uint64_t chunk) {
    if (!Resident(chunk)) Launch({Chunks(chunk)});
    return At(chunk).duplicate && Resident(chunk);
  }
  // All of [0, 4) come as duplicates; the others have left.
  void Fill() {
    Launch({Chunks(0, 4)});
    for (uint64_t i = 0; i < 4; ++i) REQUIRE(Duplicate(i));
  }
};

}  // namespace

TEST_CASE("it comes as a duplicate, leaves without being moved, and is mapped_remote again when it comes back") {
  Card card(8, 4);
  const Plan& come = card.Launch({Chunks(0, 4)});
  CHECK(come.now.duplicate == Runs{Chunks(0, 4)});
  CHECK(come.now.fetch == Runs{Chunks(0, 4)});
  CHECK(come.now.evict == Runs{Chunks(4, 4)});  // these came before anybody knew
  const uint64_t out = card.residency.stats().bytes_out, in = card.residency.stats().bytes_in;
  const Plan& leave = card.Launch({Chunks(4, 4)});
  CHECK(leave.now.drop == Runs{Chunks(0, 4)});
  CHECK(leave.now.evict.empty());
  CHECK(leave.now.in_after_out == 0);  // the room is there at once
  CHECK(card.residency.stats().bytes_out == out);
  CHECK(card.residency.stats().bytes_dropped == 4 * kChunkBytes);
  CHECK(card.residency.stats().bytes_in == in + 4 * kChunkBytes);
  CHECK(card.residency.resident_bytes() == 4 * kChunkBytes);
  CHECK(card.Launch({Chunks(0, 4)}).now.duplicate == Runs{Chunks(0, 4)});
  CHECK(card.residency.TakeWithdrawn().empty());
}

TEST_CASE("what is still on its way to the host is not mapped_remote: it would stay on the card") {
  Card card(8, 4);
  card.time.transfers_instant = false;
  card.Launch({Chunks(0, 4)});
  const Plan& back = card.Launch({Chunks(4, 4)});  // left with the launch before
  CHECK(back.now.fetch == Runs{Chunks(4, 4)});
  CHECK(back.now.duplicate.empty());
  card.time.transfers_instant = true;
  card.Launch({Chunks(0, 4)});
  CHECK(card.Launch({Chunks(4, 4)}).now.duplicate == Runs{Chunks(4, 4)});
}

TEST_CASE("only chunks of which copies wrote every living byte") {
  Card card(8, 4);
  card.residency.NoteWritten({kBase + kChunkBytes - 1, 2});  // the last byte of the first, the first of the second
  card.residency.RemoveLive({kBase + 3 * kChunkBytes + 512, 512});
  CHECK_FALSE(card.Duplicate(0));
  CHECK_FALSE(card.Duplicate(1));
  CHECK(card.Duplicate(2));
  CHECK(card.Duplicate(3));  // what is dead need not be copied
  card.Launch({Chunks(4, 4)});
  card.residency.NoteCopied({kBase + kChunkBytes, 1});
  CHECK_FALSE(card.Duplicate(0));
  CHECK(card.Duplicate(1));  // whole again
  card.Launch({Chunks(4, 4)});
  card.residency.AddLive({kBase + 3 * kChunkBytes + 512, 512});
  CHECK_FALSE(card.Duplicate(3));  // nobody has written that yet
}

TEST_CASE("nothing that was never on its way out, nothing by faults, nothing where it is switched off") {
  Card card(8, 4);
  card.residency.set_prefetch(Prefetch::kOff);
  CHECK_FALSE(card.Duplicate(0));
  card.residency.set_prefetch(Prefetch::kLaunch);
  CHECK(card.Duplicate(1));
  card.residency.set_read_mostly(false);
  CHECK(card.residency.TakeWithdrawn() == Runs{Chunks(1)});
  CHECK_FALSE(card.Duplicate(1));
  card.residency.NoteCopied(Chunks(2));
  CHECK_FALSE(card.Duplicate(2));
}

TEST_CASE("a writer, known or not, withdraws it first and ends it until a copy writes it whole") {
  Card card(8, 4);
  card.Fill();
  card.residency.NoteWritten({kBase + kChunkBytes + 4096, 16});
  CHECK(card.residency.TakeWithdrawn() == Runs{Chunks(1)});
  CHECK_FALSE(card.Resident(1));  // the copy on the card is gone with the advice
  const Plan& plan = card.Launch({Chunks(1)});
  CHECK(plan.now.fetch == Runs{Chunks(1)});
  CHECK(plan.now.duplicate.empty());
  card.Launch({Chunks(4, 4)});
  CHECK_FALSE(card.Duplicate(1));
  CHECK(card.Duplicate(2));
  CHECK(card.residency.TakeWithdrawn().empty());
}

TEST_CASE("where it was written while a duplicate, it is left alone for ever longer") {
  Card card(8, 4);
  for (int n = 0; n < 3; ++n) {
    card.Launch({Chunks(4, 4)});
    uint64_t launches = 0;
    while (!card.Duplicate(0)) {
      card.Launch({Chunks(4, 4)});
      REQUIRE(++launches < 40000);
    }
    CHECK(launches >= (n == 0 ? 0u : n == 1 ? 256u : 4096u));
    card.residency.NoteWritten(Chunks(0));
    CHECK(card.residency.TakeWithdrawn() == Runs{Chunks(0)});
    card.residency.NoteCopied(Chunks(0));
  }
}

TEST_CASE("a byte that dies or comes to life in it withdraws it") {
  Card card(8, 4);
  card.Fill();
  card.residency.RemoveLive({kBase + 4096, 512});
  CHECK(card.residency.TakeWithdrawn() == Runs{Chunks(0)});
  card.residency.RemoveLive(Chunks(1));
  CHECK(card.residency.TakeWithdrawn() == Runs{Chunks(1)});
  CHECK(card.Duplicate(0));
  card.residency.AddLive({kBase + 4096, 512});
  CHECK(card.residency.TakeWithdrawn() == Runs{Chunks(0)});
  CHECK(card.Resident(2));
  CHECK(card.Resident(3));
}

TEST_CASE("anything unseen withdraws all of it; memory that is given back is forgotten") {
  Card card(8, 4);
  card.Fill();
  card.residency.ForgetAllCopies();
  CHECK(card.residency.TakeWithdrawn() == Runs{Chunks(0, 4)});
  CHECK_FALSE(card.Duplicate(0));
  card.residency.NoteCopied(Chunks(0, 8));
  card.Launch({Chunks(4, 4)});
  CHECK(card.Duplicate(0));
  card.residency.NoteWritten(Chunks(0));
  card.residency.RemoveArena(Chunks(0, 8));
  CHECK(card.residency.TakeWithdrawn().empty());
  card.residency.AddArena(Chunks(0, 8), false);
  card.residency.AddLive(Chunks(0, 8));
  card.Launch({Chunks(0, 4)});
  card.Launch({Chunks(4, 4)});
  CHECK_FALSE(card.Duplicate(0));
}

TEST_CASE("withdrawn while it is on its way, it comes all the same") {
  Card card(8, 4);
  card.time.transfers_instant = false;
  card.time.FinishTransfers(1, 100, 100);
  card.Launch({Chunks(0)});
  card.time.FinishTransfers(1, 0, 100);
  card.residency.NoteWritten(Chunks(0));
  CHECK(card.residency.TakeWithdrawn() == Runs{Chunks(0)});
  CHECK(card.Resident(0));
  CHECK_FALSE(card.At(0).duplicate);
}

TEST_CASE(
    "what unfinished work uses is not dropped: the launch goes over its budget, and it leaves when that is over") {
  Card card(12, 4);
  card.Fill();
  card.Queue({Chunks(0, 4)}, 1);  // goes on
  const Plan& over = card.Queue({Chunks(4, 2)}, 1);
  CHECK(over.now.drop.empty());
  CHECK(over.now.evict.empty());
  CHECK(card.residency.resident_bytes() == 6 * kChunkBytes);
  CHECK(card.residency.has_excess_duplicates());
  CHECK(card.residency.DropExcessDuplicates().now.drop.empty());
  CHECK(card.residency.has_excess_duplicates());
  card.Finish();
  CHECK(card.residency.DropExcessDuplicates().now.drop.size() == 1);
  CHECK(card.residency.resident_bytes() == 4 * kChunkBytes);
  CHECK(card.Resident(4));
  CHECK(card.Resident(5));
  CHECK_FALSE(card.residency.has_excess_duplicates());
}

TEST_CASE("a launch larger than the capacity has its cold rest fetched, and dropped behind it") {
  Card card(12, 4);
  const Runs set{Chunks(8, 3), Chunks(0, 8)};
  for (int i = 0; i < 12; ++i) card.LaunchLarger(set);
  card.residency.DropExcessDuplicates();
  const uint64_t faults = card.residency.stats().fault_bytes, launches = card.residency.stats().over_budget_launches;
  for (int round = 0; round < 4; ++round) {
    const Plan& plan = card.LaunchLarger(set);
    CHECK(plan.evict_after.empty());
    CHECK(card.residency.resident_bytes() == 11 * kChunkBytes);
    CHECK(card.residency.stats().over_budget_launches == launches + static_cast<uint64_t>(round) + 1);
    CHECK(card.residency.has_excess_duplicates());
    const Plan& after = card.residency.DropExcessDuplicates();
    CHECK(after.now.evict.empty());
    CHECK(card.residency.resident_bytes() == 4 * kChunkBytes);
    for (uint64_t i = 8; i < 11; ++i) CHECK(card.Resident(i));  // what most nodes use stays
  }
  CHECK(card.residency.stats().fault_bytes == faults);
  CHECK(card.residency.stats().over_budget_max == 7 * kChunkBytes);
}

TEST_CASE("beyond the capacity, but not beyond the card") {
  Card card(12, 4);
  card.residency.set_max_resident(6 * kChunkBytes);
  const Runs set{Chunks(8, 3), Chunks(0, 8)};
  for (int i = 0; i < 12; ++i) card.LaunchLarger(set);
  const Plan& plan = card.LaunchLarger(set);
  CHECK(card.residency.resident_bytes() == 6 * kChunkBytes);
  uint64_t by_faults = 0;
  for (const Extent& run : plan.evict_after) by_faults += run.bytes;
  CHECK(by_faults == 5 * kChunkBytes);
}

TEST_CASE("of what is used again at about the same time, a duplicate goes first") {
  for (const bool duplicate : {true, false}) {
    Card card(8, 3, Prefetch::kPredict);
    card.residency.set_max_prefetch_bytes(0);
    if (!duplicate) card.residency.NoteWritten(Chunks(0, 8));
    card.residency.NoteWritten(Chunks(1));  // once, and so is of the ordinary kind
    uint64_t dropped = 0, sent = 0;
    for (int round = 0; round < 24; ++round) {
      for (uint64_t i = 0; i < 6; ++i) {
        const Plan& plan = card.Launch({Chunks(i)}, 100 + i);
        for (const Extent& run : plan.now.drop) dropped += round > 8 ? run.bytes : 0;
        for (const Extent& run : plan.now.evict) sent += round > 8 && run.base == Chunks(1).base ? run.bytes : 0;
      }
    }
    CHECK((dropped > 0) == duplicate);
    CHECK((sent == 0) == duplicate);
  }
}

TEST_CASE("a budget that shrinks drops duplicates, and sends away what has none") {
  Card card(8, 4);
  card.Launch({Chunks(0, 2)});
  card.residency.NoteWritten(Chunks(2));
  card.Launch({Chunks(2)});
  const Plan& plan = card.residency.Shrink(2, 0);
  CHECK(plan.now.drop == Runs{Chunks(0, 2)});
  CHECK(plan.now.evict == Runs{Chunks(2), Chunks(7)});
}

TEST_CASE("ranges that copies wrote: as a map of bytes says") {
  constexpr size_t kBytes = 256;
  std::mt19937 random(1);
  CopiedRanges ranges;
  std::bitset<kBytes> truth;
  for (int i = 0; i < 20000; ++i) {
    const uint64_t begin = random() % kBytes, bytes = random() % (kBytes - begin) / (1 + random() % 8);
    const bool add = random() % 2;
    std::bitset<kBytes> changed, expected;
    const auto note = [&](Extent part) {
      REQUIRE(part.bytes > 0);
      for (Va at = part.base; at < part.end(); ++at) {
        REQUIRE_FALSE(changed[at]);
        changed[at] = true;
      }
    };
    for (uint64_t at = begin; at < begin + bytes; ++at) {
      expected[at] = truth[at] != add;
      truth[at] = add;
    }
    add ? ranges.Add({begin, bytes}, note) : ranges.Remove({begin, bytes}, note);
    REQUIRE(changed == expected);
    REQUIRE(ranges.empty() == truth.none());
  }
}

}  // namespace sluice::policy
