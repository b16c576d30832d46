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

TEST_CASE("chains: containers alone") {
  CHECK(Chains({{"a", kRegular, 30}, {"none", kRegular, 0}, {"b", kRegular, 200}}) ==
        std::vector<Chain>{{30, 30, {0}}, {200, 200, {2}}});
  CHECK(Chains({}).empty());
}

TEST_CASE("chains: what an init container had is taken first, and grows on the same card") {
  CHECK(Chains({{"i", kInit, 60}, {"a", kRegular, 30}}) == std::vector<Chain>{{60, 60, {0, 1}}});
  CHECK(Chains({{"i", kInit, 30}, {"a", kRegular, 60}}) == std::vector<Chain>{{30, 60, {0, 1}}});
  CHECK(Chains({{"i", kInit, 30}, {"j", kInit, 50}, {"a", kRegular, 20}, {"b", kRegular, 40}, {"c", kRegular, 5}}) ==
        std::vector<Chain>{{30, 60, {0, 1, 2, 3}}, {5, 5, {4}}});
  CHECK(Chains({{"i", kInit, 50}, {"a", kRegular, 200}}) == std::vector<Chain>{{50, 200, {0, 1}}});
  CHECK(Chains({{"i", kInit, 200}, {"a", kRegular, 200}, {"b", kRegular, 10}}) ==
        std::vector<Chain>{{200, 200, {0, 1}}, {10, 10, {2}}});
}

TEST_CASE("chains: a sidecar keeps what it took") {
  CHECK(Chains({{"i", kInit, 50}, {"s", kSidecar, 20}, {"a", kRegular, 50}}) ==
        std::vector<Chain>{{50, 70, {0, 1, 2}}});
}

TEST_CASE("chains: requests that begin alike get room alike") {
  CHECK(Chains({{"s", kSidecar, 30}, {"i", kInit, 30}, {"a", kRegular, 60}}) ==
        std::vector<Chain>{{30, 60, {0}}, {30, 60, {1, 2}}});
}

