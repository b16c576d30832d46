#include "hooklib/memory/live_map.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <map>
#include <optional>
#include <random>
#include <vector>

namespace sluice::memory {

namespace {
Allocation Of(uint64_t bytes) {
  Allocation allocation;
  allocation.bytes = bytes;
  return allocation;
}
}  // namespace

TEST_CASE("a pointer means its whole allocation until a framework reports the live ranges inside") {
  LiveMap map;
  map.Add(0x1000, Of(0x1000));
  CHECK(map.Resolve(0x1000) == Extent{0x1000, 0x1000});
  CHECK(map.Resolve(0x1fff) == Extent{0x1000, 0x1000});
  CHECK_FALSE(map.Resolve(0x2000));
  CHECK_FALSE(map.Resolve(0xfff));

  REQUIRE(map.Report({0x1200, 0x100}));
  CHECK(map.Resolve(0x1250) == Extent{0x1200, 0x100});
  CHECK_FALSE(map.Resolve(0x1300));  // free space
  CHECK_FALSE(map.Resolve(0x1000));
  CHECK(map.Unreport(0x1200) == Extent{0x1200, 0x100});
  CHECK_FALSE(map.Resolve(0x1250));
}

TEST_CASE("Resolve knows whether its answer is a reported range") {
  LiveMap map;
  map.Add(0x1000, Of(0x1000));
  bool is_reported = true;
  for (int i = 0; i < 2; ++i) {  // found, then cached
    CHECK(map.Resolve(0x1250, &is_reported));
    CHECK_FALSE(is_reported);
  }
  REQUIRE(map.Report({0x1200, 0x100}));
  for (int i = 0; i < 2; ++i) {
    CHECK(map.Resolve(0x1250, &is_reported));
    CHECK(is_reported);
  }
  // A graph may go on using it.
  map.Find(0x1000, nullptr)->captured = true;
  CHECK(map.Resolve(0x1400, &is_reported) == Extent{0x1000, 0x1000});
  CHECK_FALSE(is_reported);
}

TEST_CASE("a part is limited to the live range around its pointer") {
  LiveMap map;
  map.Add(0x1000, Of(0x1000));
  REQUIRE(map.Report({0x1200, 0x200}));
  CHECK(map.Resolve(0x1250, 0x1000, 0x1300) == Extent{0x1200, 0x100});
  CHECK(map.Resolve(0x1250, 0x1300, kNever) == Extent{0x1300, 0x100});
  CHECK(map.Resolve(0x1250, 0, kNever) == Extent{0x1200, 0x200});
  CHECK_FALSE(map.Resolve(0x1250, 0x1400, 0x1500));  // beside it
  CHECK_FALSE(map.Resolve(0x1250, 0x1300, 0x1300));
  CHECK_FALSE(map.Resolve(0x1450, 0x1200, 0x1300));  // the pointer is in free space
}

TEST_CASE("a captured range is never taken for free space") {
  LiveMap map;
  map.Add(0x1000, Of(0x1000))->captured = true;
  REQUIRE(map.Report({0x1200, 0x100}));
  CHECK(map.Resolve(0x1250) == Extent{0x1200, 0x100});
  map.Unreport(0x1200);
  CHECK(map.Resolve(0x1250) == Extent{0x1000, 0x1000});
}

TEST_CASE("a report outside every allocation, or across an end, is refused") {
  LiveMap map;
  map.Add(0x1000, Of(0x1000));
  CHECK_FALSE(map.Report({0x3000, 0x10}));
  CHECK_FALSE(map.Report({0x1f00, 0x200}));
}

TEST_CASE("removing an allocation removes its reports with it") {
  LiveMap map;
  map.Add(0x1000, Of(0x1000));
  map.Report({0x1200, 0x100});
  CHECK(map.Remove(0x1000));
  CHECK(map.reports().empty());
  CHECK_FALSE(map.Remove(0x1000));
}

// A cached answer is valid only until something changes there.
TEST_CASE("an address is resolved by the ranges that are live now") {
  constexpr Va kBegin = uint64_t{1} << 40;
  constexpr uint64_t kUnit = kChunkBytes / 4, kUnits = 2048;  // 1 GiB
  std::minstd_rand random(7);
  const auto below = [&random](uint64_t n) { return random() % n; };
  LiveMap map;
  struct Block {
    uint64_t units = 0;
    bool reported = false, captured = false;
    std::map<uint64_t, uint64_t> reports;  // unit, units
  };
  std::map<uint64_t, Block> blocks;
  const auto expected = [&](uint64_t unit) -> std::optional<Extent> {
    const auto of = [](uint64_t at, uint64_t units) { return Extent{kBegin + at * kUnit, units * kUnit}; };
    for (const auto& [base, block] : blocks) {
      if (unit < base || unit >= base + block.units) continue;
      for (const auto& [at, units] : block.reports) {
        if (unit >= at && unit < at + units) return of(at, units);
      }
      if (block.reported && !block.captured) return std::nullopt;
      return of(base, block.units);
    }
    return std::nullopt;
  };
  const auto free_at = [&](uint64_t base, uint64_t units) {
    return std::none_of(blocks.begin(), blocks.end(), [&](const auto& entry) {
      return entry.first < base + units && base < entry.first + entry.second.units;
    });
  };
  for (int step = 0; step < 20000; ++step) {
    const uint64_t unit = below(kUnits);
    auto it = blocks.upper_bound(unit);
    const bool inside = it != blocks.begin() && unit < std::prev(it)->first + std::prev(it)->second.units;
    if (!inside) {
      const uint64_t units = std::min(1 + below(below(8) ? 16 : 600), kUnits - unit);
      if (!free_at(unit, units)) continue;
      blocks[unit].units = units;
      Allocation allocation;
      allocation.bytes = units * kUnit;
      map.Add(kBegin + unit * kUnit, allocation);
    } else {
      auto& [base, block] = *std::prev(it);
      const uint64_t what = below(10), units = 1 + below(base + block.units - unit);
      const auto report = block.reports.upper_bound(unit);
      const bool taken =
          (report != block.reports.end() && report->first < unit + units) ||
          (report != block.reports.begin() && std::prev(report)->first + std::prev(report)->second > unit);
      if (what == 0) {
        map.Remove(kBegin + base * kUnit);
        blocks.erase(std::prev(it));
      } else if (what == 1) {
        block.captured = true;
        map.Find(kBegin + unit * kUnit, nullptr)->captured = true;
      } else if (taken && block.reports.contains(unit)) {
        map.Unreport(kBegin + unit * kUnit);
        block.reports.erase(unit);
      } else if (!taken) {
        REQUIRE(map.Report({kBegin + unit * kUnit, units * kUnit}));
        block.reports[unit] = units;
        block.reported = true;
      }
    }
    for (int i = 0; i < 8; ++i) {
      const uint64_t queried = i ? below(kUnits) : unit;
      REQUIRE(map.Resolve(kBegin + queried * kUnit) == expected(queried));
      const Extent* const where = map.Lookup(kBegin + queried * kUnit);
      REQUIRE((where ? std::optional(*where) : std::nullopt) == expected(queried));
    }
  }
}

TEST_CASE("mappings side by side are one allocation, in one reservation") {
  constexpr uint64_t kBase = uint64_t{1} << 40, kPart = 2 * kChunkBytes;
  const Extent reservation{kBase, 8 * kPart};
  const auto part = [](uint64_t i) { return Extent{kBase + i * kPart, kPart}; };
  LiveMap map;
  Allocation made;
  made.id = 1;
  map.Map(part(0), reservation, made);
  map.Map(part(2), reservation, made);
  CHECK(map.Resolve(kBase + 5) == part(0));
  map.Map(part(1), reservation, made);
  CHECK(map.Resolve(kBase + 5) == Extent{kBase, 3 * kPart});
  CHECK(map.size() == 1);
  // The next reservation begins where this one ends.
  map.Map(part(7), reservation, made);
  map.Map(part(8), {kBase + 8 * kPart, kPart}, made);
  CHECK(map.Resolve(part(7).base) == part(7));
  // A block that reaches over two mappings.
  CHECK(map.Report({part(0).base + 100, kPart}));
  CHECK(map.Resolve(part(1).base + 5) == Extent{part(0).base + 100, kPart});
  CHECK(map.ReportsIn(part(1)) == std::vector<Extent>{{part(1).base, 100}});
  map.Unmap(part(1));
  CHECK(map.MappingAt(part(1).base) == map.mappings().end());
  CHECK_FALSE(map.Resolve(part(1).base + 5));
  CHECK(map.Find(part(2).base, nullptr)->bytes == kPart);
  // Its report is there again with the next mapping.
  map.Map(part(1), reservation, made);
  CHECK(map.Resolve(part(1).base + 5) == Extent{part(0).base + 100, kPart});
  map.ForgetReports(reservation);
  CHECK(map.ReportsIn(part(1)).empty());
}

}  // namespace sluice::memory
