// A part of each of several cards: the choice, the grant, and the request that kubelet does not name.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>
#include <thread>

#include "deviceplugin/decide/card_inventory.h"
#include "deviceplugin/decide/grant.h"
#include "deviceplugin/decide/response.h"
#include "deviceplugin/decide/unit_choice.h"
#include "deviceplugin/decide/waiting_requests.h"
#include "sluice/names.h"
#include "test/deviceplugin/cards_for_tests.h"

namespace sluice::deviceplugin {
namespace {

using Catch::Matchers::ContainsSubstring;
using Count = std::map<std::string, int>;
using scheduler::ContainerKind;
using scheduler::ContainerUnits;

Count PerCard(const std::vector<std::string>& ids) {
  Count out;
  for (const auto& id : ids) ++out[ParseDeviceId(id)->uuid];
  return out;
}

Inventory Cards(int count) {
  Inventory out;
  for (int i = 0; i < count; ++i) out.cards.push_back(HealthyCard("GPU-" + std::to_string(i), i));
  return out;
}

std::vector<CheckpointEntry> None() { return {}; }

CheckpointEntry Entry(const std::string& uid, const std::string& container, std::vector<std::string> ids) {
  CheckpointEntry entry;
  entry.pod_uid = uid;
  entry.container = container;
  entry.device_ids = std::move(ids);
  std::sort(entry.device_ids.begin(), entry.device_ids.end());
  return entry;
}

BoundPod Bound(uint64_t order, std::vector<ContainerUnits> containers) {
  BoundPod pod;
  pod.order = order;
  pod.containers = std::move(containers);
  return pod;
}

constexpr auto kRegular = ContainerKind::kRegular;
constexpr auto kInit = ContainerKind::kInit;

}  // namespace

TEST_CASE("split: as many units of each of several cards, the fullest that have room") {
  const auto available = Join({Ids("GPU-a", 0, 100), Ids("GPU-b", 0, 60), Ids("GPU-c", 0, 40), Ids("GPU-d", 0, 50)});
  const UnitChoice two = ChooseUnits({available, {}, 100, 2}, {});
  CHECK(two.fits);
  CHECK(PerCard(two.ids) == Count{{"GPU-b", 50}, {"GPU-d", 50}});
  const UnitChoice four = ChooseUnits({available, {}, 160, 4}, {});
  CHECK(PerCard(four.ids) == Count{{"GPU-a", 40}, {"GPU-b", 40}, {"GPU-c", 40}, {"GPU-d", 40}});
  CHECK_FALSE(ChooseUnits({available, {}, 164, 4}, {}).fits);
  CHECK(ChooseUnits({available, {}, 164, 4}, {}).ids.size() == 164);  // Allocate refuses them, and says why
  CHECK_FALSE(ChooseUnits({available, {}, 101, 2}, {}).fits);
  CHECK(ChooseUnits({available, {}, 100, 1}, {}).fits);
  CHECK(PerCard(ChooseUnits({available, {}, 100, 0}, {}).ids) == Count{{"GPU-a", 100}});
}

TEST_CASE("split: NVLink neighbours go first, then the NUMA node, then as few NUMA nodes as possible") {
  const auto available = Join({Ids("GPU-a", 0, 100), Ids("GPU-b", 0, 50), Ids("GPU-c", 0, 90), Ids("GPU-d", 0, 80)});
  // The fullest two are b and d, and no link joins them.
  const scheduler::CardPlaces pairs{{"GPU-a", {0, 0}}, {"GPU-b", {0, 0}}, {"GPU-c", {1, 1}}, {"GPU-d", {1, 1}}};
  CHECK(PerCard(ChooseUnits({available, {}, 100, 2}, pairs).ids) == Count{{"GPU-a", 50}, {"GPU-b", 50}});
  CHECK(PerCard(ChooseUnits({available, {}, 120, 2}, pairs).ids) == Count{{"GPU-c", 60}, {"GPU-d", 60}});
  const scheduler::CardPlaces across{{"GPU-a", {0, 0}}, {"GPU-b", {0, -1}}, {"GPU-c", {1, 0}}, {"GPU-d", {1, -1}}};
  CHECK(PerCard(ChooseUnits({available, {}, 100, 2}, across).ids) == Count{{"GPU-a", 50}, {"GPU-c", 50}});
  const scheduler::CardPlaces numa{{"GPU-a", {0}}, {"GPU-b", {1}}, {"GPU-c", {0}}, {"GPU-d", {2}}};
  CHECK(PerCard(ChooseUnits({available, {}, 100, 2}, numa).ids) == Count{{"GPU-a", 50}, {"GPU-c", 50}});
  CHECK(PerCard(ChooseUnits({available, {}, 150, 3}, numa).ids).size() == 3);
  // Whole cards alike.
  const auto whole = Join({Ids("GPU-a", 0, 100), Ids("GPU-b", 0, 100), Ids("GPU-c", 0, 100)});
  const scheduler::CardPlaces link{{"GPU-a", {0}}, {"GPU-b", {0, 3}}, {"GPU-c", {0, 3}}};
  CHECK(PerCard(ChooseUnits({whole, {}, 200, 0}, link).ids) == Count{{"GPU-b", 100}, {"GPU-c", 100}});
}

TEST_CASE("split: a grant has exactly as many cards with equal parts") {
  const Inventory node = Cards(3);
  const auto halves = Join({Ids("GPU-0", 0, 50), Ids("GPU-2", 50, 100)});
  auto grant = DecideGrant(halves, node, 2);
  REQUIRE(grant.ok());
  CHECK(grant->cards == std::vector<GrantedCard>{{"GPU-0", 50, 0}, {"GPU-2", 50, 2}});
  CHECK(grant->Fraction() == "0.50");
  const ContainerResponse response = MakeResponse({&*grant, DriverAccess::kNvidiaRuntime, "/l", "/r"});
  CHECK(response.envs.at("NVIDIA_VISIBLE_DEVICES") == "GPU-0,GPU-2");
  CHECK(response.envs.at(SLUICE_ENV_GPU_FRACTION) == "0.50");
  CHECK(response.envs.at(SLUICE_ENV_GPU_COUNT) == "2");
  CHECK(MakeResponse({&*grant, DriverAccess::kOwn, "/l", "/r"}).cdi_names.size() == 2);

  const auto why = [&](const std::vector<std::string>& ids, int cards) {
    const auto refused = DecideGrant(ids, node, cards);
    REQUIRE_FALSE(refused.ok());
    return RefusalReason(refused.status()) + ": " + std::string(refused.status().message());
  };
  CHECK_THAT(why(Join({Ids("GPU-0", 0, 60), Ids("GPU-1", 0, 40)}), 2),
             ContainsSubstring("split: ") && ContainsSubstring("50 percent of each of 2 GPUs") &&
                 ContainsSubstring("60 of GPU-0, 40 of GPU-1"));
  CHECK_THAT(why(Ids("GPU-0", 0, 100), 2), ContainsSubstring("fewer than 2 GPUs of this node have 50 percent free"));
  CHECK_THAT(why(Join({Ids("GPU-0", 0, 25), Ids("GPU-1", 0, 25), Ids("GPU-2", 0, 50)}), 2), ContainsSubstring("split"));
  CHECK_THAT(why(Join({Ids("GPU-0", 0, 51), Ids("GPU-1", 0, 50)}), 2), ContainsSubstring("size: "));
  CHECK_THAT(why(halves, 1), ContainsSubstring("no GPU of this node has 100 percent free"));
  CHECK_THAT(why(halves, 0), ContainsSubstring("split"));
}

TEST_CASE("split: cards that all reach each other by NVLink are a group") {
  CardInventory inventory({});
  std::vector<CardReading> readings;
  for (int i = 0; i < 5; ++i) readings.push_back(Reading("GPU-" + std::to_string(i), i));
  const auto link = [&](int a, int b) {
    readings[a].nvlink_peers.insert(readings[b].uuid);
    readings[b].nvlink_peers.insert(readings[a].uuid);
  };
  link(0, 3);
  link(3, 4);  // 4 does not reach 0
  link(1, 2);
  readings[4].nvlink_peers.insert("GPU-1");  // 1 knows nothing of it
  inventory.ApplyReadings({"580", readings, {}}, std::chrono::steady_clock::now());
  const scheduler::CardPlaces places = inventory.Current().Places();
  CHECK(places.at("GPU-0").nvlink == places.at("GPU-3").nvlink);
  CHECK(places.at("GPU-1").nvlink == places.at("GPU-2").nvlink);
  CHECK(places.at("GPU-0").nvlink != places.at("GPU-1").nvlink);
  CHECK(places.at("GPU-0").nvlink >= 0);
  CHECK(places.at("GPU-4").nvlink == -1);
}

TEST_CASE("waiting requests: the first pod with as many units is the one that kubelet asks for") {
  WaitingRequests waiting(std::chrono::milliseconds(0));
  CHECK(waiting.CardsFor(100, 4, None) == 0);  // no agent
  waiting.SetPods({{"z", Bound(1, {{"c", kRegular, 100, 2}})},
                   {"a", Bound(2, {{"c", kRegular, 100, 0}})},
                   {"b", Bound(3, {{"c", kRegular, 60, 3}})}});
  CHECK(waiting.CardsFor(60, 4, None) == 3);
  CHECK(waiting.CardsFor(50, 4, None) == 0);  // no such pod
  CHECK(waiting.CardsFor(100, 4, None) == 2);
  CHECK(waiting.CardsFor(100, 4, None) == 1);
  // After kubelet's restart it asks again for those that have nothing.
  const auto z_has = [] {
    return WaitingRequests::Checkpoint(std::vector<CheckpointEntry>{Entry("z", "c", Ids("GPU-0", 0, 1))});
  };
  CHECK(waiting.CardsFor(100, 4, z_has) == 1);
}

TEST_CASE("waiting requests: a pod's containers follow each other, and those of a refused pod do not") {
  WaitingRequests waiting(std::chrono::milliseconds(0));
  waiting.SetPods(
      {{"refused", Bound(1, {{"one", kRegular, 200, 0}, {"two", kRegular, 100, 4}})},
       {"a", Bound(2, {{"one", kRegular, 100, 0}, {"two", kRegular, 100, 2}, {"three", kRegular, 40, 4}})}});
  std::vector<CheckpointEntry> given;
  const auto read = [&] { return WaitingRequests::Checkpoint(given); };
  CHECK(waiting.CardsFor(200, 4, read) == 2);
  CHECK(waiting.CardsFor(40, 4, read) == 0);  // not its turn
  CHECK(waiting.CardsFor(100, 4, read) == 1);
  given.push_back(Entry("a", "one", Ids("GPU-0", 0, 100)));
  CHECK(waiting.CardsFor(100, 4, read) == 2);
  given.push_back(Entry("a", "two", Ids("GPU-1", 0, 100)));
  CHECK(waiting.CardsFor(40, 4, read) == 4);
}

TEST_CASE("waiting requests: where pods differ, the checkpoint decides which is next") {
  WaitingRequests waiting(std::chrono::milliseconds(0));
  waiting.SetPods({{"a", Bound(1, {{"c", kRegular, 100, 2}})}, {"b", Bound(2, {{"c", kRegular, 100, 4}})}});
  const auto read = [] {
    return WaitingRequests::Checkpoint(std::vector<CheckpointEntry>{Entry("a", "c", Ids("GPU-0", 0, 1))});
  };
  CHECK(waiting.CardsFor(100, 8, read) == 4);
}

TEST_CASE("waiting requests: a request waits for the agent's word about its pod, if units can be split at all") {
  using Clock = std::chrono::steady_clock;
  WaitingRequests waiting(std::chrono::seconds(20));
  waiting.SetPods({});
  const auto began = Clock::now();
  CHECK(waiting.CardsFor(100, 1, None) == 0);  // one card
  CHECK(waiting.CardsFor(97, 8, None) == 0);   // a prime number
  CHECK(Clock::now() - began < std::chrono::seconds(10));
  std::thread agent([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    waiting.SetPods({{"a", Bound(1, {{"c", kRegular, 100, 2}})}});
  });
  CHECK(waiting.CardsFor(100, 8, None) == 2);
  agent.join();
}

TEST_CASE("waiting requests: Allocate follows the answer, an init container's units, or the order") {
  WaitingRequests waiting(std::chrono::milliseconds(0));
  waiting.SetPods({{"a", Bound(1, {{"i", kInit, 60, 2}, {"c", kRegular, 60, 2}})},
                   {"b", Bound(2, {{"c", kRegular, 60, 0}})},
                   {"d", Bound(3, {{"c", kRegular, 100, 4}})}});
  const auto halves = Join({Ids("GPU-0", 0, 30), Ids("GPU-1", 0, 30)});
  REQUIRE(waiting.CardsFor(60, 4, None) == 2);
  waiting.SetAnswer(halves, 2);
  CHECK(waiting.CardsOf(halves, None) == 2);
  const auto passed_on = [&] {
    return WaitingRequests::Checkpoint(std::vector<CheckpointEntry>{Entry("a", "i", halves)});
  };
  CHECK(waiting.CardsOf(halves, passed_on) == 2);
  CHECK(waiting.CardsOf(Ids("GPU-2", 0, 60), passed_on) == 1);  // b: kubelet took the rest of a NUMA node
  CHECK(waiting.CardsOf(Ids("GPU-3", 0, 100), passed_on) == 4);
}

TEST_CASE("waiting requests: a container that got another's share does not start") {
  WaitingRequests waiting(std::chrono::milliseconds(0));
  waiting.SetPods({{"a", Bound(1, {{"c", kRegular, 100, 2}})}, {"b", Bound(2, {{"c", kRegular, 100, 0}})}});
  const auto whole = Ids("GPU-0", 0, 100), halves = Join({Ids("GPU-1", 0, 50), Ids("GPU-2", 0, 50)});
  CHECK(waiting.CheckStart(halves, std::vector<CheckpointEntry>{Entry("a", "c", halves)}).ok());
  CHECK(waiting.CheckStart(whole, std::vector<CheckpointEntry>{Entry("b", "c", whole)}).ok());
  CHECK(waiting.CheckStart(whole, std::vector<CheckpointEntry>{Entry("unknown", "c", whole)}).ok());
  const absl::Status wrong = waiting.CheckStart(whole, std::vector<CheckpointEntry>{Entry("a", "c", whole)});
  CHECK_THAT(std::string(wrong.message()),
             ContainsSubstring("requests 50 percent of each of 2 GPUs and was given 100 units on 1 GPU"));
  CHECK_THAT(std::string(waiting.CheckStart(halves, std::vector<CheckpointEntry>{Entry("b", "c", halves)}).message()),
             ContainsSubstring("requests 100 percent of one GPU"));
}

TEST_CASE("the agent's file gives cards and order") {
  const auto pods = ParseReservations(
      R"({"version":1,"pods":[{"uid":"a","order":7,"containers":[{"name":"c","kind":"regular","units":100,"cards":2},)"
      R"({"name":"d","kind":"regular","units":10,"cards":99}]}]})");
  REQUIRE(pods.ok());
  CHECK(pods->at("a").order == 7);
  CHECK(pods->at("a").containers[0].cards == 2);
  CHECK(pods->at("a").containers[1].cards == 0);
}

}  // namespace sluice::deviceplugin
