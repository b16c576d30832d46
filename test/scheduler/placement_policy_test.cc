#include "scheduler/placement/placement_policy.h"

#include <catch2/catch_approx.hpp>
#include <catch2/catch_test_macros.hpp>

#include "scheduler/placement/choices.h"
#include "scheduler/placement/eventual_use.h"
#include "scheduler/placement/random.h"

namespace sluice::scheduler {
namespace {

Node NodeWith(std::vector<Card> cards, std::int64_t cpu = 100000) {
  return {.cpu_milli_free = cpu, .memory_mib_free = 1 << 20, .units_per_card = 100, .cards = std::move(cards)};
}

Request Part(int units, std::int64_t cpu = 1000) { return {.cards = 1, .units = units, .cpu_milli = cpu}; }

std::unique_ptr<PlacementPolicy> Make(const std::string& name, const RequestMix& mix = {}) {
  return *MakePolicy(name, mix, 100);
}

TEST_CASE("choices: one card of each distinct state, the first of equals") {
  const Node node = NodeWith({{100, 0}, {50, 0}, {100, 0}, {50, 1}, {20, 0}});
  CHECK(Choices(node, Part(30)) == std::vector<CardSet>{{0}, {1}, {3}});
  CHECK(Choices(node, Part(100)) == std::vector<CardSet>{{0}});
  CHECK(Choices(node, {.cards = 0}) == std::vector<CardSet>{{}});
  CHECK(Choices(NodeWith({{40, 0}, {40, 0}}), Part(60)).empty());
}

TEST_CASE("choices: whole cards come from the tightest NUMA node that has enough") {
  const Request two{.cards = 2, .units = 100};
  CHECK(Choices(NodeWith({{100, 0}, {100, 0}, {100, 0}, {100, 1}, {100, 1}}), two) == std::vector<CardSet>{{3, 4}});
  CHECK(Choices(NodeWith({{100, 0}, {99, 0}, {100, 1}}), two) == std::vector<CardSet>{{0, 2}});
  CHECK(Choices(NodeWith({{100, 0}, {99, 0}}), two).empty());
}

TEST_CASE("fragment: the expected units that the mix cannot use") {
  const RequestMix mix = {{Part(60), 0.5}, {Part(20), 0.5}};
  CHECK(ExpectedFragment(NodeWith({{50, 0}, {100, 0}}), mix) ==
        Catch::Approx(25));  // the first request cannot use 50, the second can use all
  CHECK(ExpectedFragment(NodeWith({{50, 0}, {100, 0}}, 500), mix) ==
        Catch::Approx(150));  // no CPU: no request can use any unit
  CHECK(ExpectedFragment(NodeWith({{50, 0}, {50, 0}}), mix) == Catch::Approx(50));
}

TEST_CASE("the fragment table gives the same values as the definition") {
  Random random(5);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<Request> requests;
    for (int i = 0; i < 20; ++i) {
      Request request{.cards = static_cast<int>(random.Below(4)),
                      .units = 1 + static_cast<int>(random.Below(100)),
                      .cpu_milli = static_cast<std::int64_t>(random.Below(20)) * 1000,
                      .memory_mib = static_cast<std::int64_t>(random.Below(trial % 3 + 1)) * 1000};
      if (request.cards == 0) request.units = 0;
      if (request.cards > 1) request.units = 100;
      requests.push_back(request);
    }
    const RequestMix mix = MixOf(requests);
    Node node = NodeWith({}, static_cast<std::int64_t>(random.Below(40)) * 500);
    node.memory_mib_free = static_cast<std::int64_t>(random.Below(40)) * 500;
    for (std::uint64_t i = 0; i < 1 + random.Below(8); ++i) {
      node.cards.push_back({.free = random.Below(2) == 0 ? 100 : static_cast<int>(random.Below(101))});
    }
    const FragmentTable table(mix, 100);
    CHECK(table.Expected(node) == Catch::Approx(ExpectedFragment(node, mix)).margin(1e-9));
    for (const Request& request : requests) {
      for (const CardSet& cards : Choices(node, request)) {
        Node after = node;
        Take(after, request, cards);
        CHECK(table.Expected(node, request, cards) == Catch::Approx(ExpectedFragment(after, mix)).margin(1e-9));
      }
    }
  }
}

TEST_CASE("best fit takes the fullest card, spread the emptiest") {
  const Node node = NodeWith({{100, 0}, {50, 0}, {70, 0}});
  CHECK(Place(node, Part(40), *Make("best-fit"))->cards == CardSet{1});
  CHECK(Place(node, Part(60), *Make("best-fit"))->cards == CardSet{2});
  CHECK(Place(node, Part(40), *Make("spread"))->cards == CardSet{0});
}

TEST_CASE("fgd and look-ahead keep a card that fits the next request") {
  // The mix has halves and 35s. A 35 on the half-used card would leave no half; beside another 35, 30 units remain
  // either way.
  const RequestMix mix = {{Part(50), 0.8}, {Part(35), 0.2}};
  const Node node = NodeWith({{50, 0}, {65, 0}});
  CHECK(Place(node, Part(50), *Make("fgd", mix))->cards == CardSet{0});
  CHECK(Place(node, Part(50), *Make("look-ahead", mix))->cards == CardSet{0});
}

TEST_CASE("eventual use: halves fill a card, two thirds leave a third unused") {
  const EventualUse halves = LearnEventualUse({{Part(50, 4000), 1}}, 100);
  CHECK(halves.units[100] == Catch::Approx(100).margin(2));
  CHECK(halves.units[50] == Catch::Approx(50).margin(2));
  CHECK(halves.units[49] == 0);
  CHECK(halves.cpu_milli[100] == Catch::Approx(8000).margin(200));
  const EventualUse thirds = LearnEventualUse({{Part(67), 1}}, 100);
  CHECK(thirds.units[100] == Catch::Approx(67).margin(2));
  CHECK(thirds.units[33] == 0);
}

TEST_CASE("look-ahead keeps CPU for free cards") {
  // Four free cards, each of which will need 10 cores. A CPU-only pod takes nothing from the node with spare CPU, and
  // one card's CPU from the other.
  const RequestMix mix = {{Part(100, 10000), 0.9}, {{.cpu_milli = 10000}, 0.1}};
  const Node poor = NodeWith({{100, 0}, {100, 0}, {100, 0}, {100, 0}}, 40000);
  const Node rich = NodeWith({{100, 0}, {100, 0}, {100, 0}, {100, 0}}, 60000);
  const Request cpu_only{.cpu_milli = 10000};
  const auto policy = Make("look-ahead", mix);
  CHECK(Place(rich, cpu_only, *policy)->score > Place(poor, cpu_only, *policy)->score);
  const auto fgd = Make("fgd", mix);
  CHECK(Place(rich, cpu_only, *fgd)->score ==
        Place(poor, cpu_only, *fgd)->score);  // it considers one request at a time
}

TEST_CASE("a node without enough CPU or memory is no choice") {
  CHECK_FALSE(Place(NodeWith({{100, 0}}, 999), Part(10), *Make("best-fit")));
  CHECK(Place(NodeWith({{100, 0}}, 1000), Part(10), *Make("best-fit")));
  Node node = NodeWith({{100, 0}});
  node.memory_mib_free = 9;
  CHECK_FALSE(Place(node, {.cards = 1, .units = 1, .memory_mib = 10}, *Make("best-fit")));
}

TEST_CASE("the error for an unknown policy lists the known ones") {
  const auto policy = MakePolicy("first", {}, 100);
  REQUIRE_FALSE(policy.ok());
  CHECK(std::string(policy.status().message()) ==
        "policy \"first\" is unknown; known are look-ahead, fgd, best-fit, spread");
}

}  // namespace
}  // namespace sluice::scheduler
