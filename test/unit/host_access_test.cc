#include <catch2/catch_test_macros.hpp>
#include <functional>

#include "hooklib/policy/fetch/launch_classifier.h"
#include "hooklib/policy/residency.h"
#include "test/unit/fake_card.h"

namespace sluice::policy {

namespace {

// A card on which launches take the time that a function says.
struct Machine : FakeCard {
  uint64_t mapped_remote = 0,
           withdrawn = 0;          // bytes that the driver was told to map in host memory, and no longer to map
  uint64_t late = 0;               // bytes that a launch waited for
  uint64_t swept = 0, sweeps = 0;  // bytes that left behind launches, and behind how many

  Machine(uint64_t total, uint64_t capacity) : FakeCard(total, capacity, Prefetch::kPredict) {}
  // `rate`: GB/s at which it gets through its host-resident bytes; `touched`: the share of what is left to faults that
  // comes.
  void Launch(uint64_t id, std::vector<Extent> set, double rate, double touched = 1) {
    const Plan& plan = Queue(set, 1, id);
    const LaunchProbe probe = plan.probe;
    for (const Extent& run : plan.map_remote) mapped_remote += run.bytes;
    for (const Extent& run : plan.unmap_remote) withdrawn += run.bytes;
    late += plan.now.fetch_content_bytes;
    for (const Extent& run : plan.evict_after) swept += run.bytes;
    sweeps += !plan.evict_after.empty();
    Finish();
    const double all = static_cast<double>(probe.host_bytes), in_place = probe.stride ? all / probe.stride : 0;
    const double ns = probe.by_faults ? touched * ((all - in_place) / 11 + in_place / rate) : all / rate;
    if (probe.id) residency.NoteMeasured(probe, 5000 + static_cast<uint64_t>(ns));
  }
};

// One training step: 30 chunks of weights that the layers read, 30 of state that only the optimizer streams over.
void Train(Machine* machine, double optimizer_rate) {
  for (uint64_t layer = 0; layer < 10; ++layer) machine->Launch(100 + layer, {Chunks(layer * 3, 3)}, 2);
  for (uint64_t layer = 10; layer-- > 0;) machine->Launch(200 + layer, {Chunks(layer * 3, 3)}, 2);
  for (uint64_t part = 0; part < 3; ++part) {
    machine->Launch(300, {Chunks(30 + part * 10, 10), Chunks(part * 10, 10)}, optimizer_rate);
    machine->Launch(301, {Chunks(30 + part * 10, 10), Chunks(part * 10, 10)}, optimizer_rate);
  }
}

// A table of 400 chunks in a capacity of 80, of which each launch touches a 2,000th, so many times over.
struct Table : FakeCard {
  uint64_t mapped = 0, longest_ns = 0, all_ns = 0;
  double passes = 1;

