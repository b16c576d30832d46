#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <nlohmann/json.hpp>

#include "kubelet_model.h"
#include "scheduler/placement/node_ledger.h"
#include "scheduler/placement/pod_packing.h"
#include "scheduler/placement/random.h"
#include "scheduler/placement/reservation_tracker.h"

namespace sluice::scheduler {
namespace {

constexpr auto kRegular = ContainerKind::kRegular;

TEST_CASE("placement annotation: formatted, parsed, and rejected if malformed") {
  const ContainerCards cards = {{"a", {"GPU-1"}}, {"b", {"GPU-1", "GPU-2"}}};
  CHECK(FormatPlacement(cards) == R"({"a":["GPU-1"],"b":["GPU-1","GPU-2"]})");
  CHECK(*ParsePlacement(FormatPlacement(cards)) == cards);
  for (const char* garbage : {"", "[]", "{\"a\":1}", "{\"a\":[1]}", "{\"a\":", "\xff"}) {
    INFO(garbage);
    CHECK_FALSE(ParsePlacement(garbage).ok());
  }
}

TEST_CASE("60 and 50 free; bound 50, 30, 30; admitted 30, 30, 50: all fit") {
  ReservationTracker plugin;
  REQUIRE(plugin.PodBound("p50", {{"c", kRegular, 50}}, {{"c", {"B"}}}).ok());
  REQUIRE(plugin.PodBound("p30", {{"c", kRegular, 30}}, {{"c", {"A"}}}).ok());
  REQUIRE(plugin.PodBound("q30", {{"c", kRegular, 30}}, {{"c", {"A"}}}).ok());
  CardUnitCounts free = {{"A", 60}, {"B", 50}};
  const auto request = [&](int size) {
    const auto cards = plugin.Choose(free, {}, size);
    REQUIRE(cards.ok());
    free[cards->front()] -= size;
    return cards->front();
  };
  CHECK(request(30) == "A");
  CHECK(request(30) == "A");
  CHECK(request(50) == "B");
}

TEST_CASE("a request without a reservation does not take reserved units") {
  ReservationTracker plugin;
  REQUIRE(plugin.PodBound("p", {{"c", kRegular, 50}}, {{"c", {"A"}}}).ok());
  CHECK(plugin.ReservedUnits("A") == 50);
  CHECK(plugin.HasUnused(50));
  CHECK_FALSE(plugin.HasUnused(20));
  CHECK(plugin.Choose({{"A", 60}, {"B", 100}}, {}, 20)->front() == "B");
  CHECK(plugin.Choose({{"A", 70}, {"B", 10}}, {}, 20)->front() == "A");
  const auto none = plugin.Choose({{"A", 60}, {"B", 10}}, {}, 20);
  REQUIRE_FALSE(none.ok());
  CHECK(std::string(none.status().message()) ==
        "no single card has 20 units that are free and not reserved for a pod that the scheduler placed here; the "
        "largest has 10");
  CHECK(plugin.Choose({{"A", 100}, {"B", 100}}, {}, 200).status().code() == absl::StatusCode::kNotFound);
  plugin.PodRemoved("p");
  CHECK(plugin.Choose({{"A", 100}, {"B", 100}}, {}, 200)->size() == 2);
}

TEST_CASE("a reservation on an unhealthy card moves to another card") {
  ReservationTracker plugin;
  REQUIRE(plugin.PodBound("p", {{"c", kRegular, 50}}, {{"c", {"A"}}}).ok());
  CHECK(plugin.Choose({{"B", 50}}, {}, 50)->front() == "B");
}

TEST_CASE("a placement that does not match the pod is refused") {
  ReservationTracker plugin;
  CHECK_FALSE(plugin.PodBound("p", {{"c", kRegular, 50}}, {}).ok());
  CHECK_FALSE(plugin.PodBound("p", {{"c", kRegular, 200}}, {{"c", {"A"}}}).ok());
  CHECK(plugin.ReservedUnits("A") == 0);
}

// A plugin with reservations only: any units of the cards that the tracker chooses, with the real plugin's rule in
// Allocate (equal parts of the cards, and of one card up to 100 units unless the request is split).
class TrackerPlugin : public PluginUnderKubelet {
 public:
  explicit TrackerPlugin(std::uint64_t seed) : random_(seed) {}

