#include "hooklib/policy/predict/predictor.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <fstream>
#include <random>
#include <span>
#include <vector>

namespace sluice::policy {

namespace {

struct Chunks {
  std::array<Chunk, 16> all{};
  Chunks() {
    for (size_t i = 0; i < all.size(); ++i) all[i].base = (i + 1) * kChunkBytes;
  }
};

void Enter(Predictor* predictor, uint64_t id, std::span<Chunk* const> set, uint64_t now, bool all_resident = false) {
  LaunchHash place(id);
  for (const Chunk* chunk : set) place.Add(chunk->base, chunk->base + kChunkBytes);
  predictor->NoteLaunch(id, place.sum(), set, now, 0, all_resident);
}

long ResidentKib() {
  std::ifstream statm("/proc/self/statm");
  long pages = 0, resident = 0;
  statm >> pages >> resident;
  REQUIRE(resident > 0);
  return resident * sysconf(_SC_PAGESIZE) / 1024;
}

}  // namespace

TEST_CASE("in a repeated sequence each chunk's next use is known") {
  Chunks c;
  Predictor predictor;
  uint64_t now = 0;
  // Ten launches a step; launch i touches chunk i, and all touch chunk 15.
  for (int step = 0; step < 4; ++step) {
    for (uint64_t i = 0; i < 10; ++i) {
      Chunk* set[] = {&c.all[i], &c.all[15]};
      Enter(&predictor, 100 + i, set, ++now);
      if (step < 3) continue;
      CHECK(c.all[i].next_use == now + 10);
      CHECK(c.all[15].next_use == now + 1);
    }
  }
  CHECK(predictor.confident());
  CHECK(predictor.wrong() <= 1);
}

TEST_CASE("the predictor knows which chunks are freed before their next use, and how much live bytes will grow") {
  Chunks c;
  Predictor predictor;
  uint64_t now = 0;
  for (int step = 0; step < 4; ++step) {
    for (uint64_t i = 0; i < 10; ++i) {
      Chunk* set[] = {&c.all[i]};
      LaunchHash place(100 + i);
      place.Add(c.all[i].base, c.all[i].base + kChunkBytes);
      predictor.NoteLaunch(100 + i, place.sum(), set, ++now, i < 6 ? 20 : 20 + static_cast<uint32_t>(i));
      if (i == 4) predictor.NoteFreed(c.all[2], 3);  // two launches behind its use
      if (step < 3) continue;
      CHECK(c.all[i].freed_in == (i == 2 ? 3 : 0));
    }
  }
  CHECK(predictor.GrowthWithin(4) == 0);  // from launch 9 on, where 29 chunks are live
  for (uint64_t i = 0; i < 2; ++i) {
    Chunk* set[] = {&c.all[i]};
    Enter(&predictor, 100 + i, set, ++now);
  }
  CHECK(predictor.GrowthWithin(3) == 0);
  CHECK(predictor.GrowthWithin(100) >= 6);
  CHECK(predictor.GrowthWithin(100) <= 9);
}

TEST_CASE("launch numbers of other streams and copies count in the prediction") {
  Chunks c;
  Predictor predictor;
  uint64_t now = 0;
  for (int step = 0; step < 4; ++step) {
    for (uint64_t i = 0; i < 10; ++i) {
      Chunk* set[] = {&c.all[i]};
      Enter(&predictor, 100 + i, set, now += 3);
      if (step == 3) CHECK(c.all[i].next_use == now + 30);
    }
  }
  CHECK(predictor.period() == 30);
  uint64_t at = 0, id = 0;
  CHECK(predictor.NextAhead(2, 0, &at, &id).size() == 1);
  CHECK(at == now + 3);
}

TEST_CASE("the next use by a launch that needs the chunk is found behind other uses") {
  Chunks c;
  Predictor predictor;
  uint64_t now = 0;
  // Chunk 15 is used by launches 0, 3 and 7 of ten.
  const auto step = [&](auto check) {
    for (uint64_t i = 0; i < 10; ++i) {
      Chunk* set[] = {&c.all[i], &c.all[15]};
      const bool shared = i == 0 || i == 3 || i == 7;
      Enter(&predictor, 100 + i, std::span(set, shared ? 2 : 1), ++now);
      if (shared) check(i);
    }
  };
  const auto needs = [](uint64_t id) { return id == 107; };
  step([&](uint64_t) { CHECK_FALSE(predictor.NextRequiredUse(c.all[15], needs).has_value()); });
  for (int i = 0; i < 2; ++i) step([](uint64_t) {});
  step([&](uint64_t i) {
    CHECK(predictor.NextRequiredUse(c.all[15], needs) == (i == 7 ? kNever : 7 - i));  // itself is no other
    CHECK(predictor.NextRequiredUse(c.all[15], [](uint64_t) { return false; }) == kNever);
  });
}

TEST_CASE("predictions stay right while the ring of references wraps many times") {
  constexpr uint64_t kLaunches = 10, kEach = 1234;  // 11 steps fill it
  std::vector<Chunk> all(kLaunches * kEach);
  for (size_t i = 0; i < all.size(); ++i) all[i].base = (i + 1) * kChunkBytes;
  Predictor predictor;
  uint64_t now = 0;
  std::vector<Chunk*> set(kEach);
  for (int step = 0; step < 40; ++step) {
    for (uint64_t i = 0; i < kLaunches; ++i) {
      for (size_t at = 0; at < kEach; ++at) set[at] = &all[i * kEach + at];
      Enter(&predictor, 100 + i, set, ++now);
      const bool known =
          std::all_of(set.begin(), set.end(), [now](const Chunk* chunk) { return chunk->next_use == now + kLaunches; });
      if (step >= 3) REQUIRE(known);
    }
  }
  CHECK(predictor.wrong() <= 1);
}

TEST_CASE("layers that differ only in their tensors are distinguished") {
  Chunks c;
  Predictor predictor;
  uint64_t now = 0;
  for (int step = 0; step < 5; ++step) {
    for (uint64_t layer = 0; layer < 4; ++layer) {
      for (uint64_t kernel = 0; kernel < 3; ++kernel) {  // the same three kernels in each layer
        Chunk* set[] = {&c.all[layer]};
        Enter(&predictor, 7 + kernel, set, ++now);
        if (step == 4 && kernel == 2) CHECK(c.all[layer].next_use == now + 10);
      }
    }
  }
}

TEST_CASE("NextAhead returns each later launch once, in order") {
  Chunks c;
  Predictor predictor;
  uint64_t now = 0;
  for (int step = 0; step < 3; ++step) {
    for (uint64_t i = 0; i < 12; ++i) {
      Chunk* set[] = {&c.all[i]};
      Enter(&predictor, 100 + i, set, ++now);
    }
  }
  uint64_t at = 0;
  uint64_t id = 0;
  auto ahead = predictor.NextAhead(2, 0, &at, &id);
  REQUIRE(ahead.size() == 1);
  CHECK(ahead[0] == &c.all[0]);
  CHECK(at == now + 1);
  ahead = predictor.NextAhead(2, 0, &at, &id);
  REQUIRE(ahead.size() == 1);
  CHECK(ahead[0] == &c.all[1]);
  CHECK(predictor.NextAhead(2, 0, &at, &id).empty());
}

TEST_CASE("memory that lies at a new address in each step is expected there") {
  constexpr uint64_t kLaunches = 80;
  std::vector<Chunk> chunks(kLaunches + 37);
  std::vector<Chunk*> free;
  std::mt19937 random(1);
  for (size_t i = 0; i < chunks.size(); ++i) {
    chunks[i].base = (i + 1) * kChunkBytes;
    free.push_back(&chunks[i]);
  }
  const auto take = [&] {
    std::swap(free[random() % free.size()], free.back());
    Chunk* const chunk = free.back();
    free.pop_back();
    return chunk;
  };
  std::array<Chunk*, kLaunches> weights;
  for (Chunk*& weight : weights) weight = take();
  Predictor predictor;
  uint64_t now = 0;
  // Launch i replaces weight i, as a program does that frees the old one behind it. Every fourth one differs, as in
  // layers.
  for (int step = 0; step < 8; ++step) {
    for (uint64_t i = 0; i < kLaunches; ++i) {
      Chunk *const fresh = take(), *const old = weights[i];
      Chunk* set[] = {fresh, old};
      Enter(&predictor, i == 0 ? 99 : 100 + i % 4, set, ++now);
      old->last_use = fresh->last_use = now;
      weights[i] = fresh;
      predictor.NoteFreed(*old, 1);
      free.push_back(old);
      if (step < 4) continue;
      INFO("step " << step << ", launch " << i);
      CHECK(fresh->next_use == now + kLaunches);
      CHECK(old->freed_in == 1);
      uint64_t at = 0, id = 0;
      const auto ahead = predictor.NextAhead(1, 0, &at, &id);
      REQUIRE(ahead.size() == 1);  // the fresh one is not fetched
      CHECK(ahead[0] == weights[(i + 1) % kLaunches]);
      CHECK(at == now + 1);
    }
  }
}

TEST_CASE("memory at a new address that all launches of an iteration use is expected there") {
  constexpr uint64_t kLaunches = 80, kSteps = 8;
  std::vector<Chunk> chunks(kLaunches + kSteps + 1);  // one for each launch, the others for the memory that moves
  for (size_t i = 0; i < chunks.size(); ++i) chunks[i].base = (i + 1) * kChunkBytes;
  Predictor predictor;
  uint64_t now = 0, looked = 0;
  for (uint64_t step = 0; step < kSteps; ++step) {
    Chunk *const old = &chunks[kLaunches + step], *const moved = old + 1;
    for (uint64_t i = 0; i < kLaunches; ++i) {
      Chunk* set[] = {i == 0 ? old : &chunks[i], moved};
      Enter(&predictor, 100 + i, set, ++now);
      if (i == 0) predictor.NoteFreed(*old, 1);
      if (step < 4) continue;
      uint64_t at = 0, id = 0;
      while (true) {
        const auto ahead = predictor.NextAhead(60, 0, &at, &id);
        if (ahead.empty()) break;
        if (i + (at - now) >= kLaunches) continue;  // of the next iteration
        INFO("step " << step << ", launch " << i << ", " << at - now << " ahead");
        CHECK(std::find(ahead.begin(), ahead.end(), moved) != ahead.end());
        ++looked;
      }
    }
  }
  CHECK(looked >= kLaunches);
}

TEST_CASE("launches ahead that found their chunks on the GPU are left out until a chunk moves") {
  Chunks c;
  Predictor predictor;
  uint64_t now = 0;
  for (int step = 0; step < 4; ++step) {
    for (uint64_t i = 0; i < 10; ++i) {
      Chunk* set[] = {&c.all[i]};
      Enter(&predictor, 100 + i, set, ++now, i != 5);
      if (step < 3) continue;
      uint64_t at = 0, id = 0;
      const auto ahead = predictor.NextAhead(1, i % 2 ? now : 0, &at, &id);
      INFO("launch " << i);
      CHECK(ahead.size() == (i % 2 || i + 1 == 5 ? 1 : 0));
    }
  }
}

TEST_CASE("launches that repeat an iteration are only counted, and CatchUp enters them later") {
  constexpr uint64_t kPeriod = 10;
  for (const uint64_t more : {1, 7, 10, 19, 20, 25, 1000, 40'003}) {
    INFO(more << " launches in the third iteration and behind it");
    // The same launches twice, some three launch numbers apart.
    struct Side {
      Chunks c;
      Predictor predictor;
    } all, few;
    uint64_t now = 0, left_out = 0;
    const auto launch = [&](uint64_t i, uint64_t steady) {
      now += i % kPeriod == 3 && i % 7 == 0 ? 3 : 1;
      for (Side* side : {&all, &few}) {
        Chunk* set[] = {&side->c.all[i % kPeriod], &side->c.all[15]};
        LaunchHash place(100 + i % kPeriod);
        for (const Chunk* chunk : set) place.Add(chunk->base, chunk->base + kChunkBytes);
        if (side == &few && steady && few.predictor.CountRepeat(100 + i % kPeriod, place.sum(), now, steady)) {
          ++left_out;
          continue;
        }
        if (side == &few) few.predictor.CatchUp();
        Enter(&side->predictor, 100 + i % kPeriod, set, now);
      }
    };
    uint64_t i = 0;
    for (; i < 4 * kPeriod; ++i) launch(i, 0);
    for (const uint64_t end = i + more; i < end; ++i) launch(i, i);
    CHECK(left_out == more);
    CHECK(few.predictor.is_repeating());
    // Other work runs in between; the same launches go on behind it.
    few.predictor.CatchUp();
    CHECK_FALSE(few.predictor.is_repeating());
    const auto same = [&] {
      for (size_t k = 0; k < all.c.all.size(); ++k) REQUIRE(few.c.all[k].next_use == all.c.all[k].next_use);
      CHECK(few.predictor.period() == all.predictor.period());
      CHECK(few.predictor.wrong() == all.predictor.wrong());
    };
    same();
    for (const uint64_t end = i + 2 * kPeriod; i < end; ++i) launch(i, 0);
    same();
    uint64_t at[2] = {}, id[2] = {};
    for (int k = 0; k < 3; ++k) {
      const auto ahead = all.predictor.NextAhead(256, 0, &at[0], &id[0]);
      const auto other = few.predictor.NextAhead(256, 0, &at[1], &id[1]);
      CHECK(ahead.size() == other.size());
      CHECK(at[0] == at[1]);
      CHECK(id[0] == id[1]);
    }
  }
}

TEST_CASE("a launch that is unexpected, or not seen for the third time, is to be entered") {
  Chunks c;
  Predictor predictor;
  const auto place = [&](uint64_t i) {
    LaunchHash hash(100 + i);
    hash.Add(c.all[i].base, c.all[i].base + kChunkBytes);
    return hash.sum();
  };
  uint64_t now = 0;
  const auto iteration = [&](auto enter) {
    for (uint64_t i = 0; i < 10; ++i) {
      Chunk* set[] = {&c.all[i]};
      ++now;
      if (enter(i)) Enter(&predictor, 100 + i, set, now);
    }
  };
  iteration([](uint64_t) { return true; });
  iteration([](uint64_t) { return true; });
  iteration([&](uint64_t i) { return !predictor.CountRepeat(100 + i, place(i), now, 100); });
  CHECK_FALSE(predictor.is_repeating());  // its launches were expected for the first time
  iteration([&](uint64_t i) { return !predictor.CountRepeat(100 + i, place(i), now, 19); });
  CHECK_FALSE(predictor.is_repeating());  // in the last two iterations a launch missed chunks
  CHECK_FALSE(predictor.CountRepeat(101, place(1), now + 1, 100));
  CHECK_FALSE(predictor.CountRepeat(100, place(1), now + 1, 100));
  CHECK(predictor.CountRepeat(100, place(0), now + 1, 100));
  CHECK_FALSE(predictor.CountRepeat(100, place(0), now + 2, 100));
  CHECK(predictor.CountRepeat(101, place(1), now + 2, 100));
}

TEST_CASE("a change of phase ends the prediction and is learned within two iterations") {
  Chunks c;
  Predictor predictor;
  uint64_t now = 0;
  auto iteration = [&](uint64_t first, uint64_t kernels) {
    for (uint64_t i = 0; i < kernels; ++i) {
      Chunk* set[] = {&c.all[i]};
      Enter(&predictor, first + i, set, ++now);
    }
  };
  for (int i = 0; i < 4; ++i) iteration(100, 10);
  REQUIRE(predictor.confident());
  const uint64_t before = predictor.wrong();
  uint64_t at = 0;
  uint64_t id = 0;
  iteration(500, 9);
  CHECK_FALSE(predictor.confident());
  CHECK(predictor.wrong() == before + 1);                // nothing more was predicted
  CHECK(predictor.NextAhead(256, 0, &at, &id).empty());  // and nothing is prefetched
  iteration(500, 9);
  iteration(500, 9);
  CHECK(predictor.confident());
}

TEST_CASE("a predictor of one launch takes a few pages of host memory") {
  // Its tables hold 4.4 MiB, and each stream that launches has one.
  constexpr int kPredictors = 16;
  Chunks c;
  Chunk* set[] = {&c.all[0]};
  const long before = ResidentKib();
  std::vector<Predictor> predictors(kPredictors);
  for (Predictor& predictor : predictors) Enter(&predictor, 1, set, 1);
  CHECK(ResidentKib() - before < kPredictors * 128);
}

}  // namespace sluice::policy