  Table() : FakeCard(401, 80, Prefetch::kPredict) {}
  // How long the launch took.
  uint64_t LookUp(uint64_t id = 7) {
    const Plan& plan = Queue({Chunks(0, 400)}, 1, id);
    const LaunchProbe probe = plan.probe;
    for (const Extent& run : plan.map_remote) mapped += run.bytes;
    Finish();
    double in_place = 0;
    for (uint64_t i = 0; i < 400; ++i) in_place += At(i).mapped_remote && !At(i).resident;
    const double bytes = 0x1p21 / 2000;
    const auto ns = static_cast<uint64_t>(20'000 + (400 - in_place) * bytes / 2 + in_place * bytes * passes / 50);
    if (probe.id) {
      residency.NoteMeasured(probe, ns);
      residency.NoteAnswered(probe);
    }
    all_ns += ns;
    longest_ns = std::max(longest_ns, ns);
    return ns;
  }
  uint64_t InPlace() {
    uint64_t chunks = 0;
    for (uint64_t i = 0; i < 400; ++i) chunks += At(i).mapped_remote;
    return chunks;
  }
};

}  // namespace

TEST_CASE("what only streaming launches use settles in host memory, and nothing moves any more") {
  Machine machine(60, 40);
  for (int i = 0; i < 400; ++i) Train(&machine, 42);
  const ResidencyStats before = machine.residency.stats();
  for (int i = 0; i < 100; ++i) Train(&machine, 42);
  const ResidencyStats& after = machine.residency.stats();
  CHECK(after.bytes_in == before.bytes_in);
  CHECK(after.bytes_out == before.bytes_out);
  CHECK(after.remote_bytes > before.remote_bytes);
  CHECK(machine.residency.resident_bytes() <= 40 * kChunkBytes);
}

// A training step whose 60 chunks of activations are born in the forward pass and die in the backward pass, used there
// by a kernel that streams (300, which also updates the 12 chunks of state) and then by one that needs them.
void TrainOnActivations(Machine* machine) {
  const auto live = [](uint64_t layer) { return Chunks(12 + layer * 6, 6); };
  for (uint64_t layer = 0; layer < 10; ++layer) {
    machine->residency.AddLive(live(layer));
    machine->Launch(100 + layer, {live(layer)}, 2);
  }
  for (uint64_t part = 0; part < 2; ++part) machine->Launch(300, {Chunks(part * 6, 6)}, 42);
  for (uint64_t layer = 10; layer-- > 0;) {
    machine->Launch(300, {live(layer)}, 42);
    machine->Launch(200 + layer, {live(layer)}, 2);
    machine->residency.RemoveLive(live(layer));
  }
}

TEST_CASE("what is soon needed on the card, or dies with the round, is not mapped in host memory for one use") {
  Machine machine(72, 30);
  machine.residency.RemoveLive(Chunks(12, 60));
  for (int i = 0; i < 200; ++i) TrainOnActivations(&machine);
  CHECK(machine.residency.stats().bytes_in > 0);
  CHECK(machine.residency.stats().remote_bytes > 0);  // the state: launch 300 does stream
  CHECK(machine.mapped_remote <= 24 * kChunkBytes);   // that, and not each step's activations
  uint64_t mapped = 0;
  machine.residency.chunks().ForAll([&](const Chunk& chunk) { mapped += chunk.mapped_remote; });
  CHECK(mapped <= 12);
}

TEST_CASE("before a round is known only what was there before is tried in host memory") {
  Machine machine(60, 40);
  machine.residency.RemoveLive(Chunks(30, 30));
  machine.Launch(99, {Chunks(0)}, 2);
  machine.residency.AddLive(Chunks(30, 30));
  const auto state_mapped = [&] {
    uint64_t chunks = 0;
    machine.residency.chunks().ForAll([&](const Chunk& c) { chunks += c.mapped_remote && c.base >= Chunks(30).base; });
    return chunks;
  };
  Train(&machine, 42);
  CHECK(state_mapped() == 0);
  for (int i = 0; i < 10; ++i) Train(&machine, 42);
  CHECK(state_mapped() > 0);
}

TEST_CASE("what launches come to need on the card is no longer mapped in host memory") {
  Machine machine(60, 40);
  for (int i = 0; i < 100; ++i) Train(&machine, 42);
  REQUIRE(machine.mapped_remote > 0);
  const auto mapped = [&] {
    uint64_t chunks = 0;
    machine.residency.chunks().ForAll([&](const Chunk& chunk) { chunks += chunk.mapped_remote && !chunk.resident; });
    return chunks;
  };
  REQUIRE(mapped() > 5);
  for (int i = 0; i < 400; ++i) Train(&machine, 2);  // the optimizer re-reads from now on
  CHECK(mapped() == 0);
  CHECK(machine.withdrawn > 0);
}

TEST_CASE("what tries cost is counted, not what launches that are timed again take") {
  Machine machine(60, 40);
  for (int i = 0; i < 100; ++i) Train(&machine, 42);
  const ProbeStats before = machine.residency.probe_stats();
  CHECK(before.probes > before.slow_probes);
  CHECK(before.slow_probes > 0);  // the layers
  REQUIRE(machine.residency.UsesRemoteAccess({.id = 300}));
  for (int i = 0; i < 25; ++i) Train(&machine, 2);
  REQUIRE(!machine.residency.UsesRemoteAccess({.id = 300}));  // found by timing it again; its next try comes later
  CHECK(machine.residency.probe_stats().slow_probes == before.slow_probes);
  CHECK(machine.residency.probe_stats().lost_ns == before.lost_ns);
}

TEST_CASE("what was used in host memory once, and is brought ever since, is no longer mapped there") {
  Machine machine(60, 40);
  for (int i = 0; i < 100; ++i) Train(&machine, 42);
  const auto mapped = [&] {
    uint64_t chunks = 0;
    machine.residency.chunks().ForAll([&](const Chunk& chunk) { chunks += chunk.mapped_remote && !chunk.resident; });
    return chunks;
  };
  REQUIRE(mapped() > 5);
  for (int i = 0; i < 100; ++i) {
    for (uint64_t part = 0; part < 6; ++part) machine.Launch(0, {Chunks(part * 10, 10)}, 42);  // copies
  }
  CHECK(mapped() == 0);
}

TEST_CASE("what takes the place of dead bytes is brought ahead for launches that were never tried in host memory") {
  Machine machine(32, 16);
  machine.residency.RemoveLive(Chunks(16, 16));
  const auto step = [&machine] {
    for (uint64_t layer = 0; layer < 8; ++layer) {
      machine.residency.AddLive(Chunks(16 + 2 * layer, 2));
      machine.Launch(100 + layer, {Chunks(16 + 2 * layer, 2)}, 2);
    }
    machine.residency.RemoveLive(Chunks(16, 16));
    // So often that it pays to bring them (commuting_test.cc).
    for (uint64_t layer = 0; layer < 32; ++layer) machine.Launch(200 + layer / 4, {Chunks(layer / 4 * 2, 2)}, 2);
  };
  for (int i = 0; i < 40; ++i) step();
  const uint64_t before = machine.late;
  for (int i = 0; i < 10; ++i) step();
  CHECK(machine.residency.stats().remote_bytes == 0);
  CHECK(machine.late - before <= 10 * 2 * kChunkBytes);
}

TEST_CASE("launches that crawl over host memory are tried a few times and then always fetch") {
  Machine machine(60, 40);
  for (int i = 0; i < 3000; ++i) Train(&machine, 2);
  const uint64_t before = machine.residency.stats().remote_bytes;
  CHECK(before > 0);
  for (int i = 0; i < 300; ++i) Train(&machine, 2);
  CHECK(machine.residency.stats().remote_bytes == before);
}

TEST_CASE("room that lasts is filled from host memory") {
  Machine machine(60, 40);
  for (int i = 0; i < 400; ++i) Train(&machine, 42);
  CHECK(machine.residency.resident_bytes() <= 40 * kChunkBytes);
  machine.residency.set_capacity(200 * kChunkBytes);  // beyond the margin that is kept free
  for (int i = 0; i < 100; ++i) Train(&machine, 42);
  CHECK(machine.residency.resident_bytes() == 60 * kChunkBytes);
}

TEST_CASE("switched off, everything is fetched") {
  Machine machine(60, 40);
  machine.residency.set_remote_access(false);
  for (int i = 0; i < 50; ++i) Train(&machine, 42);
  CHECK(machine.residency.stats().remote_bytes == 0);
}

TEST_CASE("launches that touch little of what they name, and that again and again, are left to faults") {
  Machine machine(60, 20);
  const auto step = [&machine](double touched) {
    for (uint64_t table = 0; table < 4; ++table) machine.Launch(400, {Chunks(table * 15, 15)}, 1, touched);
  };
  for (int i = 0; i < 8000; ++i) step(0.02);  // they are tried in host memory first, ever more rarely
  const ResidencyStats before = machine.residency.stats();
  for (int i = 0; i < 50; ++i) step(0.02);
  CHECK(machine.residency.stats().bytes_in == before.bytes_in);
  CHECK(machine.residency.stats().demand_paged_launches > before.demand_paged_launches);
  CHECK(machine.residency.resident_bytes() <= 20 * kChunkBytes);
  // They touch all of it from now on: that is noticed, and they are fetched for.
  for (int i = 0; i < 200; ++i) step(1);
  const ResidencyStats later = machine.residency.stats();
  for (int i = 0; i < 20; ++i) step(1);
  CHECK(machine.residency.stats().bytes_in > later.bytes_in);
}

TEST_CASE("what is left to faults since it cannot be held is used in host memory once that is found to be faster") {
  Table table;
  const uint64_t by_faults = table.LookUp();
  for (int i = 0; i < 3000; ++i) {
    table.LookUp();
    // Mapping takes little beside what has been spent by faults, until a part has shown that it pays.
    if (table.InPlace() < 200) CHECK(table.mapped / kChunkBytes * 100'000 <= table.all_ns / 7);
  }
  CHECK(table.InPlace() >= 300);
  CHECK(table.LookUp() < by_faults / 2);
  CHECK(table.longest_ns <= by_faults);
  CHECK(table.residency.resident_bytes() <= 80 * kChunkBytes);
  const uint64_t before = table.mapped;
  for (int i = 0; i < 1000; ++i) table.LookUp();
  CHECK(table.mapped == before);
  // It reads what it touches again and again from now on: faults are the better.
  table.passes = 256;
  for (int i = 0; i < 200; ++i) table.LookUp();
  CHECK(table.InPlace() == 0);
  CHECK(table.LookUp() <= by_faults);
}

TEST_CASE("rows that are read again and again are tried in host memory ever more rarely, a small part of them") {
  for (const double passes : {256, 2048}) {
    Table table;
    const uint64_t by_faults = table.LookUp();
    table.passes = passes;
    uint64_t most = 0;
    for (int i = 0; i < 20'000; ++i) {
      table.LookUp();
      most = std::max(most, table.InPlace());
    }
    CHECK(most > 0);
    CHECK(most <= (passes > 256 ? 400 / 64 : 400 / 4));
    CHECK(table.all_ns < 20'001 * by_faults * 1.05);
    CHECK(table.InPlace() <= 400 / 64);
  }
}

TEST_CASE("what faults have brought of a table leaves before the table is used in host memory") {
  Table table;
  uint64_t left = 0, tried = 0;
  for (int i = 0; i < 3000; ++i) {
    left = table.residency.stats().bytes_out;
    table.LookUp();
    if (table.InPlace() > tried) CHECK(left >= 320 * kChunkBytes);
    tried = table.InPlace();
    for (uint64_t at = 0; at < 400; ++at) CHECK_FALSE((table.At(at).mapped_remote && table.At(at).in_fault_residue));
  }
  CHECK(tried >= 300);
}

TEST_CASE("what others use beside a table that is left to faults keeps its place, and what they do not makes place") {
  // As lookups in a table of 3 GiB on an H200, a hundredth of it: of its rows a result (chunk 1501) that lives from one
  // lookup to the next launch, which adds it to sums (1502 and 1503).
  for (const Prefetch mode : {Prefetch::kLaunch, Prefetch::kPredict}) {
    FakeCard card(1544, 400, mode);
    card.residency.RemoveLive(Chunks(1501));
    card.Queue({Chunks(1504, 40)}, 1, 6);  // used once
    card.Finish();
    const auto launch = [&card](uint64_t id, const std::vector<Extent>& set, uint64_t ns) {
      const LaunchProbe probe = card.Queue(set, 1, id).probe;
      card.Finish();
      if (!probe.id) return;
      card.residency.NoteMeasured(probe, ns);
      card.residency.NoteAnswered(probe);
    };
    const auto step = [&] {
      for (int i = 0; i < 32; ++i) {
        card.residency.AddLive(Chunks(1501));
        launch(7, {Chunks(1501), Chunks(0, 1500)}, 100'000);
        launch(8, {Chunks(1502, 2), Chunks(1501)}, 160'000);
        card.residency.RemoveLive(Chunks(1501));
      }
    };
    for (int i = 0; i < 8; ++i) step();
    const ResidencyStats before = card.residency.stats();
    uint64_t away = 0;
    for (int i = 0; i < 8; ++i) {
      step();
      for (uint64_t at = 1501; at < 1504; ++at) away += !card.Resident(at);
    }
    CHECK(away == 0);
    CHECK(card.residency.stats().bytes_in == before.bytes_in);
    CHECK(card.residency.stats().remote_bytes == before.remote_bytes);
    CHECK(card.residency.resident_bytes() <= 400 * kChunkBytes);
    for (int i = 0; i < 200; ++i) step();
    for (uint64_t at = 1504; at < 1544; ++at) CHECK_FALSE(card.Resident(at));
  }
}

TEST_CASE("that host memory is far faster is found although launches by faults take half as long again or half") {
  constexpr uint64_t kBytes =
      1128 * kChunkBytes;  // as lookups in a table of 3 GiB on an H200: 3 to 8 ms, 0.17 in place
  using AccessClass = LaunchClassifier::AccessClass;
  uint64_t late = 0, all = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    LaunchClassifier habits;
    uint64_t state = seed, launches = 0;
    for (; launches < 1000 && habits.ClassOf(7, true, launches + 1) != AccessClass::kStreaming; ++launches) {
      LaunchProbe probe{.id = 7, .host_bytes = kBytes, .oversize = true, .by_faults = true};
      const bool trial = habits.ClassOf(7, true, launches + 1) == AccessClass::kUnknownFaulting;
      if (trial) {
        habits.NoteProbe(probe, launches + 1);
      } else {
        const RemoteShare share = habits.ShareOf(7, kBytes);
        probe.stride = share.stride;
        if (share.stride) habits.NoteMapped(7, std::min(share.max_new_bytes, kBytes / share.stride));
      }
      state = state * 6364136223846793005u + 1442695040888963407u;
      const uint64_t faults_ns = 3'200'000 + (state >> 33) % 4'800'000;
      const uint64_t ns = faults_ns - (probe.stride ? faults_ns / probe.stride : 0) + 170'000;
      if (trial || habits.IsDue(7, true, probe.stride)) {
        habits.NoteAnswered(probe);
        habits.NoteMeasured(probe, ns, launches + 1);
      }
    }
    late += launches > 200;
    all += launches;
  }
  CHECK(late <= 8);
  CHECK(all / 200 <= 130);
}

TEST_CASE("noise does not send launches to and fro between faults and host memory") {
  LaunchClassifier habits;
  constexpr uint64_t kBytes = 400 * kChunkBytes;
  using AccessClass = LaunchClassifier::AccessClass;
  uint64_t state = 1, changes = 0, host = 0;
  AccessClass last = AccessClass::kFaulting;
  for (uint64_t now = 1; now < 100'000; ++now) {
    const AccessClass verdict = habits.ClassOf(7, true, now);
    LaunchProbe probe{.id = 7, .host_bytes = kBytes, .oversize = true, .by_faults = verdict != AccessClass::kStreaming};
    if (verdict == AccessClass::kUnknownFaulting) {
      habits.NoteProbe(probe, now);
    } else {
      probe.stride = verdict == AccessClass::kStreaming ? 1 : habits.ShareOf(7, kBytes).stride;
      if (!habits.IsDue(7, true)) continue;
    }
    state = state * 6364136223846793005u + 1442695040888963407u;
    habits.NoteAnswered(probe);
    // Nothing is gained nor lost, a third of it is chance.
    habits.NoteMeasured(probe, 150'000 + (state >> 33) % 100'000, now);
    host += verdict == AccessClass::kStreaming;
    changes += verdict != last;
    last = verdict;
  }
  CHECK(changes <= 8);
}

TEST_CASE("the verdict on a launch larger than its budget") {
  LaunchClassifier habits;
  const LaunchProbe faults{7, uint64_t{1} << 30, 0, true, true}, host{7, uint64_t{1} << 30, 0, true, false};
  CHECK(habits.ClassOf(7, true, 1) == LaunchClassifier::AccessClass::kUnknownFaulting);
  habits.NoteProbe(faults, 1);
  CHECK_FALSE(habits.NoteMeasured(faults, 100'000'000, 2));  // it touches all of it
  CHECK(habits.ClassOf(7, true, 3) == LaunchClassifier::AccessClass::kUnknown);
  CHECK_FALSE(habits.NoteMeasured(host, 30'000'000, 4));
  CHECK(habits.ClassOf(7, true, 5) == LaunchClassifier::AccessClass::kStreaming);
  // Another one touches little, which is settled at the fourth time.
  const LaunchProbe sparse{8, uint64_t{1} << 30, 0, true, true};
  for (int i = 0; i < 3; ++i) CHECK_FALSE(habits.NoteMeasured(sparse, 1'000'000, 6));
  CHECK(habits.NoteMeasured(sparse, 1'000'000, 6));
  CHECK_FALSE(habits.NoteMeasured(sparse, 1'000'000, 6));
  CHECK(habits.ClassOf(8, true, 7) == LaunchClassifier::AccessClass::kFaulting);
}

TEST_CASE("what faults bring for a launch larger than its budget leaves when it is much, not behind each launch") {
  for (const Prefetch mode : {Prefetch::kOff, Prefetch::kPredict}) {
    Machine machine(400, 80);
    machine.residency.set_prefetch(mode);
    for (int i = 0; i < 20; ++i) machine.Launch(7, {Chunks(0, 400)}, 1, 0.001);
    machine.sweeps = machine.swept = 0;
    for (int i = 0; i < 3000; ++i) machine.Launch(7, {Chunks(0, 400)}, 1, 0.001);  // some 0.7 MiB each
    CHECK(machine.sweeps >= 10);
    CHECK(machine.sweeps <= 60);
    CHECK(machine.swept >= machine.sweeps * 300 * kChunkBytes);
    CHECK(machine.residency.resident_bytes() <= 80 * kChunkBytes);
    // A capacity that shrinks has it leave at once.
    for (int i = 0; i < 3; ++i) machine.Launch(7, {Chunks(0, 400)}, 1, 0.001);
    machine.residency.set_capacity(70 * kChunkBytes);
    machine.sweeps = 0;
    machine.Launch(8, {Chunks(0, 2)}, 11);
    CHECK(machine.sweeps == 1);
    machine.Launch(8, {Chunks(0, 2)}, 11);
    CHECK(machine.sweeps == 1);
    for (int i = 0; i < 3; ++i) machine.Launch(7, {Chunks(0, 400)}, 1, 0.001);
    // Nobody launches it any more: what it left on the card goes with the launches of others.
    machine.sweeps = 0;
    for (int i = 0; i < 2000; ++i) machine.Launch(8, {Chunks(0, 2)}, 11);
    CHECK(machine.sweeps == 1);
    // It touches all of it from now on.
    machine.sweeps = 0;
    for (int i = 0; i < 200; ++i) machine.Launch(7, {Chunks(0, 400)}, 1, 1);
    CHECK(machine.sweeps >= 100);
  }
}

TEST_CASE("what was born by faults leaves, though no launch that was timed tells of it") {
  for (const Prefetch mode : {Prefetch::kOff, Prefetch::kPredict}) {
    Machine machine(400, 80);
    machine.residency.set_prefetch(mode);
    std::vector<int> at;
    for (int i = 0; i < 5000; ++i) {
      const uint64_t sweeps = machine.sweeps;
      machine.Launch(7, {Chunks(0, 400)}, 1, 0);
      if (machine.sweeps != sweeps) at.push_back(i);
    }
    REQUIRE(at.size() >= 8);
    CHECK(at[0] < 64);
    for (size_t i = 1; i < at.size(); ++i) CHECK(at[i] - at[i - 1] <= 1024);
    CHECK(at.size() < 16);  // a sweep takes as long as ten such launches
    CHECK(machine.swept >= at.size() * 300 * kChunkBytes);
  }
}

TEST_CASE("where nothing can be queued, what does not fit of a launch is not believed to be held") {
  FakeCard card(12, 4);
  const std::vector<Extent> set{Chunks(0, 12)};
  card.residency.Prepare(1, ++card.seq[1], set, 7, false);
  CHECK(card.residency.resident_bytes() == 4 * kChunkBytes);
  CHECK(card.residency.stats().over_budget_launches == 1);
  const Plan& plan = card.residency.Prepare(1, ++card.seq[1], std::vector<Extent>{Chunks(0)}, 8);
  uint64_t leaves = 0;
  for (const Extent& run : plan.evict_after) leaves += run.bytes;
  CHECK(leaves == 0);  // 16 MiB: it waits for more
}

TEST_CASE("what another queue is sending away is not swept, nor what is dead") {
  FakeCard card(12, 4);
  card.time.transfers_instant = false;
  card.Queue({Chunks(0, 4)}, 2);
  card.Finish(2);
  card.time.FinishTransfers(2, 1, 0);
  REQUIRE(card.Queue({Chunks(4, 4)}, 2).now.out_op == 1);  // 0 to 3 are on their way out
  card.Finish(2);
  card.time.FinishTransfers(2, 2, 0);
  const auto swept = [&card](uint64_t capacity) {
    card.residency.set_capacity(capacity * kChunkBytes);
    std::vector<uint64_t> chunks;
    for (const Extent& run : card.Queue({Chunks(4)}, 1, 8).evict_after) {
      for (Va at = run.base; at < run.end(); at += kChunkBytes) chunks.push_back((at - kBase) / kChunkBytes);
    }
    card.Finish();
    return chunks;
  };
  card.residency.Prepare(1, ++card.seq[1], std::vector<Extent>{Chunks(0, 12)}, 7, false);
  card.residency.RemoveLive(Chunks(11));
  CHECK(swept(3) == std::vector<uint64_t>{8, 9, 10});
  card.time.FinishTransfers(2, 2, 1);
  CHECK(swept(2) == std::vector<uint64_t>{0, 1, 2, 3});
  CHECK(swept(1).empty());
}

TEST_CASE("a launch larger than its budget that re-reads comes by faults, and is no longer mapped in host memory") {
  Machine machine(12, 4);
  // 7 GB/s: what comes by faults and leaves again is no slower.
  for (int i = 0; i < 400; ++i) machine.Launch(7, {Chunks(0, 12)}, 7);
  CHECK(machine.residency.stats().remote_bytes > 0);  // it was tried
  const ResidencyStats before = machine.residency.stats();
  machine.Launch(7, {Chunks(0, 12)}, 7);
  CHECK(machine.residency.stats().remote_bytes == before.remote_bytes);
  CHECK(machine.residency.stats().fault_bytes > before.fault_bytes);
  machine.residency.chunks().ForAll([](const Chunk& chunk) { CHECK_FALSE(chunk.mapped_remote); });
}

TEST_CASE("a launch that streams and re-reads the little that it touches is left to faults, if these are cheaper") {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const LaunchProbe host{7, 64 * kMiB, 0, false}, faults{7, 32 * kMiB, 0, false, true};
  for (const bool sparse : {true, false}) {
    LaunchClassifier habits;
    habits.NoteMeasured({7, 8 * kMiB, 0, false}, 200'000, 1);
    REQUIRE(habits.ClassOf(7, false, 2) == LaunchClassifier::AccessClass::kStreaming);
    habits.NoteMeasured(host, 1'600'000, 3);  // 42 GB/s: once
    REQUIRE(habits.ClassOf(7, false, 4) == LaunchClassifier::AccessClass::kStreaming);
    for (int i = 0; i < 3; ++i) {
      REQUIRE(habits.ClassOf(7, false, 5) == LaunchClassifier::AccessClass::kStreaming);
      habits.NoteMeasured(host, 2'600'000, 5);
    }
    CHECK(habits.ClassOf(7, false, 6) == LaunchClassifier::AccessClass::kUnknownFaulting);
    habits.NoteMeasured(faults, sparse ? 300'000 : 1'500'000, 7);
    CHECK(habits.ClassOf(7, false, 8) ==
          (sparse ? LaunchClassifier::AccessClass::kFaulting : LaunchClassifier::AccessClass::kStreaming));
  }
}

TEST_CASE("a host far ahead waits for the time that decides how its launches go") {
  LaunchClassifier habits;
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const LaunchProbe probe{7, 8 * kMiB, 0, false};
  for (int i = 0; i < 100; ++i) habits.NoteMissing(7, false, kMiB, 100 * kMiB);
  CHECK_FALSE(habits.ShouldAwait(7));  // nothing is awaited
  habits.NoteProbe(probe, 1);
  for (int i = 0; i < 31; ++i) habits.NoteMissing(7, false, kMiB, 100 * kMiB);
  CHECK_FALSE(habits.ShouldAwait(7));  // it is not far ahead
  habits.NoteMissing(7, false, kMiB, 100 * kMiB);
  CHECK(habits.ShouldAwait(7));
  CHECK_FALSE(habits.ShouldAwait(8));  // another kind of launch goes on
  habits.NoteAnswered(probe);
  // Few that miss much are as bad as many.
  habits.NoteProbe(probe, 1);
  habits.NoteMissing(7, false, 60 * kMiB, 100 * kMiB);
  CHECK_FALSE(habits.ShouldAwait(7));
  habits.NoteMissing(7, false, 60 * kMiB, 100 * kMiB);
  CHECK(habits.ShouldAwait(7));
  habits.NoteAnswered(probe);
  CHECK_FALSE(habits.ShouldAwait(7));
  habits.NoteMeasured(probe, 200000, 2);
  REQUIRE(habits.ClassOf(7, false, 3) == LaunchClassifier::AccessClass::kStreaming);
  // The first of a verdict are all timed, and may change it; later ones do no more than look now and then.
  for (int i = 0; i < 4; ++i) CHECK(habits.IsDue(7, false));
  for (int i = 0; i < 32; ++i) habits.NoteMissing(7, false, kMiB, 100 * kMiB);
  CHECK(habits.ShouldAwait(7));
  for (int i = 0; i < 4; ++i) habits.NoteAnswered(probe);
  CHECK_FALSE(habits.ShouldAwait(7));
  int due = 0;
  for (int i = 0; i < 200; ++i) {
    due += habits.IsDue(7, false);
    habits.NoteMissing(7, false, kMiB, 100 * kMiB);
  }
  CHECK(due == 3);
  CHECK_FALSE(habits.ShouldAwait(7));
}

TEST_CASE("the verdict on an execution id") {
  LaunchClassifier habits;
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const LaunchProbe probe{7, 8 * kMiB, 0, false}, faults{7, 8 * kMiB, 0, false, true};
  CHECK(habits.ClassOf(7, false, 1) == LaunchClassifier::AccessClass::kUnknown);
  habits.NoteProbe(probe, 1);
  CHECK(habits.ClassOf(7, false, 2) == LaunchClassifier::AccessClass::kRereading);  // until its time is known
  habits.NoteMeasured(probe, 200000, 3);                                            // 42 GB/s
  CHECK(habits.ClassOf(7, false, 4) == LaunchClassifier::AccessClass::kStreaming);
  CHECK(habits.ClassOf(7, true, 4) ==
        LaunchClassifier::AccessClass::kUnknownFaulting);  // too large for its budget: another question
  habits.NoteMeasured(probe, 2000000, 5);                  // 4 GB/s, now
  CHECK(habits.ClassOf(7, false, 6) == LaunchClassifier::AccessClass::kRereading);
  CHECK(habits.ClassOf(7, false, 100000) == LaunchClassifier::AccessClass::kUnknown);
  for (int i = 0; i < 3; ++i) habits.NoteMeasured(probe, 2000000, 100000);
  for (int i = 0; i < 2; ++i) {
    CHECK(habits.ClassOf(7, false, 100001) == LaunchClassifier::AccessClass::kUnknownFaulting);
    habits.NoteMeasured(faults, 800000, 100001);
  }
  CHECK(habits.ClassOf(7, false, uint64_t{1} << 40) == LaunchClassifier::AccessClass::kRereading);
}

TEST_CASE("launches that are done with host memory sooner than the link could bring it touch little of it") {
  LaunchClassifier habits;
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const LaunchProbe probe{7, 8 * kMiB, 0, false}, few{7, 2 * kMiB, 0, false};
  CHECK(!habits.IsSparse(7));
  habits.NoteMeasured(probe, 14'000, 1);
  CHECK(!habits.IsSparse(7));  // one may have met the part that it does not touch
  habits.NoteMeasured(few, 5'000, 2);
  CHECK(!habits.IsSparse(7));  // too little to tell
  habits.NoteMeasured(probe, 13'000, 3);
  CHECK(habits.IsSparse(7));
  // One slow sample is a busy link or a host that was held up, and says nothing ...
  habits.NoteMeasured(probe, 175'000, 4);
  CHECK(habits.IsSparse(7));
  for (int i = 0; i < 100; ++i) {
    habits.NoteMeasured(probe, i % 3 == 2 ? 175'000 : 13'000, 5);
    CHECK(habits.IsSparse(7));
  }
  // ... but is looked at again at once, and several say that it has changed.
  for (int i = 0; i < 8; ++i) habits.IsDue(7, false);
  CHECK_FALSE(habits.IsDue(7, false));
  habits.NoteMeasured(probe, 175'000, 6);
  for (int i = 0; i < 3; ++i) {
    CHECK(habits.IsSparse(7));
    CHECK(habits.IsDue(7, false));
    habits.NoteMeasured(probe, 175'000, 7);
  }
  CHECK(!habits.IsSparse(7));
}

TEST_CASE("that launches touch little is found although every third one is held up") {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const LaunchProbe probe{7, 8 * kMiB, 0, false};
  for (int first = 0; first < 3; ++first) {
    LaunchClassifier habits;
    for (int i = 0; i < 6; ++i) habits.NoteMeasured(probe, i % 3 == first ? 175'000 : 13'000, 1);
    CHECK(habits.IsSparse(7));
  }
}

}  // namespace sluice::policy
