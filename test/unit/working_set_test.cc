// The working set: chunks that work used within the last minute, and when the work of a program that fits is looked at.
#include <catch2/catch_test_macros.hpp>

#include "hooklib/policy/working_set/use_watch.h"
#include "test/unit/fake_gpu.h"

using namespace sluice::policy;  // NOLINT(google-build-using-namespace)

namespace {

constexpr uint64_t kSec = UseWatch::kSecondNs;

uint64_t Touched(FakeGpu& gpu, uint32_t second) {
  return gpu.residency.CountUsed(gpu.residency.launches() + 1, second).within_minute / kChunkBytes;
}

// A program that fits, and whose calls come every `gap_ns` and take 1 us to look at.
struct Watched {
  uint64_t touched = 0;            // chunks, at the end
  uint64_t looked = 0, calls = 0;  // calls that were looked at, and all
};
template <typename ExtentOf>
Watched RunFor(FakeGpu& gpu, uint64_t from, uint64_t seconds, uint64_t gap_ns, ExtentOf extent_of) {
  UseWatch watch;
  Watched out;
  uint64_t next_second = from * kSec;
  for (uint64_t now = from * kSec; now < (from + seconds) * kSec; now += gap_ns, ++out.calls) {
    for (; next_second <= now; next_second += kSec) {
      if (watch.MayOpen(next_second)) watch.Open(next_second);
      out.touched = Touched(gpu, UseWatch::SecondOf(next_second));
    }
    if (!watch.is_open()) continue;
    ++out.looked;
    const Extent extent = extent_of(out.calls);
    const uint32_t second = UseWatch::SecondOf(now);
    const size_t found =
        watch.IsStamped(extent, second) ? 0 : gpu.residency.NoteUnplannedUse(extent, second, watch.opened_second());
    watch.Count(found, now, now + 1000);
  }
  return out;
}

}  // namespace

TEST_CASE("the working set holds the chunks that planned launches used within a minute") {
  FakeGpu gpu(16, 8);
  CHECK(Touched(gpu, 100) == 0);
  gpu.Queue({Chunks(0, 4)}, 1, 7);
  CHECK(Touched(gpu, 101) == 4);
  gpu.Queue({Chunks(2, 4)}, 1, 8);
  CHECK(Touched(gpu, 130) == 6);
  CHECK(Touched(gpu, 160) == 6);
  CHECK(Touched(gpu, 161) == 4);  // chunks 0 and 1 were last used in second 101
  CHECK(Touched(gpu, 189) == 4);
  CHECK(Touched(gpu, 190) == 0);
}

TEST_CASE("launches of the fast path, which note nothing in their chunks, are in the working set") {
  FakeGpu gpu(16, 8);
  for (int i = 0; i < 101; ++i) gpu.Queue({Chunks(0, 4)}, 1, 7);
  CHECK(Touched(gpu, 100) == 4);
  for (int i = 0; i < 100; ++i) gpu.Queue({Chunks(0, 4)}, 1, 7);  // served by the steady set
  CHECK(Touched(gpu, 159) == 4);
  CHECK(Touched(gpu, 200) == 4);
}

TEST_CASE("a buffer that is free at the moment of the count is in the working set") {
  FakeGpu gpu(16, 16);
  gpu.Queue({Chunks(0, 4)}, 1, 7);
  gpu.residency.RemoveLive(Chunks(2, 2));
  CHECK(Touched(gpu, 100) == 4);
}

TEST_CASE("chunks that are named and were found not to be touched are not in the working set") {
  FakeGpu gpu(16, 8);
  gpu.Queue({Chunks(0, 6)}, 1, 7);
  gpu.residency.chunks().Find(Chunks(4).base)->touch = sluice::memory::Touch::kUntouched;
  CHECK(Touched(gpu, 100) == 5);
}

TEST_CASE("a program that fits is seen whole, and few of its calls are looked at") {
  FakeGpu gpu(4096, 4096);
  // 20,000 launches of 2 MiB in turn over 2,000 chunks, 10 us each: a step of 0.2 s.
  const Watched run = RunFor(gpu, 1, 60, 10'000, [](uint64_t call) { return Chunks(call % 20'000 / 10); });
  CHECK(run.touched == 2000);
  CHECK(run.looked * 100 < run.calls * 5);  // at 1 us each: half a percent of the time
  // It narrows to a tenth.
  const auto narrow = [](uint64_t call) { return Chunks(call % 200); };
  CHECK(RunFor(gpu, 61, 30, 10'000, narrow).touched == 2000);  // within the last minute
  CHECK(RunFor(gpu, 91, 60, 10'000, narrow).touched == 200);
}

TEST_CASE("a launch over a large block costs one look a second") {
  FakeGpu gpu(4096, 4096);
  UseWatch watch;
  watch.Open(kSec);
  const Extent block = Chunks(0, 4096);
  CHECK(!watch.IsStamped(block, 2));
  CHECK(watch.IsStamped(block, 2));
  CHECK(!watch.IsStamped(block, 3));
}

TEST_CASE("a window ends when twice as many calls found nothing new, and the pause follows its cost") {
  UseWatch watch;
  CHECK(watch.MayOpen(0));
  watch.Open(kSec);
  CHECK(!watch.MayOpen(kSec));
  int calls = 0;
  while (!watch.Count(calls < 100 ? 1 : 0, kSec, kSec + 10'000)) ++calls;
  CHECK(calls == 2 * 100 + 64 - 1);
  // 264 calls of 10 us: a pause of 400 times that.
  CHECK(!watch.MayOpen(2 * kSec));
  CHECK(!watch.MayOpen(kSec + 1'050'000'000));
  CHECK(watch.MayOpen(kSec + 10'000 + 400 * 264 * 10'000));
  // However dear the looks are, they cost at most half a percent.
  watch.Open(10 * kSec);
  while (!watch.Count(1, 10 * kSec, 10 * kSec + 20'000'000)) continue;
  CHECK(!watch.MayOpen(29 * kSec));
  CHECK(watch.MayOpen(31 * kSec));
}
