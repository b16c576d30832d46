// The touch sampler alone: which chunks it lets launches try, and its conclusions from their faults.
#include "hooklib/policy/touched/touch_sampler.h"

#include <catch2/catch_test_macros.hpp>
#include <vector>

namespace sluice::policy {
namespace {

using memory::Touch;

constexpr Va kBase = uint64_t{1} << 40;
constexpr uint64_t kChunks = 64;

struct Rig {
  ChunkTable chunks;
  LinkModel link;
  TouchSampler sampler{&link};
  std::vector<Extent> operands;

  explicit Rig(size_t count, uint64_t each = kChunks) {
    for (size_t i = 0; i < count; ++i) operands.push_back({kBase + i * each * kChunkBytes, each * kChunkBytes});
    chunks.AddArena({kBase, count * each * kChunkBytes});
    sampler.set_enabled(true);
  }
  Chunk* At(size_t operand, uint64_t chunk) { return chunks.Find(operands[operand].base + chunk * kChunkBytes); }
  void Try(size_t operand, uint64_t chunk) { sampler.Begin(At(operand, chunk), operands[operand]); }
  void Name(size_t operand, uint64_t chunk, Seq seq, uint32_t uses = 4) {
    sampler.NoteNamed(*At(operand, chunk), {1, seq}, uses, seq, 0);
  }
  bool Fault(size_t operand, uint64_t chunk) { return sampler.NoteFault(At(operand, chunk), 7); }
  // Everything up to `done` is over, and all faults have been noted.
  void Conclude(Seq done) {
    sampler.MarkOver([done](const Mark& mark) { return mark.seq <= done; });
    sampler.Conclude(&chunks);
  }
  size_t Allowance(size_t operand, size_t unknown = 60) {
    double touched = TouchSampler::kMaxTouched;
    return sampler.Allowance(operands[operand], unknown, &touched);
  }
  void FindUntouched(size_t operand, uint64_t first, uint64_t count, Seq seq) {
    for (uint64_t i = first; i < first + count; ++i) Try(operand, i), Name(operand, i, seq);
    Conclude(seq);
  }
};

}  // namespace

TEST_CASE("touch sampler: a chunk on which no finished launch faulted is untouched") {
  Rig rig(1);
  rig.Try(0, 3);
  CHECK(TouchSampler::IsLeftOut(*rig.At(0, 3)));
  rig.Name(0, 3, 10);
  rig.Conclude(9);
  CHECK(rig.At(0, 3)->touch == Touch::kSampled);
  rig.Conclude(10);
  CHECK(rig.At(0, 3)->touch == Touch::kUntouched);
  CHECK(TouchSampler::IsLeftOut(*rig.At(0, 3)));
  CHECK(rig.sampler.stats().untouched == 1);
}

TEST_CASE("touch sampler: a sparse launch tries chunks of operands whose samples were all touched, as credit allows") {
  Rig rig(4);
  for (uint64_t i = 0; i < 8; ++i) rig.Try(i % 4, i), rig.Fault(i % 4, i);
  double touched = 32;
  CHECK(rig.sampler.Allowance(rig.operands[0], 60, &touched) == 0);
  CHECK(rig.sampler.Allowance(rig.operands[0], 60, &touched, true) > 8);
  for (uint64_t i = 8; i < 60; ++i) {
    for (size_t operand = 0; operand < 4; ++operand) rig.Try(operand, i), rig.Fault(operand, i);
  }
  touched = 32;
  CHECK(rig.sampler.Allowance(rig.operands[0], 4, &touched, true) == 0);  // all credit is spent
}

TEST_CASE("touch sampler: a sample may have to last for a whole iteration of launches") {
  Rig rig(1);
  rig.Try(0, 3);
  const auto name = [&rig](Seq seq) { rig.sampler.NoteNamed(*rig.At(0, 3), {1, seq}, 1, seq, 32); };
  for (Seq seq = 100; seq < 132; ++seq) name(seq);
  rig.Conclude(131);
  CHECK(rig.At(0, 3)->touch == Touch::kSampled);
  name(132);
  rig.Conclude(131);  // the last one runs
  CHECK(rig.At(0, 3)->touch == Touch::kSampled);
  rig.Conclude(132);
  CHECK(rig.At(0, 3)->touch == Touch::kUntouched);
}

TEST_CASE("touch sampler: a few launches have to name the chunk") {
  Rig rig(1);
  rig.Try(0, 3);
  rig.Name(0, 3, 1, 1);
  rig.Conclude(100);
  CHECK(rig.At(0, 3)->touch == Touch::kSampled);
  rig.Name(0, 3, 4, 1);
  rig.Name(0, 3, 1000, 1);  // names it, too, but the first two suffice
  rig.Conclude(100);
  CHECK(rig.At(0, 3)->touch == Touch::kUntouched);
}

TEST_CASE("touch sampler: a fault ends the sample, and one on an untouched chunk its being left out") {
  Rig rig(1);
  rig.Try(0, 3);
  rig.Name(0, 3, 1);
  CHECK(rig.Fault(0, 3));
  CHECK(rig.At(0, 3)->touch == Touch::kTouched);
  CHECK_FALSE(rig.Fault(0, 3));
  rig.Conclude(1);
  CHECK(rig.At(0, 3)->touch == Touch::kTouched);
  CHECK_FALSE(rig.sampler.leaves_out_any());
  rig.FindUntouched(0, 4, 1, 2);
  CHECK(rig.sampler.leaves_out_any());
  CHECK(rig.Fault(0, 4));
  CHECK(rig.sampler.stats().late == 1);
  CHECK_FALSE(rig.sampler.leaves_out_any());
}

TEST_CASE("touch sampler: lost records prove nothing") {
  Rig rig(1);
  rig.Try(0, 3);
  rig.Name(0, 3, 1);
  rig.sampler.MarkOver([](const Mark&) { return true; });
  std::vector<Va> again;
  rig.sampler.Repeat([&again](Va base) { again.push_back(base); });
  CHECK(again == std::vector<Va>{rig.At(0, 3)->base});
  rig.Conclude(1);
  CHECK(rig.At(0, 3)->touch == Touch::kSampled);
  rig.Name(0, 3, 2);
  rig.Conclude(2);
  CHECK(rig.At(0, 3)->touch == Touch::kUntouched);
}

TEST_CASE("touch sampler: an untouched chunk opens the operand, and others of its size") {
  Rig rig(3);
  CHECK(rig.Allowance(0) == 1);
  rig.Try(0, 0);
  CHECK(rig.Allowance(0) == 0);  // its answer is awaited
  rig.Name(0, 0, 1);
  rig.Conclude(1);
  CHECK(rig.sampler.IsSuspect(rig.operands[0]));
  CHECK(rig.Allowance(0) == 60);
  // No more than the launch may be expected to touch.
  double touched = 2;
  const size_t few = rig.sampler.Allowance(rig.operands[0], 60, &touched);
  CHECK(few > 1);
  CHECK(few < 10);
  CHECK(touched < 1);
  CHECK(rig.sampler.IsSuspect(rig.operands[1]));
  // An operand's own chunks weigh more than those of others.
  rig.FindUntouched(0, 1, 20, 2);
  for (uint64_t i = 0; i < 8; ++i) rig.Try(2, i), rig.Fault(2, i);
  CHECK_FALSE(rig.sampler.IsSuspect(rig.operands[2]));
  CHECK(rig.sampler.IsSuspect(rig.operands[1]));
}

TEST_CASE("touch sampler: where everything is touched the samples cost no more than the first credit") {
  Rig rig(64);
  size_t samples = 0;
  for (int round = 0; round < 100; ++round) {
    for (size_t i = 0; i < rig.operands.size(); ++i) {
      const size_t allowed = rig.Allowance(i);
      const uint64_t chunk = static_cast<uint64_t>(round) % kChunks;
      for (size_t k = 0; k < allowed; ++k) rig.Try(i, chunk), rig.Fault(i, chunk);
      samples += allowed;
    }
  }
  CHECK(samples >= 3);
  CHECK(samples <= 26);
  // Nor does it go on while launches lack bytes.
  const size_t before = samples;
  rig.sampler.NoteLacking(uint64_t{1} << 40);
  for (size_t i = 0; i < rig.operands.size(); ++i) samples += rig.Allowance(i);
  CHECK(samples == before);
}

TEST_CASE("touch sampler: one touched chunk does not stand for an operand that is all memory of a program") {
  Rig rig(1, 640);
  rig.Try(0, 100), rig.Fault(0, 100);  // one of its few used chunks
  CHECK(rig.Allowance(0, 600) == 1);
  rig.FindUntouched(0, 200, 2, 10);
  CHECK(rig.Allowance(0, 600) > 8);
}

TEST_CASE("touch sampler: small operands and drivers without records try nothing") {
  Rig rig(1);
  double touched = TouchSampler::kMaxTouched;
  CHECK(rig.sampler.Allowance({kBase, 8 * kChunkBytes - 1}, 8, &touched) == 0);
  rig.sampler.set_enabled(false);
  CHECK(rig.Allowance(0) == 0);
}

TEST_CASE("touch sampler: a sample that launches no longer name ends, and says nothing") {
  Rig rig(1);
  rig.Try(0, 3);
  for (uint64_t now : {100, 150, 200}) {
    rig.sampler.EndUnnamed(now, 100, &rig.chunks);
    CHECK(rig.Allowance(0) == 0);  // it is still pending
  }
  rig.Name(0, 3, 210, 1);
  for (uint64_t now : {260, 310}) rig.sampler.EndUnnamed(now, 100, &rig.chunks);
  CHECK(rig.sampler.explores());
  rig.sampler.EndUnnamed(311, 100, &rig.chunks);
  CHECK_FALSE(rig.sampler.explores());
  CHECK_FALSE(rig.sampler.leaves_out_any());
  CHECK(rig.At(0, 3)->touch == Touch::kUnknown);
  CHECK(rig.sampler.stats().untouched == 0);
  CHECK(rig.Allowance(0) == 1);
}

TEST_CASE("touch sampler: a freed chunk is forgotten") {
  Rig rig(1);
  rig.Try(0, 3);
  rig.FindUntouched(0, 4, 1, 1);
  rig.sampler.Forget(rig.At(0, 3));
  rig.sampler.Forget(rig.At(0, 4));
  CHECK(rig.At(0, 3)->touch == Touch::kUnknown);
  CHECK(rig.At(0, 4)->touch == Touch::kUnknown);
  CHECK_FALSE(rig.sampler.leaves_out_any());
  rig.Conclude(100);
  CHECK(rig.At(0, 3)->touch == Touch::kUnknown);
}

}  // namespace sluice::policy
