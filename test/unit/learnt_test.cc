#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <random>

#include "hooklib/policy/predict/pointer_ranges.h"

namespace sluice::policy {

namespace {

using Found = PointerRanges::Outcome;

constexpr uint64_t kMiB = uint64_t{1} << 20, kPage = 4096, kId = 7;
constexpr Extent kPool{uint64_t{1} << 40, 2048 * kMiB};
constexpr Extent kOther{uint64_t{1} << 41, 2048 * kMiB};

Va At(uint64_t mib) { return kPool.base + mib * kMiB; }

// One page of each chunk: beside it the driver brings the others.
std::vector<Va> Pages(Va base, uint64_t mib) {
  std::vector<Va> pages;
  for (Va va = base; va < base + mib * kMiB; va = RoundDown(va, kChunkBytes) + kChunkBytes) pages.push_back(va);
  return pages;
}

struct Kind {
  PointerRanges learnt;
  uint64_t faults = 0;
  Extent there;  // on the card before

  Kind() { learnt.NoteTooLarge(kId); }
  // A launch with one pointer, watched, that touched so much from there.
  Found Touch(Va pointer, uint64_t mib, uint64_t from_mib = 0) {
    const std::vector<Va> pages = Pages(pointer + from_mib * kMiB, mib);
    return Watch({{0, pointer, kPool}}, pages);
  }
  Found Watch(const std::vector<UnboundedPointer>& words, std::vector<Va> pages) {
    std::sort(pages.begin(), pages.end());
    faults += pages.size();
    return learnt.Observe(kId, words, pages, [this](Va page) { return page - there.base < there.bytes; });
  }
  Extent Means(Va pointer, size_t place = 0, Extent block = kPool) const {
    return learnt.Narrow(kId, place, pointer, block);
  }
  // Launches that name less, until one is to be watched; 0: none of so many.
  int UntilWanted(int most) {
    for (int n = 1; n <= most; ++n) {
      if (learnt.NoteNarrowed(kId, faults)) return n;
    }
    return 0;
  }
  // The same, from when what was under way is over; with so many faults.
  int UntilSuspicious() {
    UntilWanted(1 << 12);
    faults += 1024;
    return UntilWanted(1 << 12);
  }
};

}  // namespace

TEST_CASE("what three launches faulted on, each beside its pointer, is what the next name") {
  Kind kind;
  CHECK(kind.learnt.ShouldWatch(kId));
  CHECK_FALSE(kind.learnt.ShouldWatch(kId + 1));
  CHECK(kind.Means(At(640)) == kPool);
  CHECK(kind.Touch(At(0), 64) == Found::kNothing);
  CHECK(kind.Touch(At(64), 64) == Found::kNothing);
  CHECK(kind.Means(At(640)) == kPool);
  CHECK(kind.Touch(At(128), 64) == Found::kLearned);
  CHECK_FALSE(kind.learnt.ShouldWatch(kId));
  CHECK(kind.Means(At(640)) == Extent{At(640), 64 * kMiB});
  CHECK(kind.learnt.Narrow(kId + 1, 0, At(640), kPool) == kPool);
  CHECK(kind.Means(At(640), 1) == kPool);  // another word
  CHECK(kind.Means(kOther.base + 8 * kMiB, 0, kOther) == Extent{kOther.base + 8 * kMiB, 64 * kMiB});
  CHECK(kind.learnt.stats().learned == 1);
}

TEST_CASE("a part ends where its block does") {
  Kind kind;
  for (int i = 0; i < 3; ++i) kind.Touch(At(64) + i * kMiB * 64, 64);
  CHECK(kind.Means(At(2040)) == Extent{At(2040), 8 * kMiB});
  constexpr Extent kSmall{uint64_t{1} << 42, 32 * kMiB};
  CHECK(kind.Means(kSmall.base, 0, kSmall) == kSmall);
}

TEST_CASE("what was there already is learnt when it is not") {
  Kind kind;
  for (int i = 0; i < 5; ++i) CHECK(kind.Touch(At(0), 0) == Found::kNothing);  // all of it on the card
  CHECK(kind.Touch(At(64), 16, 48) == Found::kNothing);                        // a quarter came
  CHECK(kind.Touch(At(128), 64) == Found::kNothing);
  CHECK(kind.Touch(At(192), 64) == Found::kNothing);
  CHECK(kind.Touch(At(256), 64) == Found::kLearned);
  CHECK(kind.Means(At(640)) == Extent{At(640), 64 * kMiB});
}

TEST_CASE("what ends where others were on the card already may go on there") {
  Kind kind;
  kind.there = {At(0), 1500 * kMiB};
  for (int i = 0; i < 8; ++i) kind.Touch(At(0), 500, 1500);
  CHECK(kind.Means(At(0)) == kPool);  // all of it, the rest of which was there

  Kind behind;
  behind.there = {At(128), 64 * kMiB};
  for (int i = 0; i < 4; ++i) CHECK(behind.Touch(At(64), 64) == Found::kNothing);
  behind.there = {};
  CHECK(behind.Touch(At(64), 64) == Found::kLearned);
}

TEST_CASE("a launch whose pages are always there is not watched for ever") {
  Kind kind;
  int watched = 0;
  for (; kind.learnt.ShouldWatch(kId) && watched < 1000; ++watched) kind.Touch(At(0), 0);
  CHECK(watched == 64);
  CHECK(kind.Means(At(0)) == kPool);
}

TEST_CASE("a launch that can fault on nothing is asked about ever more rarely, until it can") {
  Kind kind;
  const auto launches_until_asked = [&] {
    int launches = 0;
    for (; !kind.learnt.ShouldWatch(kId); ++launches) kind.learnt.NoteTooLarge(kId);
    return launches;
  };
  for (int times : {16, 32, 64, 128, 256, 512, 1024, 1024}) {
    kind.learnt.NoteAllResident(kId);
    CHECK(launches_until_asked() == times);
  }
  // It faults, and is learnt as if nothing had been.
  CHECK(kind.Touch(At(64), 64) == Found::kNothing);
  kind.learnt.NoteAllResident(kId);
  CHECK(launches_until_asked() == 16);
  CHECK(kind.Touch(At(128), 64) == Found::kNothing);
  CHECK(kind.Touch(At(192), 64) == Found::kLearned);
}

TEST_CASE("each of several pointers into a block has the pages up to the next one") {
  Kind kind;
  // c = a + b, in an order that changes; a word that is no pointer, though it looks like one.
  const uint64_t places[][3] = {{0, 512, 1024}, {1088, 576, 64}, {640, 128, 1152}};
  Found found{};
  for (const auto& [a, b, c] : places) {
    std::vector<Va> pages;
    for (const auto& [at, mib] : {std::pair{a, 64}, {b, 32}, {c, 16}}) {
      const std::vector<Va> part = Pages(At(at), static_cast<uint64_t>(mib));
      pages.insert(pages.end(), part.begin(), part.end());
    }
    found = kind.Watch({{0, At(a), kPool}, {1, At(b), kPool}, {2, At(c), kPool}, {3, At(1900), kPool}}, pages);
  }
  CHECK(found == Found::kLearned);
  CHECK(kind.Means(At(1300), 0) == Extent{At(1300), 64 * kMiB});
  CHECK(kind.Means(At(1300), 1) == Extent{At(1300), 32 * kMiB});
  CHECK(kind.Means(At(1300), 2) == Extent{At(1300), 16 * kMiB});
  CHECK(kind.Means(At(1300), 3) == Extent{At(1300), kChunkBytes});
}

TEST_CASE("pointers that are no chunk's begin, and pages before a pointer") {
  Kind kind;
  const uint64_t odd = 700 * 1024;
  for (uint64_t i = 0; i < 3; ++i) kind.Touch(At(40 * i) + odd, 40);
  const Extent part = kind.Means(At(400) + odd);
  CHECK(part.base == At(400) + odd);
  CHECK(part.bytes >= 40 * kMiB);
  CHECK(part.bytes <= 42 * kMiB);

  Kind before;
  for (uint64_t i = 1; i < 4; ++i) {
    std::vector<Va> pages = Pages(At(100 * i) - 8 * kMiB, 16);
    before.Watch({{0, At(100 * i), kPool}}, pages);
  }
  CHECK(before.Means(At(1000)) == Extent{At(992), 16 * kMiB});
  CHECK(before.Means(At(4)) == Extent{At(0), 12 * kMiB});
}

TEST_CASE("rows in no order are given up, and not watched again") {
  Kind kind;
  std::mt19937_64 random(11);
  int watched = 0;
  for (; kind.learnt.ShouldWatch(kId) && watched < 100; ++watched) {
    std::vector<Va> pages;
    for (int row = 0; row < 16; ++row) pages.push_back(At(random() % 2048));
    kind.Watch({{0, kPool.base, kPool}}, pages);
  }
  CHECK(watched == 1);
  CHECK(kind.Means(kPool.base) == kPool);
  CHECK(kind.learnt.stats().given_up == 1);
  kind.learnt.NoteTooLarge(kId);
  CHECK_FALSE(kind.learnt.ShouldWatch(kId));
}

TEST_CASE("rows in no order beside each other, too; a part of which most was there is not") {
  Kind kind;
  std::mt19937_64 random(11);
  int watched = 0;
  for (; kind.learnt.ShouldWatch(kId) && watched < 100; ++watched) {
    std::vector<Va> pages;
    for (int row = 0; row < 16; ++row) pages.push_back(At(random() % 512));
    kind.Watch({{0, kPool.base, kPool}}, pages);
  }
  CHECK(watched == 3);
  CHECK(kind.Means(kPool.base) == kPool);

  Kind part;
  for (uint64_t i = 0; i < 3; ++i) part.Touch(At(64 * i), 16);
  CHECK(part.UntilSuspicious() > 0);
  CHECK(part.Touch(At(256), 14, 50) == Found::kNothing);
  CHECK(part.Touch(At(320), 64) == Found::kWidened);
  CHECK(part.Means(At(640)) == Extent{At(640), 64 * kMiB});
}

TEST_CASE("a part that moves under a fixed pointer is given up") {
  Kind kind;
  int watched = 0;
  for (; kind.learnt.ShouldWatch(kId) && watched < 100; ++watched) kind.Touch(kPool.base, 64, 64 * (watched % 32));
  CHECK(watched == 8);
  CHECK(kind.Means(kPool.base) == kPool);
}

TEST_CASE("one pointer of which nothing can be told leaves the others whole, too") {
  Kind kind;
  std::mt19937_64 random(5);
  for (uint64_t i = 0; i < 3; ++i) {
    std::vector<Va> pages = Pages(At(64 * i), 64);
    for (int row = 0; row < 16; ++row) pages.push_back(kOther.base + random() % 2048 * kMiB);
    kind.Watch({{0, At(64 * i), kPool}, {1, kOther.base, kOther}}, pages);
  }
  CHECK(kind.Means(At(640)) == kPool);
  CHECK(kind.Means(kOther.base, 1, kOther) == kOther);
}

TEST_CASE("launches that could not be watched count against their kind") {
  Kind kind;
  int missed = 0;
  for (; kind.learnt.ShouldWatch(kId) && missed < 100; ++missed) kind.learnt.NoteUnwatched(kId);
  CHECK(missed == 4);
  CHECK(kind.learnt.stats().given_up == 1);
}

TEST_CASE("what is believed is looked at again when there are faults, ever more rarely where they are others'") {
  Kind kind;
  for (uint64_t i = 0; i < 3; ++i) kind.Touch(At(64 * i), 64);
  kind.faults += 5000;
  CHECK(kind.UntilWanted(16) == 0);  // of what was under way
  kind.faults += 1023;
  CHECK(kind.UntilWanted(1000) == 0);  // hardly any faults
  kind.faults += 1;
  CHECK(kind.UntilWanted(1000) > 0);
  int before = 0;
  for (int i = 0; i < 6; ++i) {
    for (int n = 0; n < 4; ++n) {
      CHECK(kind.learnt.ShouldWatch(kId));
      CHECK(kind.Means(At(640)) == Extent{At(640), 64 * kMiB});
      CHECK(kind.Touch(At(640), i % 2 ? 64 : 0) == Found::kNothing);
    }
    CHECK_FALSE(kind.learnt.ShouldWatch(kId));
    const int after = kind.UntilSuspicious();  // somebody else's
    CHECK(after > before);
    before = after;
  }
  // Nobody can watch now: belief stands.
  for (int i = 0; i < 4; ++i) kind.learnt.NoteUnwatched(kId);
  CHECK_FALSE(kind.learnt.ShouldWatch(kId));
  CHECK(kind.Means(At(640)) == Extent{At(640), 64 * kMiB});
}

TEST_CASE("a kind that comes to use more names more, and one that goes on so is given up") {
  Kind kind;
  for (uint64_t i = 0; i < 3; ++i) kind.Touch(At(64 * i), 64);
  CHECK(kind.UntilSuspicious() > 0);
  CHECK(kind.Touch(At(256), 0) == Found::kNothing);  // it is on the card, and leaves behind this launch
  CHECK(kind.Touch(At(256), 64, 64) == Found::kWidened);
  for (int n = 0; n < 4; ++n) {
    CHECK(kind.learnt.ShouldWatch(kId));
    CHECK(kind.Touch(At(256), 128) == Found::kNothing);
  }
  CHECK_FALSE(kind.learnt.ShouldWatch(kId));
  CHECK(kind.Means(At(640)) == Extent{At(640), 128 * kMiB});
  CHECK(kind.learnt.stats().wrong == 1);
  CHECK(kind.UntilSuspicious() > 0);
  for (uint64_t more = 128; more < 320; more += 64) kind.Touch(At(256), 64, more);
  const bool given_up = kind.Means(At(640)) == kPool;
  CHECK_FALSE(given_up);  // the first time is long ago
  CHECK(kind.Touch(At(256), 64, 320) == Found::kGivenUp);
  CHECK(kind.Means(At(640)) == kPool);
  CHECK(kind.learnt.stats().given_up == 1);
  CHECK(kind.learnt.stats().learned == 0);
}

TEST_CASE("what comes to lie anywhere is given up at once") {
  Kind kind;
  for (uint64_t i = 0; i < 3; ++i) kind.Touch(At(64 * i), 64);
  CHECK(kind.UntilSuspicious() > 0);
  CHECK(kind.Touch(At(0), 2, 1900) == Found::kGivenUp);
  CHECK(kind.Means(At(640)) == kPool);
}

TEST_CASE("without anybody who can watch all is named whole") {
  Kind kind;
  for (uint64_t i = 0; i < 3; ++i) kind.Touch(At(64 * i), 64);
  kind.learnt.Stop();
  CHECK(kind.learnt.empty());
  CHECK(kind.Means(At(640)) == kPool);
  for (uint64_t id = 1; id < 10'000; ++id) kind.learnt.NoteTooLarge(id << 8);
  CHECK(kind.learnt.ShouldWatch(9'999 << 8));
}

}  // namespace sluice::policy