  absl::StatusOr<std::vector<Unit>> Prefer(const std::set<Unit>& available, const std::set<Unit>& must,
                                           int size) override {
    CardUnitCounts free, started;
    for (const Unit& unit : available) ++free[unit.first];
    for (const Unit& unit : must) ++started[unit.first];
    const auto cards = tracker.Choose(free, started, size);
    if (!cards.ok()) return cards.status();
    std::vector<Unit> units(must.begin(), must.end());
    const auto each = static_cast<std::size_t>(size) / cards->size();
    for (const std::string& card : *cards) {
      std::vector<Unit> of_card;
      for (const Unit& unit : available) {
        if (unit.first == card && !must.contains(unit)) of_card.push_back(unit);
      }
      random_.Shuffle(of_card);
      if (must.empty() && cards->size() > 1) of_card.resize(std::min(of_card.size(), each));
      units.insert(units.end(), of_card.begin(), of_card.end());
    }
    units.resize(std::min<std::size_t>(units.size(), size));
    return units;
  }

  std::string Allocate(const std::set<Unit>& units) override {
    std::map<std::string, int> per_card;
    for (const Unit& unit : units) ++per_card[unit.first];
    for (const auto& [card, count] : per_card) {
      if (count != per_card.begin()->second) return "unequal units of " + std::to_string(per_card.size()) + " cards";
    }
    return "";
  }

  ReservationTracker tracker;

 private:
  Random random_;
};

// A node with its extender's ledger, its plugin and its kubelet. Events happen in any order.
class World {
 public:
  World(std::uint64_t seed, const PlacementPolicy& policy, bool knows_placements = true)
      : random_(seed),
        policy_(policy),
        knows_placements_(knows_placements),
        cards_(MakeCards(1 + random_.Below(8))),
        kubelet_(cards_, seed + 1),
        plugin_(seed + 2) {
    exact_ = random_.Below(2) == 0;
    Report();
  }

  // Tries to bind a random pod by the extender's rules.
  void Bind() {
    const std::string uid = "u" + std::to_string(++made_);
    const std::vector<ContainerUnits> containers = RandomContainers();
    const auto chains = ChainsOf(containers);
    if (!chains.ok() || !ledger_.FindBlocker(*chains).empty()) return;
    auto packed = PackPod(ledger_.Free(), *chains, {}, policy_);
    if (!std::holds_alternative<PodPacking>(packed)) return;
    ContainerCards placement;
    for (std::size_t c = 0; c < chains->size(); ++c) {
      std::vector<std::string> cards;
      for (int card : std::get<PodPacking>(packed).cards[c]) cards.push_back(ledger_.cards()[card].uuid);
      for (int container : (*chains)[c].containers) placement[containers[container].name] = cards;
    }
    ledger_.Put(uid, {.name = uid, .live = *MakeLivePod(containers, placement)});
    pods_[uid] = {containers, placement};
    if (knows_placements_) REQUIRE(plugin_.tracker.PodBound(uid, containers, placement).ok());
    waiting_.push_back(uid);
    ++bound;
  }

  void AdmitAny() {
    if (waiting_.empty()) return;
    std::swap(waiting_[random_.Below(waiting_.size())], waiting_.back());
    const std::string uid = waiting_.back();
    waiting_.pop_back();
    const std::string refusal = kubelet_.Admit(uid, pods_.at(uid).containers, plugin_);
    if (!refusal.empty()) {
      refused.push_back(uid + " " + refusal);
      plugin_.tracker.PodRemoved(uid);
      ledger_.Remove(uid);
      return;
    }
    const ContainerCards given = kubelet_.CardsOf(uid);
    for (const ContainerUnits& container : pods_.at(uid).containers) {
      INFO(uid << " " << container.name << " " << container.units << " on " << container.Cards());
      if (knows_placements_) REQUIRE(static_cast<int>(given.at(container.name).size()) == container.Cards());
      split += container.IsSplit();
    }
    plugin_.tracker.PodAdmitted(uid, given);
    ledger_.Put(uid, {.name = uid, .live = {}, .admitted = true});
    running_.push_back(uid);
    // An annotation that names pods may lag. One that does not is safe only while it is fresh (scheduler/README.md,
    // "Two accounts").
    if (!exact_ || random_.Below(2) == 0) Report();
  }

