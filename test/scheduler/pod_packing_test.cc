#include "scheduler/placement/pod_packing.h"

#include <catch2/catch_test_macros.hpp>

#include "scheduler/placement/chains.h"
#include "scheduler/placement/node_ledger.h"
#include "sluice/names.h"

namespace sluice::scheduler {
namespace {

constexpr auto kInit = ContainerKind::kInit;
constexpr auto kSidecar = ContainerKind::kSidecar;
constexpr auto kRegular = ContainerKind::kRegular;

static_assert(kUnitsPerCard == SLUICE_UNITS_PER_GPU);

std::vector<Chain> Chains(const std::vector<ContainerUnits>& containers) {
  const auto chains = ChainsOf(containers);
  INFO(chains.status().ToString());
  REQUIRE(chains.ok());
  return *chains;
}

std::string ChainError(const std::vector<ContainerUnits>& containers) {
  return std::string(ChainsOf(containers).status().message());
}

TEST_CASE("chains: containers without init containers get a chain each") {
  CHECK(Chains({{"a", kRegular, 30}, {"none", kRegular, 0}, {"b", kRegular, 200}}) ==
        std::vector<Chain>{{30, 30, {0}}, {200, 200, {2}}});
  CHECK(Chains({}).empty());
}

TEST_CASE("chains: an init container's units are reused first, and extended on the same card") {
  CHECK(Chains({{"i", kInit, 60}, {"a", kRegular, 30}}) == std::vector<Chain>{{60, 60, {0, 1}}});
  CHECK(Chains({{"i", kInit, 30}, {"a", kRegular, 60}}) == std::vector<Chain>{{30, 60, {0, 1}}});
  CHECK(Chains({{"i", kInit, 30}, {"j", kInit, 50}, {"a", kRegular, 20}, {"b", kRegular, 40}, {"c", kRegular, 5}}) ==
        std::vector<Chain>{{30, 60, {0, 1, 2, 3}}, {5, 5, {4}}});
  CHECK(Chains({{"i", kInit, 50}, {"a", kRegular, 200}}) == std::vector<Chain>{{50, 200, {0, 1}}});
  CHECK(Chains({{"i", kInit, 200}, {"a", kRegular, 200}, {"b", kRegular, 10}}) ==
        std::vector<Chain>{{200, 200, {0, 1}}, {10, 10, {2}}});
}

TEST_CASE("chains: a sidecar keeps its units") {
  CHECK(Chains({{"i", kInit, 50}, {"s", kSidecar, 20}, {"a", kRegular, 50}}) ==
        std::vector<Chain>{{50, 70, {0, 1, 2}}});
}

TEST_CASE("chains: chains that begin with equal sizes get equal totals") {
  CHECK(Chains({{"s", kSidecar, 30}, {"i", kInit, 30}, {"a", kRegular, 60}}) ==
        std::vector<Chain>{{30, 60, {0}}, {30, 60, {1, 2}}});
}

TEST_CASE("chains: units that no card can hold are refused") {
  CHECK(ChainError({{"a", kRegular, 150}}) ==
        "container \"a\" asks for 150 units, accepted are 1 to 100, or a multiple of 100 for whole cards");
  CHECK(ChainError({{"i", kInit, 100}, {"s", kSidecar, 60}, {"a", kRegular, 50}}).find("container \"a\"") == 0);
  CHECK(ChainError({{"i", kInit, 200}, {"a", kRegular, 100}}).find("at random from the 2 cards") != std::string::npos);
  CHECK_FALSE(ChainsOf({{"i", kInit, 50}, {"s", kSidecar, 20}, {"a", kRegular, 100}}).ok());
}

Node NodeWith(std::vector<int> free) {
  Node node;
  for (int units : free) node.cards.push_back({.free = units});
  return node;
}

TEST_CASE("packing places all containers of a pod together") {
  const auto policy = *MakePolicy("best-fit", {}, 100);
  const auto pack = [&](std::vector<int> free, std::vector<ContainerUnits> containers) {
    return PackPod(NodeWith(std::move(free)), Chains(containers), {}, *policy);
  };
  // By best fit in kubelet's order, the 50 would find no card.
  const auto packed = pack({60, 50}, {{"a", kRegular, 30}, {"b", kRegular, 30}, {"c", kRegular, 50}});
  REQUIRE(std::holds_alternative<PodPacking>(packed));
  CHECK(std::get<PodPacking>(packed).cards == std::vector<CardSet>{{0}, {0}, {1}});
  // Best fit with the largest first would put 40 on the card with 40 free and then fail. Only the search finds 40 on
  // the other card and the two 30.
  const auto searched = pack({40, 60}, {{"a", kRegular, 40}, {"b", kRegular, 30}, {"c", kRegular, 30}});
  REQUIRE(std::holds_alternative<PodPacking>(searched));
  const auto two = pack({70, 60}, {{"a", kRegular, 40}, {"b", kRegular, 35}, {"c", kRegular, 30}, {"d", kRegular, 25}});
  REQUIRE(std::holds_alternative<PodPacking>(two));
}

TEST_CASE("packing explains a failure in numbers") {
  const auto policy = *MakePolicy("best-fit", {}, 100);
  const auto why = [&](std::vector<int> free, std::vector<ContainerUnits> containers) {
    return std::get<PackingFailure>(PackPod(NodeWith(std::move(free)), Chains(containers), {}, *policy));
  };
  const PackingFailure sixty = why({50, 50}, {{"a", kRegular, 60}});
  CHECK(sixty.units == 60);
  CHECK(sixty.largest_free == 50);
  CHECK(sixty.sum_free == 100);
  CHECK_FALSE(sixty.only_jointly);
  CHECK(why({100, 99}, {{"a", kRegular, 200}}).cards_with_room == 1);
  CHECK(why({50, 50}, {{"a", kRegular, 40}, {"b", kRegular, 40}, {"c", kRegular, 20}}).only_jointly);
}

TEST_CASE("the annotation sluice.dev/gpus is parsed strictly") {
  const auto error = [](const char* json) { return std::string(ParseNodeCards(json).status().message()); };
  CHECK(error("") == "no JSON array");
  CHECK(error("{\"uuid\":1}") == "no JSON array");
  CHECK(error("[1]") == "card 0: no object");
  CHECK(error("[{\"free\":5}]") == "card 0: no uuid");
  CHECK(error("[{\"uuid\":\"a\",\"free\":101}]") == "card 0: free is no number of 0..100");
  CHECK(error("[{\"uuid\":\"a\",\"free\":1.5}]") == "card 0: free is no number of 0..100");
  CHECK(error("[{\"uuid\":\"a\",\"free\":1},{\"uuid\":\"a\",\"free\":1}]") == "uuid a twice");
  CHECK(error("\xff\xfe[") == "no JSON array");
  CHECK(error((std::string(100000, '[')).c_str()) == "no JSON array");
  const auto cards = ParseNodeCards(
      R"([{"uuid":"b","free":7,"memory":5,"numa":1,"new":{}},{"uuid":"a","free":0,"pods":{"u":{"c":50}}}])");
  REQUIRE(cards.ok());
  CHECK((*cards)[0].uuid == "a");
  CHECK((*cards)[0].pods->at("u") == std::vector<std::string>{"c"});
  CHECK((*cards)[1].memory_bytes == 5);
  CHECK_FALSE((*cards)[1].pods);
}

std::vector<int> FreeOf(const NodeLedger& ledger) {
  std::vector<int> free;
  for (const Card& card : ledger.Free().cards) free.push_back(card.free);
  return free;
}

LivePod One(int first, int total, const std::string& card) {
  std::vector<ContainerUnits> containers = {{"c", kRegular, total}};
  if (first != total) containers.insert(containers.begin(), {"i", kInit, first});
  ContainerCards placement;
  if (!card.empty()) {
    for (const auto& container : containers) placement[container.name] = {card};
  }
  return *MakeLivePod(containers, placement);
}

TEST_CASE("ledger: free units are the annotation's less newer reservations") {
  NodeLedger ledger;
  ledger.SetCards(*ParseNodeCards(R"([{"uuid":"a","free":100},{"uuid":"b","free":60}])"));
  CHECK(FreeOf(ledger) == std::vector<int>{100, 60});
  ledger.Put("p", {.name = "n/p", .live = One(30, 30, "b")});
  CHECK(FreeOf(ledger) == std::vector<int>{100, 30});
  // Kubelet has admitted it; the annotation may or may not include it. Reservations and annotation both count, and
  // nothing twice.
  ledger.Put("p", {.name = "n/p", .live = One(30, 30, "b"), .admitted = true});
  CHECK(FreeOf(ledger) == std::vector<int>{100, 60});
  ledger.Put("q", {.name = "n/q", .live = One(80, 80, "a"), .admitted = true});
  CHECK(FreeOf(ledger) == std::vector<int>{20, 60});
  ledger.Remove("q");
  // Placed by another scheduler and not admitted: may go to any card.
  ledger.Put("x", {.name = "n/x", .live = One(10, 10, "")});
  CHECK(FreeOf(ledger) == std::vector<int>{90, 50});
  // An annotation that names pods is exact, even if kubelet exchanged equal requests.
  ledger.SetCards(*ParseNodeCards(
      R"([{"uuid":"a","free":60,"pods":{"p":{"c":30},"x":{"c":10}}},{"uuid":"b","free":100,"pods":{}}])"));
  CHECK(FreeOf(ledger) == std::vector<int>{60, 100});
}

TEST_CASE("open reservations: two pods with equal requests exchange cards") {
  LivePods pods = {{"p", One(30, 30, "a")}, {"q", One(30, 30, "b")}};
  RecordAdmission(pods, "p", {{"c", {"b"}}});
  REQUIRE(OpenReservations(pods).size() == 1);
  CHECK(OpenReservations(pods)[0].cards == std::vector<std::string>{"a"});
  CHECK(CommittedUnits(pods, "a") == 30);
  CHECK(CommittedUnits(pods, "b") == 30);
  RecordAdmission(pods, "q", {{"c", {"a"}}});
  CHECK(OpenReservations(pods).empty());
}

TEST_CASE("open reservations: a closed reservation is not opened again") {
  // p got b, whose pod has ended; since then r has taken the units on a.
  LivePods pods = {{"p", One(30, 30, "a")}, {"q", One(30, 30, "b")}, {"r", One(80, 80, "a")}};
  RecordAdmission(pods, "p", {{"c", {"b"}}});
  CHECK(pods.at("q").reserved[0] == std::vector<std::string>{"b"});
}

TEST_CASE("ledger: exchanges are taken from the annotation") {
  NodeLedger ledger;
  const auto report = [&](const char* json) { ledger.SetCards(*ParseNodeCards(json)); };
  ledger.Put("p", {.name = "n/p", .live = One(30, 30, "a")});
  ledger.Put("q", {.name = "n/q", .live = One(30, 30, "b")});
  report(R"([{"uuid":"a","free":100,"pods":{}},{"uuid":"b","free":70,"pods":{"p":{"c":30}}}])");
  CHECK(FreeOf(ledger) == std::vector<int>{70, 70});
  ledger.Remove("p");
  CHECK(FreeOf(ledger) == std::vector<int>{70, 70});  // the annotation still counts p on b; q's reservation is on a
  report(R"([{"uuid":"a","free":70,"pods":{"q":{"c":30}}},{"uuid":"b","free":100,"pods":{}}])");
  CHECK(FreeOf(ledger) == std::vector<int>{70, 100});
}

TEST_CASE("ledger: a pod waits for another whose requests the plugin could not tell apart") {
  NodeLedger ledger;
  ledger.SetCards(*ParseNodeCards(R"([{"uuid":"a","free":100}])"));
  ledger.Put("p", {.name = "n/p", .live = One(30, 60, "a")});
  CHECK(ledger.FindBlocker({{30, 30, {0}}}) == "n/p");
  CHECK(ledger.FindBlocker({{30, 60, {0}}}).empty());
  CHECK(ledger.FindBlocker({{20, 30, {0}}}).empty());
  ledger.Put("p", {.name = "n/p", .live = One(30, 60, "a"), .admitted = true});
  CHECK(ledger.FindBlocker({{30, 30, {0}}}).empty());
}

}  // namespace
}  // namespace sluice::scheduler
