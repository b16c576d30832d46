#include "deviceplugin/decide/unit_choice.h"

#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <random>
#include <set>

#include "deviceplugin/decide/device_id.h"
#include "test/deviceplugin/cards_for_tests.h"

namespace sluice::deviceplugin {
namespace {

// uuid -> number of its ids in the list
std::map<std::string, int> PerCard(const std::vector<std::string>& ids) {
  std::map<std::string, int> out;
  for (const auto& id : ids) ++out[ParseDeviceId(id)->uuid];
  return out;
}

using Count = std::map<std::string, int>;

TEST_CASE("device ids have exactly one form") {
  CHECK(FormatDeviceId("GPU-a", 7) == "GPU-a::7");
  CHECK(ParseDeviceId("GPU-a::99")->unit == 99);
  for (const char* bad : {"", "GPU-a", "GPU-a::", "GPU-a::07", "GPU-a::100", "GPU-a::-1", "::1", "GPU a::1",
                          "GPU-a::1 ", "GPU-a::1::2::"}) {
    INFO(bad);
    CHECK_FALSE(ParseDeviceId(bad).ok());
  }
  CHECK_FALSE(ParseDeviceId(std::string(60, 'x') + "::1").ok());
  CHECK(FormatDeviceId(std::string(59, 'x'), 99).size() == 63);
  CHECK(IsCardUuid(std::string(59, 'x')));
}

TEST_CASE("a share goes to the card with the least left afterwards") {
  const auto available = Join({Ids("GPU-a", 0, 100), Ids("GPU-b", 0, 60), Ids("GPU-c", 0, 40)});
  const UnitChoice choice = ChooseUnits({available, {}, 50}, {});
  CHECK(choice.fits);
  CHECK(PerCard(choice.ids) == Count{{"GPU-b", 50}});
}

TEST_CASE("among equal cards the NUMA node with fewer untouched cards is taken") {
  const auto available = Join({Ids("GPU-a", 0, 60), Ids("GPU-b", 0, 100), Ids("GPU-c", 0, 60)});
  const UnitChoice choice = ChooseUnits({available, {}, 50}, {{"GPU-a", {0}}, {"GPU-b", {0}}, {"GPU-c", {1}}});
  CHECK(PerCard(choice.ids) == Count{{"GPU-c", 50}});
}

TEST_CASE("units that the container already has decide the card") {
  const auto available = Join({Ids("GPU-a", 0, 100), Ids("GPU-b", 0, 60)});
  const auto must = Ids("GPU-a", 90, 100);
  const UnitChoice choice = ChooseUnits({available, must, 50}, {});
  CHECK(choice.fits);
  CHECK(PerCard(choice.ids) == Count{{"GPU-a", 50}});
  for (const auto& id : must) CHECK(std::count(choice.ids.begin(), choice.ids.end(), id) == 1);
}

TEST_CASE("requests for whole cards get whole cards, on one NUMA node if possible") {
  const auto available = Join({Ids("GPU-a", 0, 100), Ids("GPU-b", 0, 99), Ids("GPU-c", 0, 100), Ids("GPU-d", 0, 100)});
  const scheduler::CardPlaces numa{{"GPU-a", {0}}, {"GPU-b", {0}}, {"GPU-c", {1}}, {"GPU-d", {1}}};
  const UnitChoice two = ChooseUnits({available, {}, 200}, numa);
  CHECK(two.fits);
  CHECK(PerCard(two.ids) == Count{{"GPU-c", 100}, {"GPU-d", 100}});
  const UnitChoice one = ChooseUnits({available, {}, 100}, numa);
  CHECK(PerCard(one.ids) == Count{{"GPU-a", 100}});
  const UnitChoice four = ChooseUnits({available, {}, 400}, numa);
  CHECK_FALSE(four.fits);
}

TEST_CASE("a request that fits nowhere gets the best available ids and is marked") {
  const auto available = Join({Ids("GPU-a", 0, 30), Ids("GPU-b", 0, 40)});
  const UnitChoice choice = ChooseUnits({available, {}, 50}, {});
  CHECK_FALSE(choice.fits);
  CHECK(PerCard(choice.ids) == Count{{"GPU-a", 10}, {"GPU-b", 40}});
  CHECK(ChooseUnits({available, {}, 0}, {}).ids.empty());
  CHECK(ChooseUnits({{}, {}, 5}, {}).ids.empty());
}

TEST_CASE("ids of other resources are ignored") {
  std::vector<std::string> available = Join({{"nonsense", "GPU-a::101"}, Ids("GPU-a", 0, 10)});
  CHECK(ChooseUnits({available, {}, 10}, {}).ids.size() == 10);
}

// For any input: as many ids as requested or available, none twice, none unavailable, and one card if a card can hold
// the request.
TEST_CASE("unit choices keep their invariants on random nodes") {
  std::mt19937 random(20240607);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 3000; ++round) {
    const int cards = 1 + below(6);
    std::vector<std::string> available, must;
    scheduler::CardPlaces numa;
    std::map<std::string, int> free;
    for (int c = 0; c < cards; ++c) {
      const std::string uuid = "GPU-" + std::to_string(c);
      numa[uuid].numa = below(3) - 1;
      const int percent = below(3) == 0 ? 100 : below(101);
      for (int u = 0; u < 100; ++u) {
        if (below(100) < percent) available.push_back(FormatDeviceId(uuid, u)), ++free[uuid];
      }
    }
    if (available.empty()) continue;
    std::shuffle(available.begin(), available.end(), random);
    const int size = below(4) == 0 ? 100 * (1 + below(3)) : 1 + below(100);
    if (below(3) == 0) {
      // Units of one card only, like an init container's.
      const std::string uuid = ParseDeviceId(available.front())->uuid;
      for (const auto& id : available) {
        if (ParseDeviceId(id)->uuid == uuid && static_cast<int>(must.size()) < std::min(size, 20)) must.push_back(id);
      }
    }
    const UnitChoice choice = ChooseUnits({available, must, size}, numa);
    INFO("round " << round << " size " << size << " must " << must.size());
    const std::set<std::string> chosen(choice.ids.begin(), choice.ids.end()), all(available.begin(), available.end());
    REQUIRE(chosen.size() == choice.ids.size());
    REQUIRE(choice.ids.size() == std::min<size_t>(static_cast<size_t>(size), available.size()));
    REQUIRE(std::includes(all.begin(), all.end(), chosen.begin(), chosen.end()));
    for (const auto& id : must) REQUIRE(chosen.contains(id));
    const Count per_card = PerCard(choice.ids);
    if (size <= 100) {
      const bool could = std::any_of(free.begin(), free.end(), [&](auto& c) {
        return c.second >= size && (must.empty() || ParseDeviceId(must.front())->uuid == c.first);
      });
      REQUIRE(choice.fits == could);
      if (could) {
        REQUIRE(per_card.size() == 1);
        // Best fit: no other card that could hold it has less free (unless must_include decides).
        for (const auto& [uuid, n] : free) {
          if (must.empty() && n >= size) REQUIRE(n >= free[per_card.begin()->first]);
        }
      }
    } else if (choice.fits) {
      for (const auto& [uuid, n] : per_card) REQUIRE(n == 100);
    }
  }
}

}  // namespace
}  // namespace sluice::deviceplugin