  void EndAny() {
    if (running_.empty()) return;
    std::swap(running_[random_.Below(running_.size())], running_.back());
    const std::string uid = running_.back();
    running_.pop_back();
    kubelet_.Remove(uid);
    // If the annotation names no pods, it must be fresh when the pod's object is deleted.
    if (!exact_ || random_.Below(2) == 0) Report();
    plugin_.tracker.PodRemoved(uid);
    ledger_.Remove(uid);
  }

  void DeleteWaiting() {
    if (waiting_.empty()) return;
    std::swap(waiting_[random_.Below(waiting_.size())], waiting_.back());
    plugin_.tracker.PodRemoved(waiting_.back());
    ledger_.Remove(waiting_.back());
    waiting_.pop_back();
  }

  void RestartPlugin() {
    plugin_.tracker = ReservationTracker();
    for (const auto& list : {waiting_, running_}) {
      for (const std::string& uid : list) {
        REQUIRE(plugin_.tracker.PodBound(uid, pods_.at(uid).containers, pods_.at(uid).placement).ok());
      }
    }
    for (const std::string& uid : running_) plugin_.tracker.PodAdmitted(uid, kubelet_.CardsOf(uid));
  }

  std::uint64_t Below(std::uint64_t bound) { return random_.Below(bound); }
  bool Waiting() const { return !waiting_.empty(); }

  int bound = 0, split = 0;
  std::vector<std::string> refused;

 private:
  struct PodInfo {
    std::vector<ContainerUnits> containers;
    ContainerCards placement;
  };

  static std::vector<std::string> MakeCards(std::uint64_t count) {
    std::vector<std::string> cards;
    for (std::uint64_t i = 0; i < count; ++i) cards.push_back("GPU-" + std::to_string(i));
    return cards;
  }

  int RandomUnits() {
    static constexpr int kUsual[] = {10, 20, 25, 30, 30, 40, 50, 50, 60, 75, 100, 200};
    return random_.Below(4) == 0 ? 1 + static_cast<int>(random_.Below(100)) : kUsual[random_.Below(12)];
  }

  std::vector<ContainerUnits> RandomContainers() {
    std::vector<ContainerUnits> containers;
    const std::uint64_t shape = random_.Below(4);
    if (shape == 0) {
      for (std::uint64_t i = 0; i < 1 + random_.Below(2); ++i) {
        containers.push_back({"i" + std::to_string(i),
                              random_.Below(3) == 0 ? ContainerKind::kSidecar : ContainerKind::kInit, RandomUnits()});
      }
    }
    const std::uint64_t regular = shape == 1 ? 1 + random_.Below(3) : 1;
    for (std::uint64_t i = 0; i < regular; ++i) {
      containers.push_back({"c" + std::to_string(i), kRegular, RandomUnits()});
    }
    for (ContainerUnits& container : containers) {
      const int cards = 1 + static_cast<int>(random_.Below(4));
      if (cards > 1 && container.units % cards == 0) container.cards = cards;
    }
    return containers;
  }

  void Report() {
    const auto use = kubelet_.Use();
    nlohmann::json annotation = nlohmann::json::array();
    for (const std::string& card : cards_) {
      int used = 0;
      nlohmann::json pods = nlohmann::json::object();
      if (auto found = use.find(card); found != use.end()) {
        for (const auto& [pod, units] : found->second) {
          used += units;
          for (const auto& [container, cards] : kubelet_.CardsOf(pod)) {
            if (std::find(cards.begin(), cards.end(), card) != cards.end()) pods[pod][container] = 1;
          }
        }
      }
      annotation.push_back({{"uuid", card}, {"free", kUnitsPerCard - used}});
      if (exact_) annotation.back()["pods"] = pods;
    }
    ledger_.SetCards(*ParseNodeCards(annotation.dump()));
  }

