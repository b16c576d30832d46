#include "hooklib/policy/predict/pointer_ranges.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <random>

namespace sluice::policy {

namespace {

using Outcome = PointerRanges::Outcome;

constexpr uint64_t kMiB = uint64_t{1} << 20, kId = 7;
constexpr Extent kPool{uint64_t{1} << 40, 2048 * kMiB};
constexpr Extent kOther{uint64_t{1} << 41, 2048 * kMiB};

Va At(uint64_t mib) { return kPool.base + mib * kMiB; }

// One page of each chunk: the driver fetches the others beside it.
std::vector<Va> Pages(Va base, uint64_t mib) {
  std::vector<Va> pages;
  for (Va va = base; va < base + mib * kMiB; va = RoundDown(va, kChunkBytes) + kChunkBytes) pages.push_back(va);
  return pages;
}

struct WatchedKernel {
  PointerRanges ranges;
  uint64_t faults = 0;
  Extent resident;  // before the launch

  WatchedKernel() { ranges.NoteTooLarge(kId); }
  // A watched launch with one pointer, which touched `mib` MiB from `from_mib` behind it.
  Outcome Touch(Va pointer, uint64_t mib, uint64_t from_mib = 0) {
    const std::vector<Va> pages = Pages(pointer + from_mib * kMiB, mib);
    return Watch({{0, pointer, kPool}}, pages);
  }
  Outcome Watch(const std::vector<UnboundedPointer>& words, std::vector<Va> pages) {
    std::sort(pages.begin(), pages.end());
    faults += pages.size();
    return ranges.Observe(kId, words, pages, [this](Va page) { return page - resident.base < resident.bytes; });
  }
  Extent NarrowedTo(Va pointer, size_t place = 0, Extent block = kPool) const {
    return ranges.Narrow(kId, place, pointer, block);
  }
  // Launches with a narrowed set until one is to be watched; 0: none of `max`.
  int UntilWanted(int max) {
    for (int n = 1; n <= max; ++n) {
      if (ranges.NoteNarrowed(kId, faults)) return n;
    }
    return 0;
  }
  // The same once the launches in flight are over, with many faults.
  int UntilSuspicious() {
    UntilWanted(1 << 12);
    faults += 1024;
    return UntilWanted(1 << 12);
  }
};

}  // namespace

TEST_CASE("after three launches that faulted on the same part the next ones name that part alone") {
  WatchedKernel kernel;
  CHECK(kernel.ranges.ShouldWatch(kId));
  CHECK_FALSE(kernel.ranges.ShouldWatch(kId + 1));
  CHECK(kernel.NarrowedTo(At(640)) == kPool);
  CHECK(kernel.Touch(At(0), 64) == Outcome::kNothing);
  CHECK(kernel.Touch(At(64), 64) == Outcome::kNothing);
  CHECK(kernel.NarrowedTo(At(640)) == kPool);
  CHECK(kernel.Touch(At(128), 64) == Outcome::kLearned);
  CHECK_FALSE(kernel.ranges.ShouldWatch(kId));
  CHECK(kernel.NarrowedTo(At(640)) == Extent{At(640), 64 * kMiB});
  CHECK(kernel.ranges.Narrow(kId + 1, 0, At(640), kPool) == kPool);
  CHECK(kernel.NarrowedTo(At(640), 1) == kPool);  // another word
  CHECK(kernel.NarrowedTo(kOther.base + 8 * kMiB, 0, kOther) == Extent{kOther.base + 8 * kMiB, 64 * kMiB});
  CHECK(kernel.ranges.stats().learned == 1);
}

TEST_CASE("a learned part ends where its block does") {
  WatchedKernel kernel;
  for (int i = 0; i < 3; ++i) kernel.Touch(At(64) + i * kMiB * 64, 64);
  CHECK(kernel.NarrowedTo(At(2040)) == Extent{At(2040), 8 * kMiB});
  constexpr Extent kSmall{uint64_t{1} << 42, 32 * kMiB};
  CHECK(kernel.NarrowedTo(kSmall.base, 0, kSmall) == kSmall);
}

TEST_CASE("a part that was resident is learned once it is not") {
  WatchedKernel kernel;
  for (int i = 0; i < 5; ++i) CHECK(kernel.Touch(At(0), 0) == Outcome::kNothing);  // all of it resident
  CHECK(kernel.Touch(At(64), 16, 48) == Outcome::kNothing);                        // a quarter was faulted in
  CHECK(kernel.Touch(At(128), 64) == Outcome::kNothing);
  CHECK(kernel.Touch(At(192), 64) == Outcome::kNothing);
  CHECK(kernel.Touch(At(256), 64) == Outcome::kLearned);
  CHECK(kernel.NarrowedTo(At(640)) == Extent{At(640), 64 * kMiB});
}

TEST_CASE("a part that ends before resident pages may continue into them") {
  WatchedKernel kernel;
  kernel.resident = {At(0), 1500 * kMiB};
  for (int i = 0; i < 8; ++i) kernel.Touch(At(0), 500, 1500);
  CHECK(kernel.NarrowedTo(At(0)) == kPool);  // all of it: the rest was resident

  WatchedKernel behind;
  behind.resident = {At(128), 64 * kMiB};
  for (int i = 0; i < 4; ++i) CHECK(behind.Touch(At(64), 64) == Outcome::kNothing);
  behind.resident = {};
  CHECK(behind.Touch(At(64), 64) == Outcome::kLearned);
}

TEST_CASE("a launch whose pages are always resident is not watched for ever") {
  WatchedKernel kernel;
  int watched = 0;
  for (; kernel.ranges.ShouldWatch(kId) && watched < 1000; ++watched) kernel.Touch(At(0), 0);
  CHECK(watched == 64);
  CHECK(kernel.NarrowedTo(At(0)) == kPool);
}

TEST_CASE("a launch that cannot fault is considered ever more rarely, until it can") {
  WatchedKernel kernel;
  const auto launches_until_watched = [&] {
    int launches = 0;
    for (; !kernel.ranges.ShouldWatch(kId); ++launches) kernel.ranges.NoteTooLarge(kId);
    return launches;
  };
  for (int times : {16, 32, 64, 128, 256, 512, 1024, 1024}) {
    kernel.ranges.NoteAllResident(kId);
    CHECK(launches_until_watched() == times);
  }
  // It faults, and is learned as usual.
  CHECK(kernel.Touch(At(64), 64) == Outcome::kNothing);
  kernel.ranges.NoteAllResident(kId);
  CHECK(launches_until_watched() == 16);
  CHECK(kernel.Touch(At(128), 64) == Outcome::kNothing);
  CHECK(kernel.Touch(At(192), 64) == Outcome::kLearned);
}

TEST_CASE("each of several pointers into a block has the pages up to the next one") {
  WatchedKernel kernel;
  // c = a + b, in an order that changes; a word that is no pointer, though it looks like one.
  const uint64_t places[][3] = {{0, 512, 1024}, {1088, 576, 64}, {640, 128, 1152}};
  Outcome found{};
  for (const auto& [a, b, c] : places) {
    std::vector<Va> pages;
    for (const auto& [at, mib] : {std::pair{a, 64}, {b, 32}, {c, 16}}) {
      const std::vector<Va> part = Pages(At(at), static_cast<uint64_t>(mib));
      pages.insert(pages.end(), part.begin(), part.end());
    }
    found = kernel.Watch({{0, At(a), kPool}, {1, At(b), kPool}, {2, At(c), kPool}, {3, At(1900), kPool}}, pages);
  }
  CHECK(found == Outcome::kLearned);
  CHECK(kernel.NarrowedTo(At(1300), 0) == Extent{At(1300), 64 * kMiB});
  CHECK(kernel.NarrowedTo(At(1300), 1) == Extent{At(1300), 32 * kMiB});
  CHECK(kernel.NarrowedTo(At(1300), 2) == Extent{At(1300), 16 * kMiB});
  CHECK(kernel.NarrowedTo(At(1300), 3) == Extent{At(1300), kChunkBytes});
}

TEST_CASE("pointers inside a chunk, and pages before a pointer") {
  WatchedKernel kernel;
  const uint64_t odd = uint64_t{700} << 10;
  for (uint64_t i = 0; i < 3; ++i) kernel.Touch(At(40 * i) + odd, 40);
  const Extent part = kernel.NarrowedTo(At(400) + odd);
  CHECK(part.base == At(400) + odd);
  CHECK(part.bytes >= 40 * kMiB);
  CHECK(part.bytes <= 42 * kMiB);

  WatchedKernel before;
  for (uint64_t i = 1; i < 4; ++i) {
    std::vector<Va> pages = Pages(At(100 * i) - 8 * kMiB, 16);
    before.Watch({{0, At(100 * i), kPool}}, pages);
  }
  CHECK(before.NarrowedTo(At(1000)) == Extent{At(992), 16 * kMiB});
  CHECK(before.NarrowedTo(At(4)) == Extent{At(0), 12 * kMiB});
}

TEST_CASE("a launch that touches random rows is given up, and not watched again") {
  WatchedKernel kernel;
  std::mt19937_64 random(11);
  int watched = 0;
  for (; kernel.ranges.ShouldWatch(kId) && watched < 100; ++watched) {
    std::vector<Va> pages;
    for (int row = 0; row < 16; ++row) pages.push_back(At(random() % 2048));
    kernel.Watch({{0, kPool.base, kPool}}, pages);
  }
  CHECK(watched == 1);
  CHECK(kernel.NarrowedTo(kPool.base) == kPool);
  CHECK(kernel.ranges.stats().given_up == 1);
  kernel.ranges.NoteTooLarge(kId);
  CHECK_FALSE(kernel.ranges.ShouldWatch(kId));
}

TEST_CASE("random rows close together are given up, too, but not a part that was mostly resident") {
  WatchedKernel kernel;
  std::mt19937_64 random(11);
  int watched = 0;
  for (; kernel.ranges.ShouldWatch(kId) && watched < 100; ++watched) {
    std::vector<Va> pages;
    for (int row = 0; row < 16; ++row) pages.push_back(At(random() % 512));
    kernel.Watch({{0, kPool.base, kPool}}, pages);
  }
  CHECK(watched == 3);
  CHECK(kernel.NarrowedTo(kPool.base) == kPool);

  WatchedKernel part;
  for (uint64_t i = 0; i < 3; ++i) part.Touch(At(64 * i), 16);
  CHECK(part.UntilSuspicious() > 0);
  CHECK(part.Touch(At(256), 14, 50) == Outcome::kNothing);
  CHECK(part.Touch(At(320), 64) == Outcome::kWidened);
  CHECK(part.NarrowedTo(At(640)) == Extent{At(640), 64 * kMiB});
}

TEST_CASE("a part that moves under a fixed pointer is given up") {
  WatchedKernel kernel;
  int watched = 0;
  for (; kernel.ranges.ShouldWatch(kId) && watched < 100; ++watched)
    kernel.Touch(kPool.base, 64, uint64_t{64} * (watched % 32));
  CHECK(watched == 8);
  CHECK(kernel.NarrowedTo(kPool.base) == kPool);
}

TEST_CASE("one pointer without a regular part leaves the others whole, too") {
  WatchedKernel kernel;
  std::mt19937_64 random(5);
  for (uint64_t i = 0; i < 3; ++i) {
    std::vector<Va> pages = Pages(At(64 * i), 64);
    for (int row = 0; row < 16; ++row) pages.push_back(kOther.base + random() % 2048 * kMiB);
    kernel.Watch({{0, At(64 * i), kPool}, {1, kOther.base, kOther}}, pages);
  }
  CHECK(kernel.NarrowedTo(At(640)) == kPool);
  CHECK(kernel.NarrowedTo(kOther.base, 1, kOther) == kOther);
}

TEST_CASE("launches that could not be watched count as failures") {
  WatchedKernel kernel;
  int missed = 0;
  for (; kernel.ranges.ShouldWatch(kId) && missed < 100; ++missed) kernel.ranges.NoteUnwatched(kId);
  CHECK(missed == 4);
  CHECK(kernel.ranges.stats().given_up == 1);
}

TEST_CASE("a learned part is checked again when there are faults, ever more rarely where other work causes them") {
  WatchedKernel kernel;
  for (uint64_t i = 0; i < 3; ++i) kernel.Touch(At(64 * i), 64);
  kernel.faults += 5000;
  CHECK(kernel.UntilWanted(16) == 0);  // of launches in flight
  kernel.faults += 1023;
  CHECK(kernel.UntilWanted(1000) == 0);  // hardly any faults
  kernel.faults += 1;
  CHECK(kernel.UntilWanted(1000) > 0);
  int before = 0;
  for (int i = 0; i < 6; ++i) {
    for (int n = 0; n < 4; ++n) {
      CHECK(kernel.ranges.ShouldWatch(kId));
      CHECK(kernel.NarrowedTo(At(640)) == Extent{At(640), 64 * kMiB});
      CHECK(kernel.Touch(At(640), i % 2 ? 64 : 0) == Outcome::kNothing);
    }
    CHECK_FALSE(kernel.ranges.ShouldWatch(kId));
    const int after = kernel.UntilSuspicious();  // other work's faults
    CHECK(after > before);
    before = after;
  }
  // No launch can be watched now: the learned part is kept.
  for (int i = 0; i < 4; ++i) kernel.ranges.NoteUnwatched(kId);
  CHECK_FALSE(kernel.ranges.ShouldWatch(kId));
  CHECK(kernel.NarrowedTo(At(640)) == Extent{At(640), 64 * kMiB});
}

TEST_CASE("a launch that uses more widens its part, and is given up if it goes on") {
  WatchedKernel kernel;
  for (uint64_t i = 0; i < 3; ++i) kernel.Touch(At(64 * i), 64);
  CHECK(kernel.UntilSuspicious() > 0);
  CHECK(kernel.Touch(At(256), 0) == Outcome::kNothing);  // it is resident, and is evicted behind this launch
  CHECK(kernel.Touch(At(256), 64, 64) == Outcome::kWidened);
  for (int n = 0; n < 4; ++n) {
    CHECK(kernel.ranges.ShouldWatch(kId));
    CHECK(kernel.Touch(At(256), 128) == Outcome::kNothing);
  }
  CHECK_FALSE(kernel.ranges.ShouldWatch(kId));
  CHECK(kernel.NarrowedTo(At(640)) == Extent{At(640), 128 * kMiB});
  CHECK(kernel.ranges.stats().wrong == 1);
  CHECK(kernel.UntilSuspicious() > 0);
  for (uint64_t more = 128; more < 320; more += 64) kernel.Touch(At(256), 64, more);
  const bool given_up = kernel.NarrowedTo(At(640)) == kPool;
  CHECK_FALSE(given_up);  // the first time is long ago
  CHECK(kernel.Touch(At(256), 64, 320) == Outcome::kGivenUp);
  CHECK(kernel.NarrowedTo(At(640)) == kPool);
  CHECK(kernel.ranges.stats().given_up == 1);
  CHECK(kernel.ranges.stats().learned == 0);
}

TEST_CASE("a part that moves elsewhere is given up at once") {
  WatchedKernel kernel;
  for (uint64_t i = 0; i < 3; ++i) kernel.Touch(At(64 * i), 64);
  CHECK(kernel.UntilSuspicious() > 0);
  CHECK(kernel.Touch(At(0), 2, 1900) == Outcome::kGivenUp);
  CHECK(kernel.NarrowedTo(At(640)) == kPool);
}

TEST_CASE("where no launch can be watched all is named whole") {
  WatchedKernel kernel;
  for (uint64_t i = 0; i < 3; ++i) kernel.Touch(At(64 * i), 64);
  kernel.ranges.Stop();
  CHECK(kernel.ranges.empty());
  CHECK(kernel.NarrowedTo(At(640)) == kPool);
  for (uint64_t id = 1; id < 10'000; ++id) kernel.ranges.NoteTooLarge(id << 8);
  CHECK(kernel.ranges.ShouldWatch(9'999 << 8));
}

}  // namespace sluice::policy
