// Units that running pods grew into are given to no new pod.
#include "deviceplugin/decide/grown_shares.h"

#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/decide/grant.h"

namespace sluice::deviceplugin {
namespace {

using Catch::Matchers::ContainsSubstring;

std::vector<std::string> Ids(const std::string& card, int first, int last) {
  std::vector<std::string> out;
  for (int unit = first; unit <= last; ++unit) out.push_back(FormatDeviceId(card, unit));
  return out;
}

CheckpointEntry Given(const std::string& pod, std::vector<std::string> ids) {
  return {pod, "main", std::move(ids), "/alloc", "/lib", {}};
}

std::map<std::string, BoundPod> Grown(const std::map<std::string, int>& a, const std::map<std::string, int>& b = {}) {
  return {{"a", {{}, {}, 1, a}}, {"b", {{}, {}, 2, b}}};
}

std::set<std::string> Set(std::vector<std::string> ids) { return {ids.begin(), ids.end()}; }

bool Lives(const std::string&) { return true; }

TEST_CASE("grown shares: as many free units are withheld as pods have grown") {
  const std::vector<CheckpointEntry> checkpoint = {Given("a", Ids("GPU-1", 0, 49)), Given("b", Ids("GPU-1", 90, 99))};
  CHECK(WithheldUnits(Grown({}), checkpoint, Lives).empty());
  CHECK(WithheldUnits(Grown({{"GPU-1", 20}}), checkpoint, Lives) == Set(Ids("GPU-1", 70, 89)));
  CHECK(WithheldUnits(Grown({{"GPU-1", 20}}, {{"GPU-1", 5}}), checkpoint, Lives) == Set(Ids("GPU-1", 65, 89)));
  // Another pod grew into the units that one left.
  CHECK(WithheldUnits(Grown({{"GPU-1", 20}}, {{"GPU-1", -20}}), checkpoint, Lives).empty());
  CHECK(WithheldUnits(Grown({{"GPU-1", -30}}), checkpoint, Lives).empty());
  // Never more than are free, and none that a live pod has.
  CHECK(WithheldUnits(Grown({{"GPU-1", 90}}), checkpoint, Lives) == Set(Ids("GPU-1", 50, 89)));
}

TEST_CASE("grown shares: units of an ended pod, which kubelet still lists, are free") {
  const std::vector<CheckpointEntry> checkpoint = {Given("a", Ids("GPU-1", 0, 49)), Given("old", Ids("GPU-1", 50, 99))};
  const auto lives = [](const std::string& uid) { return uid != "old"; };
  CHECK(WithheldUnits(Grown({{"GPU-1", 20}}), checkpoint, lives) == Set(Ids("GPU-1", 80, 99)));
}

TEST_CASE("grown shares: a pod that ended while the agent is down holds nothing") {
  const auto lives = [](const std::string& uid) { return uid != "a"; };
  CHECK(WithheldUnits(Grown({{"GPU-1", 20}}), {Given("a", Ids("GPU-1", 0, 49))}, lives).empty());
  // The pod that had left units to it lives on.
  CHECK(WithheldUnits(Grown({{"GPU-1", 20}}, {{"GPU-1", -20}}), {Given("b", Ids("GPU-1", 50, 99))}, lives).empty());
}

TEST_CASE("claims of the DRA driver withhold units beside grown shares, until they end") {
  const std::vector<CheckpointEntry> checkpoint = {Given("a", Ids("GPU-1", 0, 9))};
  CHECK(WithheldUnits(Grown({{"GPU-1", 20}}), checkpoint, Lives, {{"GPU-1", 30}}) == Set(Ids("GPU-1", 50, 99)));
  GrownShares shares(Lives);
  CHECK(!shares.SetCheckpoint(checkpoint));
  CHECK(shares.SetClaimed({{"GPU-1", 30}}));
  CHECK(shares.Withheld() == Set(Ids("GPU-1", 70, 99)));
  CHECK_THAT(std::string(shares.CheckAllocation(Ids("GPU-1", 60, 79)).message()),
             ContainsSubstring("30 free percent of GPU GPU-1 are held by claims of Dynamic Resource Allocation"));
  CHECK(shares.CheckAllocation(Ids("GPU-1", 10, 69)).ok());
  CHECK(shares.SetClaimed({}));
  CHECK(shares.CheckAllocation(Ids("GPU-1", 60, 79)).ok());
}

TEST_CASE("grown shares: Allocate refuses a withheld unit and says why") {
  GrownShares shares(Lives);
  CHECK(!shares.SetCheckpoint({Given("a", Ids("GPU-1", 0, 49))}));
  CHECK(shares.SetPods(Grown({{"GPU-1", 20}})));
  CHECK(!shares.SetPods(Grown({{"GPU-1", 20}})));
  CHECK(shares.CheckAllocation(Ids("GPU-1", 50, 79)).ok());
  const absl::Status refused = shares.CheckAllocation(Ids("GPU-1", 50, 80));
  CHECK(RefusalReason(refused) == "grown");
  CHECK_THAT(std::string(refused.message()), ContainsSubstring("20 free percent of GPU GPU-1 are granted"));
  CHECK(shares.CheckAllocation(Ids("GPU-2", 0, 99)).ok());
}

TEST_CASE("grown shares: the file gives them, and no other form") {
  const auto pods = ParseReservations(
      R"({"version":1,"pods":[{"uid":"a","containers":[],"grown":{"GPU-1":20,"GPU-2":-5}},{"uid":"b","containers":[]}]})");
  REQUIRE(pods.ok());
  CHECK(pods->at("a").grown == std::map<std::string, int>{{"GPU-1", 20}, {"GPU-2", -5}});
  CHECK(pods->at("b").grown.empty());
  CHECK(!ParseReservations(R"({"version":1,"pods":[{"uid":"a","containers":[],"grown":{"GPU-1":"20"}}]})").ok());
}

}  // namespace
}  // namespace sluice::deviceplugin