TEST_CASE("chains: what no card can hold") {
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

TEST_CASE("packing looks at all of a pod's containers together") {
  const auto policy = *MakePolicy("best-fit", {}, 100);
  const auto pack = [&](std::vector<int> free, std::vector<ContainerUnits> containers) {
    return Pack(NodeWith(std::move(free)), Chains(containers), {}, *policy);
  };
  // In kubelet's order, each by best fit, the 50 would find no card.
  const auto packed = pack({60, 50}, {{"a", kRegular, 30}, {"b", kRegular, 30}, {"c", kRegular, 50}});
  REQUIRE(std::holds_alternative<Packing>(packed));
  CHECK(std::get<Packing>(packed).cards == std::vector<CardSet>{{0}, {0}, {1}});
  // Largest first by best fit would put 40 on the card with 40 and then fail: only the search finds 40 beside 30
  // and 30.
  const auto searched = pack({40, 60}, {{"a", kRegular, 40}, {"b", kRegular, 30}, {"c", kRegular, 30}});
  REQUIRE(std::holds_alternative<Packing>(searched));
  const auto two = pack({70, 60}, {{"a", kRegular, 40}, {"b", kRegular, 35}, {"c", kRegular, 30}, {"d", kRegular, 25}});
  REQUIRE(std::holds_alternative<Packing>(two));
}

TEST_CASE("packing says in numbers why not") {
  const auto policy = *MakePolicy("best-fit", {}, 100);
  const auto why = [&](std::vector<int> free, std::vector<ContainerUnits> containers) {
    return std::get<NoRoom>(Pack(NodeWith(std::move(free)), Chains(containers), {}, *policy));
  };
  const NoRoom sixty = why({50, 50}, {{"a", kRegular, 60}});
  CHECK(sixty.units == 60);
  CHECK(sixty.largest_free == 50);
  CHECK(sixty.sum_free == 100);
  CHECK_FALSE(sixty.together);
  CHECK(why({100, 99}, {{"a", kRegular, 200}}).whole_free == 1);
  CHECK(why({50, 50}, {{"a", kRegular, 40}, {"b", kRegular, 40}, {"c", kRegular, 20}}).together);
}

TEST_CASE("the annotation is read strictly") {
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

TEST_CASE("ledger: the annotation less what it cannot know yet") {
  NodeLedger ledger;
  ledger.SetCards(*ParseNodeCards(R"([{"uuid":"a","free":100},{"uuid":"b","free":60}])"));
  CHECK(FreeOf(ledger) == std::vector<int>{100, 60});
  ledger.Put("p", {.name = "n/p", .live = One(30, 30, "b")});
  CHECK(FreeOf(ledger) == std::vector<int>{100, 30});
  // Kubelet has it, the annotation may or may not: reservations and annotation are both respected, nothing is counted
  // twice.
  ledger.Put("p", {.name = "n/p", .live = One(30, 30, "b"), .admitted = true});
  CHECK(FreeOf(ledger) == std::vector<int>{100, 60});
  ledger.Put("q", {.name = "n/q", .live = One(80, 80, "a"), .admitted = true});
  CHECK(FreeOf(ledger) == std::vector<int>{20, 60});
  ledger.Remove("q");
  // Placed by somebody else and not admitted: on any card for now.
  ledger.Put("x", {.name = "n/x", .live = One(10, 10, "")});
  CHECK(FreeOf(ledger) == std::vector<int>{90, 50});
  // The annotation that names pods is exact, also where kubelet swapped equal requests.
  ledger.SetCards(*ParseNodeCards(
      R"([{"uuid":"a","free":60,"pods":{"p":{"c":30},"x":{"c":10}}},{"uuid":"b","free":100,"pods":{}}])"));
  CHECK(FreeOf(ledger) == std::vector<int>{60, 100});
}

TEST_CASE("open slots: kubelet gave one pod what was reserved for another") {
  LivePods pods = {{"p", One(30, 30, "a")}, {"q", One(30, 30, "b")}};
  Settle(pods, "p", {{"c", {"b"}}});
  REQUIRE(OpenSlots(pods).size() == 1);
  CHECK(OpenSlots(pods)[0].cards == std::vector<std::string>{"a"});
  CHECK(Committed(pods, "a") == 30);
  CHECK(Committed(pods, "b") == 30);
  Settle(pods, "q", {{"c", {"a"}}});
  CHECK(OpenSlots(pods).empty());
}

TEST_CASE("open slots: a reservation that was closed long ago is not opened again") {
  // p was given b, whose pod is gone; since then r has got the room on a.
  LivePods pods = {{"p", One(30, 30, "a")}, {"q", One(30, 30, "b")}, {"r", One(80, 80, "a")}};
  Settle(pods, "p", {{"c", {"b"}}});
  CHECK(pods.at("q").reserved[0] == std::vector<std::string>{"b"});
}

TEST_CASE("ledger: exchanged reservations are followed") {
  NodeLedger ledger;
  const auto report = [&](const char* json) { ledger.SetCards(*ParseNodeCards(json)); };
  ledger.Put("p", {.name = "n/p", .live = One(30, 30, "a")});
  ledger.Put("q", {.name = "n/q", .live = One(30, 30, "b")});
  report(R"([{"uuid":"a","free":100,"pods":{}},{"uuid":"b","free":70,"pods":{"p":{"c":30}}}])");
  CHECK(FreeOf(ledger) == std::vector<int>{70, 70});
  ledger.Remove("p");
  CHECK(FreeOf(ledger) == std::vector<int>{70, 70});  // the annotation still counts p on b; q's place is a
  report(R"([{"uuid":"a","free":70,"pods":{"q":{"c":30}}},{"uuid":"b","free":100,"pods":{}}])");
  CHECK(FreeOf(ledger) == std::vector<int>{70, 100});
}

TEST_CASE("ledger: pods that the plugin could not tell apart wait for each other") {
  NodeLedger ledger;
  ledger.SetCards(*ParseNodeCards(R"([{"uuid":"a","free":100}])"));
  ledger.Put("p", {.name = "n/p", .live = One(30, 60, "a")});
  CHECK(ledger.Blocks({{30, 30, {0}}}) == "n/p");
  CHECK(ledger.Blocks({{30, 60, {0}}}).empty());
  CHECK(ledger.Blocks({{20, 30, {0}}}).empty());
  ledger.Put("p", {.name = "n/p", .live = One(30, 60, "a"), .admitted = true});
  CHECK(ledger.Blocks({{30, 30, {0}}}).empty());
}

}  // namespace
}  // namespace sluice::scheduler
