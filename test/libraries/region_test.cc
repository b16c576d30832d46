#include "hooklib/libraries/extents/region.h"

#include <set>

#include "test/libraries/oracle.h"

namespace sluice::libraries {
namespace {

using test::Bytes;
using test::Random;

TEST_CASE("a contiguous matrix is one range, a padded one has a range for each column") {
  std::vector<Range> out;
  REQUIRE(AppendRanges(Region::Bytes(1000, 40).AddDimension(8, 40), 0, SIZE_MAX, &out));
  CHECK(out == std::vector<Range>{{1000, 320, true}});
  out.clear();
  REQUIRE(AppendRanges(Region::Bytes(1000, 40).AddDimension(3, 64), 0, SIZE_MAX, &out));
  CHECK(out == std::vector<Range>{{1000, 40, true}, {1064, 40, true}, {1128, 40, true}});
  out.clear();
  REQUIRE(AppendRanges(Region::Bytes(1000, 40).AddDimension(3, 64), 25, SIZE_MAX, &out));
  CHECK(out == std::vector<Range>{{1000, 168, false}});
}

TEST_CASE("a limit on the number of ranges bridges the smallest gaps") {
  std::vector<Range> out;
  REQUIRE(AppendRanges(Region::Bytes(0x1000, 8).AddDimension(1000, 16).AddDimension(4, 1 << 20), 0, 16, &out));
  CHECK(out.size() == 4);
  CHECK(out[1] == Range{0x1000 + (1 << 20), 999 * 16 + 8, false});
}

TEST_CASE("regions whose sizes overflow are refused, and empty ones have no range") {
  std::vector<Range> out;
  CHECK_FALSE(AppendRanges(Region::Bytes(1 << 20, 8).AddDimension(uint64_t{1} << 40, int64_t{1} << 40), 0, 64, &out));
  CHECK_FALSE(AppendRanges(Region::Bytes(1 << 20, 8).AddDimension(3, -(int64_t{1} << 40)), 0, 64, &out));
  CHECK_FALSE(AppendRanges(Region::Bytes(uint64_t{1} << 63, 8), 0, 64, &out));
  CHECK(out.empty());
  CHECK(AppendRanges(Region::Bytes(1 << 20, 8).AddDimension(0, 5), 0, 64, &out));
  CHECK(AppendRanges(Region::Bytes(1 << 20, 0).AddDimension(9, 5), 0, 64, &out));
  CHECK(out.empty());
}

TEST_CASE("the ranges of random boxes and trapezoids hold exactly their bytes: 150,000 regions") {
  Random r(21);
  Bytes truth, seen, whole;
  std::vector<Range> out;
  for (int round = 0; round < 150000; ++round) {
    truth.Clear(), seen.Clear(), whole.Clear();
    Region region = Region::Bytes(Bytes::kBase + 32768, static_cast<uint64_t>(r.In(0, 6)));
    if (r.OneIn(3)) region.run_step = r.In(-3, 3);
    const int64_t rank = r.In(0, 4);
    for (int64_t d = 0; d < rank; ++d) region.AddDimension(static_cast<uint64_t>(r.In(0, 4)), r.In(-30, 200));
    if (!region.empty()) {
      std::array<uint64_t, Region::kMaxRank> at{};
      for (;;) {
        int64_t offset = 0;
        for (int d = 0; d < region.rank; ++d) offset += static_cast<int64_t>(at[d]) * region.dims[d].stride;
        const int64_t run =
            static_cast<int64_t>(region.run) + (region.rank ? region.run_step * static_cast<int64_t>(at[0]) : 0);
        if (run > 0) truth.Set(region.base + static_cast<uint64_t>(offset), static_cast<uint64_t>(run));
        int d = 0;
        while (d < region.rank && ++at[d] == region.dims[d].count) at[d++] = 0;
        if (d == region.rank) break;
      }
    }
    const bool exact = r.OneIn(2);
    out.clear();
    REQUIRE(AppendRanges(region, exact ? 0 : static_cast<uint64_t>(r.In(0, 300)),
                         exact ? SIZE_MAX : static_cast<size_t>(r.In(1, 6)), &out));
    uint64_t last = 0;
    for (const Range& range : out) {
      if (range.base < last) FAIL("not sorted and disjoint");
      last = range.end();
      if (!seen.Set(range.base, range.bytes)) FAIL("outside");
      if (range.whole) whole.Set(range.base, range.bytes);
    }
    for (uint64_t i = 0; i < Bytes::kSpace / 64; ++i) {
      if (truth.word(i) & ~seen.word(i)) FAIL("a byte is missing");
      if (exact && (seen.word(i) & ~truth.word(i))) FAIL("a byte too many");
      if (whole.word(i) & ~truth.word(i)) FAIL("a range with a gap is marked whole");
    }
  }
}

}  // namespace
}  // namespace sluice::libraries