  Random random_;
  const PlacementPolicy& policy_;
  const bool knows_placements_;  // the plugin knows the placements
  std::vector<std::string> cards_;
  KubeletModel kubelet_;
  TrackerPlugin plugin_;
  NodeLedger ledger_;
  std::map<std::string, PodInfo> pods_;
  std::vector<std::string> waiting_, running_;
  int made_ = 0;
  bool exact_ = false;
};

TEST_CASE("units stay reserved for a pod's second container if the annotation shows only the first") {
  NodeLedger ledger;
  const auto cards = [](const char* pods_of_b, int free_of_a) {
    return *ParseNodeCards(R"([{"uuid":"A","free":)" + std::to_string(free_of_a) +
                           R"(,"pods":{"p":{"one":40}}},{"uuid":"B","free":100,"pods":)" + pods_of_b + "}]");
  };
  ledger.SetCards(*ParseNodeCards(R"([{"uuid":"A","free":100,"pods":{}},{"uuid":"B","free":100,"pods":{}}])"));
  ledger.Put("p",
             {.name = "p",
              .live = *MakeLivePod({{"one", kRegular, 40}, {"two", kRegular, 90}}, {{"one", {"A"}}, {"two", {"B"}}})});
  ledger.SetCards(cards("{}", 60));
  CHECK(ledger.Free().cards[1].free == 10);
  CHECK(ledger.Free().cards[0].free <= 60);
  ledger.SetCards(cards(R"({"p":{"two":90}})", 60));
  CHECK(ledger.Free().cards[0].free == 60);
}

TEST_CASE("1,000 accepted sets of pods, admitted in random order: none is refused") {
  const RequestMix mix = {
      {{.cards = 1, .units = 30}, 0.5}, {{.cards = 1, .units = 50}, 0.4}, {{.cards = 2, .units = 100}, 0.1}};
  int sets = 0, pods = 0;
  std::vector<std::unique_ptr<PlacementPolicy>> policies;
  for (const std::string& name : PolicyNames()) policies.push_back(*MakePolicy(name, mix, 100));
  for (std::uint64_t seed = 1; sets < 1000; ++seed) {
    World world(seed, *policies[seed % policies.size()]);
    for (int i = 0; i < 30; ++i) world.Bind();
    while (world.Waiting()) world.AdmitAny();
    INFO("seed " << seed);
    REQUIRE(world.refused == std::vector<std::string>{});
    sets += world.bound > 1;
    pods += world.bound;
  }
  CHECK(pods > 4000);
}

TEST_CASE("without knowledge of placements the plugin refuses some: the test can fail") {
  const auto policy = *MakePolicy("best-fit", {}, 100);
  std::size_t refused = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    World world(seed, *policy, /*knows_placements=*/false);
    for (int i = 0; i < 30; ++i) world.Bind();
    while (world.Waiting()) world.AdmitAny();
    refused += world.refused.size();
  }
  CHECK(refused > 0);
}

TEST_CASE("binds, admissions, ends, deletions and plugin restarts in random order: none is refused") {
  const auto policy = *MakePolicy("best-fit", {}, 100);
  int pods = 0, split = 0;
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    World world(seed, *policy);
    for (int i = 0; i < 150; ++i) {
      switch (world.Below(8)) {
        case 0:
        case 1:
        case 2:
          world.Bind();
          break;
        case 3:
        case 4:
          world.AdmitAny();
          break;
        case 5:
          world.EndAny();
          break;
        case 6:
          world.DeleteWaiting();
          break;
        default:
          world.RestartPlugin();
      }
      INFO("seed " << seed << ", step " << i);
      REQUIRE(world.refused == std::vector<std::string>{});
    }
    pods += world.bound;
    split += world.split;
  }
  CHECK(split > 200);
  CHECK(pods > 3000);
}

}  // namespace
}  // namespace sluice::scheduler
