#include "hooklib/core/live_map.h"

#include <catch2/catch_test_macros.hpp>

namespace sluice::core {

namespace {
Allocation Of(uint64_t bytes) {
  Allocation allocation;
  allocation.bytes = bytes;
  return allocation;
}
}  // namespace

TEST_CASE("a pointer means its whole allocation until a framework reports what is alive inside") {
  LiveMap map;
  map.Add(0x1000, Of(0x1000));
  CHECK(map.Resolve(0x1000) == Extent{0x1000, 0x1000});
  CHECK(map.Resolve(0x1fff) == Extent{0x1000, 0x1000});
  CHECK_FALSE(map.Resolve(0x2000));
  CHECK_FALSE(map.Resolve(0xfff));

  REQUIRE(map.Report({0x1200, 0x100}));
  CHECK(map.Resolve(0x1250) == Extent{0x1200, 0x100});
  CHECK_FALSE(map.Resolve(0x1300));  // dead space
  CHECK_FALSE(map.Resolve(0x1000));
  CHECK(map.Unreport(0x1200) == Extent{0x1200, 0x100});
  CHECK_FALSE(map.Resolve(0x1250));
}

TEST_CASE("a part is held to what is alive around its pointer") {
  LiveMap map;
  map.Add(0x1000, Of(0x1000));
  REQUIRE(map.Report({0x1200, 0x200}));
  CHECK(map.Resolve(0x1250, 0x1000, 0x1300) == Extent{0x1200, 0x100});
  CHECK(map.Resolve(0x1250, 0x1300, kNever) == Extent{0x1300, 0x100});
  CHECK(map.Resolve(0x1250, 0, kNever) == Extent{0x1200, 0x200});
  CHECK_FALSE(map.Resolve(0x1250, 0x1400, 0x1500));  // beside it
  CHECK_FALSE(map.Resolve(0x1250, 0x1300, 0x1300));
  CHECK_FALSE(map.Resolve(0x1450, 0x1200, 0x1300));  // the pointer is dead
}

TEST_CASE("what a graph captured is never taken for dead space") {
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

}  // namespace sluice::core
