// A part of each of several cards: chains, choices, packing, reservations and the extender's answers.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <catch2/matchers/catch_matchers_string.hpp>

#include "extender_setup.h"
#include "scheduler/extender/refusal_reasons.h"
#include "scheduler/placement/choices.h"
#include "scheduler/placement/random.h"
#include "scheduler/placement/reservation_tracker.h"

namespace sluice::scheduler {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr auto kInit = ContainerKind::kInit;
constexpr auto kRegular = ContainerKind::kRegular;

Node NodeOf(std::vector<Card> cards) {
  Node node;
  node.cards = std::move(cards);
  return node;
}

TEST_CASE("split chains have their own number of cards, and pass units on only to equal ones") {
  const auto chains =
      ChainsOf({{"i", kInit, 60, 2}, {"a", kRegular, 60, 2}, {"b", kRegular, 100, 4}, {"c", kRegular, 60}});
  REQUIRE(chains.ok());
  REQUIRE(chains->size() == 3);
  CHECK((*chains)[0].containers == std::vector<int>{0, 1});
  CHECK((*chains)[0].Cards() == 2);
  CHECK((*chains)[0].UnitsPerCard() == 30);
  CHECK((*chains)[1].Cards() == 4);
  CHECK((*chains)[2].Cards() == 1);
  CHECK((*chains)[2].total == 60);
  CHECK(ChainsOf({{"a", kRegular, 200, 2}})->front() == ChainsOf({{"a", kRegular, 200}})->front());  // whole cards
  const auto error = [](const std::vector<ContainerUnits>& containers) {
    return std::string(ChainsOf(containers).status().message());
  };
  CHECK_THAT(error({{"a", kRegular, 61, 2}}), ContainsSubstring("cannot be split evenly over 2 cards"));
  CHECK_THAT(error({{"i", kInit, 60}, {"a", kRegular, 60, 2}}), ContainsSubstring("split over other cards"));
  CHECK_THAT(error({{"i", kInit, 60, 2}, {"a", kRegular, 100, 2}}), ContainsSubstring("split over other cards"));
  CHECK_THAT(error({{"i", kInit, 60, 2}, {"a", kRegular, 30}}), ContainsSubstring("split over other cards"));
}

TEST_CASE("choices of several cards are close ones, with the fullest first") {
  const Node node = NodeOf({{100, 0}, {60, 0}, {70, 0}, {60, 1}, {60, 1}});
  const auto choices = Choices(node, {.cards = 2, .units = 60});
  REQUIRE(choices.size() == 3);
  CHECK(choices[0] == CardSet{3, 4});  // the smallest NUMA node that has enough
  CHECK(choices[1] == CardSet{1, 2});
  CHECK(choices[2] == CardSet{0, 2});
  CHECK(Choices(node, {.cards = 3, .units = 60}) == std::vector<CardSet>{{0, 1, 2}});
  CHECK(Choices(node, {.cards = 4, .units = 60}) == std::vector<CardSet>{{0, 1, 2, 3}});
  CHECK(Choices(node, {.cards = 6, .units = 1}).empty());
  CHECK(Choices(node, {.cards = 3, .units = 61}).empty());
  // A link counts more than the NUMA node, and both together most.
  CHECK(Choices(NodeOf({{50, 0, 7}, {50, 1, -1}, {50, 0, -1}, {50, 1, 7}}), {.cards = 2, .units = 50}).front() ==
        CardSet{0, 3});
  CHECK(Choices(NodeOf({{50, 0, 7}, {50, 1, 7}, {50, 1, 7}, {50, 0, 8}}), {.cards = 2, .units = 50}).front() ==
        CardSet{1, 2});
}

TEST_CASE("all sets of cards are listed once each, up to the limit") {
  const Node node = NodeOf({{50}, {10}, {50}, {50}, {50}});
  const auto sets = AllChoices(node, {.cards = 2, .units = 20}, 100);
  CHECK(sets.size() == 6);
  CHECK(std::ranges::adjacent_find(sets) == sets.end());
  CHECK(AllChoices(node, {.cards = 2, .units = 20}, 4).size() == 4);
  CHECK(AllChoices(node, {.cards = 5, .units = 20}, 4).empty());
}

// Whether cards for all chains exist, by trying every set for each.
bool Exists(Node node, const std::vector<Chain>& chains, std::size_t at = 0) {
  if (at == chains.size()) return true;
  const Request request{.cards = chains[at].Cards(), .units = chains[at].UnitsPerCard()};
  return std::ranges::any_of(AllChoices(node, request, 100'000), [&](const CardSet& cards) {
    Node after = node;
    Take(after, request, cards);
    return Exists(after, chains, at + 1);
  });
}

TEST_CASE("a pod is packed exactly where some set of cards holds it") {
  const auto policy = *MakePolicy("best-fit", {}, 100);
  Random random(5);
  int fitting = 0, split = 0;
  for (int round = 0; round < 1500; ++round) {
    Node node;
    for (std::uint64_t i = 0; i < 2 + random.Below(4); ++i) {
      node.cards.push_back({static_cast<int>(random.Below(101)), static_cast<int>(random.Below(3)),
                            static_cast<int>(random.Below(3)) - 1});
    }
    std::vector<ContainerUnits> containers;
    for (std::uint64_t i = 0; i < 1 + random.Below(3); ++i) {
      const int cards = 1 + static_cast<int>(random.Below(3));
      containers.push_back({"c" + std::to_string(i), kRegular, cards * (5 + static_cast<int>(random.Below(12)) * 5),
                            cards > 1 ? cards : 0});
      split += cards > 1;
    }
    const auto chains = ChainsOf(containers);
    REQUIRE(chains.ok());
    INFO("round " << round);
    const auto packed = PackPod(node, *chains, {}, *policy);
    REQUIRE(std::holds_alternative<PodPacking>(packed) == Exists(node, *chains));
    if (!std::holds_alternative<PodPacking>(packed)) continue;
    ++fitting;
    for (std::size_t c = 0; c < chains->size(); ++c) {
      const CardSet& cards = std::get<PodPacking>(packed).cards[c];
      REQUIRE(static_cast<int>(cards.size()) == (*chains)[c].Cards());
      REQUIRE(std::ranges::adjacent_find(cards) == cards.end());
      for (const int card : cards) {
        node.cards[card].free -= (*chains)[c].UnitsPerCard();
        REQUIRE(node.cards[card].free >= 0);
      }
    }
  }
  CHECK(fitting > 300);
  CHECK(fitting < 1400);
  CHECK(split > 500);
}

TEST_CASE("a split reservation holds its part of each card, until it is given out at once") {
  ReservationTracker tracker;
  REQUIRE(tracker.PodBound("p", {{"c", kRegular, 100, 2}}, {{"c", {"A", "B"}}}).ok());
  CHECK_FALSE(tracker.PodBound("q", {{"c", kRegular, 100, 4}}, {{"c", {"A", "B"}}}).ok());
  CHECK(tracker.ReservedUnits("A") == 50);
  CHECK(tracker.ReservedUnits("B") == 50);
  CHECK(tracker.HasUnused(100));
  CHECK(tracker.HasUnused(100, 2));
  CHECK_FALSE(tracker.HasUnused(100, 1));
  const CardUnitCounts free{{"A", 100}, {"B", 70}, {"C", 100}};
  CHECK(*tracker.Choose(free, {}, 60, 1) == std::vector<std::string>{"C"});
  CHECK_FALSE(tracker.Choose({{"A", 100}, {"B", 70}}, {}, 60, 1).ok());
  const auto none = tracker.Choose({{"A", 70}, {"B", 70}, {"C", 60}}, {}, 120, 2);
  CHECK_THAT(std::string(none.status().message()), ContainsSubstring("fewer than 2 cards have 60 units that are free"));
  CHECK(*tracker.Choose({{"A", 70}, {"B", 70}, {"C", 60}}, {}, 60, 3) == std::vector<std::string>{"A", "B", "C"});
  CHECK(*tracker.Choose(free, {}, 100) == std::vector<std::string>{"A", "B"});
  CHECK(tracker.ReservedUnits("A") == 0);
  CHECK(tracker.ReservedUnits("B") == 0);
}

TEST_CASE("without a reservation the tracker chooses close cards") {
  ReservationTracker tracker;
  const CardPlaces places{{"A", {0, 0}}, {"B", {1, -1}}, {"C", {1, 0}}};
  CHECK(*tracker.Choose({{"A", 90}, {"B", 50}, {"C", 90}}, {}, 100, 2, places) == std::vector<std::string>{"A", "C"});
}

Json SplitPod(const std::string& name, int units, int cards) {
  Json pod = MakePod(name, units);
  pod["metadata"]["annotations"]["sluice.dev/injected"] =
      Json{{"version", "1"}, {"containers", {{"main", {{"percent", units / cards}, {"cards", cards}}}}}}.dump();
  return pod;
}

TEST_CASE("pods: the webhook's marker gives the number of cards") {
  const auto cards = [](int units, const std::string& marker) {
    Json pod = MakePod("p", units);
    pod["metadata"]["annotations"]["sluice.dev/injected"] = marker;
    return ReadPod(pod).containers.front().cards;
  };
  CHECK(ReadPod(SplitPod("p", 100, 2)).containers.front().cards == 2);
  CHECK(cards(100, R"({"containers":{"main":{"percent":50}}})") == 0);
  CHECK(cards(100, R"({"containers":{"other":{"percent":50,"cards":2}}})") == 0);
  for (const char* count : {"0", "1", "-2", "17", "3", "2.5", "\"2\"", "[2]", "null"}) {
    INFO(count);
    CHECK(cards(100, R"({"containers":{"main":{"percent":50,"cards":)" + std::string(count) + "}}}") == 0);
  }
  CHECK(cards(300, R"({"containers":{"main":{"percent":50,"cards":2}}})") == 0);
  for (const char* garbage : {"", "{", "[]", "7", "\xff", R"({"containers":[]})"}) CHECK(cards(100, garbage) == 0);
}

TEST_CASE("filter and bind: a node has as many cards with room, or gets no such pod") {
  ExtenderSetup setup{MakeNode("wide", {60, 60, 30}), MakeNode("narrow", {100, 40, 40})};
  const Json result = setup.Filter(SplitPod("p", 100, 2));
  CHECK(result["NodeNames"] == Json{"wide"});
  CHECK(result["FailedNodes"]["narrow"] == "fewer than 2 cards have 50 units free each, the most on one node is 1");
  CHECK(setup.Filter(MakePod("whole", 100))["NodeNames"] == Json{"narrow"});
  // A second pod with as many units on another number of cards waits: kubelet does not say for which it asks.
  setup.Create(SplitPod("p", 100, 2));
  REQUIRE(setup.Bind(SplitPod("p", 100, 2), "wide") == "");
  const Json waits = setup.Filter(SplitPod("q", 100, 4));
  CHECK_THAT(waits["FailedNodes"]["wide"].get<std::string>(), ContainsSubstring("waits until kubelet has admitted"));
  // Reserved units are taken on both cards.
  const Json rest = setup.Filter(MakePod("r", 20));
  CHECK(rest["NodeNames"].size() == 2);
  CHECK(setup.Filter(MakePod("r", 60))["FailedNodes"]["wide"] ==
        "no single card has 60 units free, the largest has 30");
  CHECK(setup.Filter(SplitPod("s", 90, 2))["NodeNames"].empty());
}

}  // namespace
}  // namespace sluice::scheduler
