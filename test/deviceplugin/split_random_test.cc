// Parts of several cards under kubelet's rules: random pods on one node, with the plugin's and the extender's own code.
#include <algorithm>
#include <catch2/catch_test_macros.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "scheduler/placement/node_ledger.h"
#include "scheduler/placement/pod_packing.h"
#include "test/scheduler/fleet_plugin.h"

namespace sluice::deviceplugin {
namespace {

using Count = std::map<std::string, int>;
using scheduler::ContainerKind;
using scheduler::ContainerUnits;

constexpr auto kRegular = ContainerKind::kRegular;
constexpr auto kInit = ContainerKind::kInit;

// One node with kubelet's rules and the plugin's own code. Pods are placed by the extender's code, or only by units, as
// the scheduler does without it.
class SplitWorld {
 public:
  SplitWorld(std::uint64_t seed, bool extender)
      : random_(seed),
        extender_(extender),
        cards_(Names(1 + static_cast<int>(random_.Below(8)))),
        kubelet_(cards_, seed + 1),
        plugin_(cards_, extender) {
    Report();
  }

  void Bind() {
    scheduler::PodFacts pod;
    pod.uid = "u" + std::to_string(++made_);
    const std::uint64_t count = 1 + random_.Below(2);
    for (std::uint64_t i = 0; i < count; ++i) pod.containers.push_back(RandomContainer("c" + std::to_string(i)));
    if (random_.Below(4) == 0) {  // an init container's units pass to the first container
      ContainerUnits init = pod.containers.front();
      init.name = "init";
      init.kind = kInit;
      pod.containers.insert(pod.containers.begin(), init);
    }
    const auto chains = scheduler::ChainsOf(pod.containers);
    REQUIRE(chains.ok());
    if (extender_) {
      if (!ledger_.FindBlocker(*chains).empty()) return;
      const auto packed = scheduler::PackPod(ledger_.Free(), *chains, {}, *policy_);
      const auto* const packing = std::get_if<scheduler::PodPacking>(&packed);
      if (packing == nullptr) return;
      for (std::size_t c = 0; c < chains->size(); ++c) {
        for (const int container : (*chains)[c].containers) {
          for (const int card : packing->cards[c]) {
            pod.placement[pod.containers[container].name].push_back(ledger_.cards()[card].uuid);
          }
        }
      }
      ledger_.Put(pod.uid, {.name = pod.uid, .live = *scheduler::MakeLivePod(pod.containers, pod.placement)});
    }
    plugin_.PodBound(pod);
    pods_[pod.uid] = pod.containers;
    waiting_.push_back(pod.uid);
  }

  // Kubelet admits in the order of its watch; with the extender's reservations in any.
  void Admit() {
    if (waiting_.empty()) return;
    const std::size_t at = extender_ ? random_.Below(waiting_.size()) : 0;
    const std::string uid = waiting_[at];
    waiting_.erase(waiting_.begin() + static_cast<std::ptrdiff_t>(at));
    const auto before = kubelet_.Use();
    const std::string refusal = kubelet_.Admit(uid, pods_.at(uid), plugin_);
    if (!refusal.empty()) {
      INFO(uid << ": " << refusal);
      CHECK_FALSE(extender_);  // it has reserved the cards
      CHECK(kubelet_.Use() == before);
      if (pods_.at(uid).size() == 1)
        CHECK(CardsWithRoom(pods_.at(uid).front(), before) < pods_.at(uid).front().Cards());
      ++refused;
      // Its object stays a while: it must not be taken for the next pod. One that kubelet refused without a question
      // would be, until the agent says that it failed; CheckStart guards against that.
      const bool was_asked = refusal.find("requested number of devices unavailable") == std::string::npos;
      if (was_asked && random_.Below(2) == 0) return refused_.push_back(uid);
      return Forget(uid);
    }
    const auto& held = kubelet_.HeldBy(uid);
    for (const ContainerUnits& container : pods_.at(uid)) {
      Count per_card;
      for (const scheduler::Unit& unit : held.at(container.name)) ++per_card[unit.first];
      INFO(uid << " " << container.name << " " << container.units << " on " << container.Cards());
      REQUIRE(static_cast<int>(per_card.size()) == container.Cards());
      for (const auto& [card, units] : per_card) REQUIRE(units == container.units / container.Cards());
      split += container.IsSplit();
    }
    for (const auto& [card, by_pod] : kubelet_.Use()) {
      int sum = 0;
      for (const auto& [pod, units] : by_pod) sum += units;
      REQUIRE(sum <= 100);
    }
    plugin_.PodAdmitted(uid, held);
    running_.push_back(uid);
    if (extender_) ledger_.Put(uid, {.name = uid, .live = {}, .admitted = true});
    Report();
  }

  void End() {
    if (!refused_.empty()) {
      Forget(refused_.back());
      refused_.pop_back();
    }
    if (running_.empty()) return;
    std::swap(running_[random_.Below(running_.size())], running_.back());
    kubelet_.Remove(running_.back());
    Forget(running_.back());
    running_.pop_back();
    Report();
  }

  std::uint64_t Below(std::uint64_t bound) { return random_.Below(bound); }

  int split = 0, refused = 0;

 private:
  static std::vector<std::string> Names(int count) {
    std::vector<std::string> out;
    for (int i = 0; i < count; ++i) out.push_back("GPU-" + std::to_string(i));
    return out;
  }

  int CardsWithRoom(const ContainerUnits& container, const auto& use) const {
    return static_cast<int>(std::ranges::count_if(cards_, [&](const std::string& card) {
      int used = 0;
      if (const auto found = use.find(card); found != use.end()) {
        for (const auto& [pod, units] : found->second) used += units;
      }
      return 100 - used >= container.units / container.Cards();
    }));
  }

  // Few sizes, so that equal sums of different parts meet: 100 is 1 x 100, 2 x 50 and 4 x 25.
  ContainerUnits RandomContainer(std::string name) {
    static constexpr int kUnits[] = {20, 60, 60, 100, 100, 100, 200};
    ContainerUnits out{std::move(name), kRegular, kUnits[random_.Below(7)], 0};
    const int cards = 1 << random_.Below(4);
    if (out.units % cards == 0 && out.units <= 100 * cards && cards > 1) out.cards = cards;
    return out;
  }

  void Forget(const std::string& uid) {
    plugin_.PodRemoved(uid);
    if (extender_) ledger_.Remove(uid);
  }

  void Report() {
    const auto use = kubelet_.Use();
    nlohmann::json annotation = nlohmann::json::array();
    for (std::size_t i = 0; i < cards_.size(); ++i) {
      int used = 0;
      nlohmann::json pods = nlohmann::json::object();
      if (const auto found = use.find(cards_[i]); found != use.end()) {
        for (const auto& [pod, units] : found->second) {
          used += units;
          for (const auto& [container, cards] : kubelet_.CardsOf(pod)) {
            if (std::ranges::find(cards, cards_[i]) != cards.end()) pods[pod][container] = 1;
          }
        }
      }
      annotation.push_back({{"uuid", cards_[i]}, {"free", 100 - used}, {"numa", i / 4}, {"pods", pods}});
    }
    ledger_.SetCards(*scheduler::ParseNodeCards(annotation.dump()));
  }

  scheduler::Random random_;
  const bool extender_;
  const std::vector<std::string> cards_;
  const std::unique_ptr<scheduler::PlacementPolicy> policy_ = *scheduler::MakePolicy("best-fit", {}, 100);
  scheduler::KubeletModel kubelet_;
  scheduler::FleetPlugin plugin_;
  scheduler::NodeLedger ledger_;
  std::map<std::string, std::vector<ContainerUnits>> pods_;
  std::vector<std::string> waiting_, running_, refused_;
  int made_ = 0;
};

}  // namespace

TEST_CASE("split: random pods get all of their cards with equal parts, or nothing") {
  for (const bool extender : {false, true}) {
    int split = 0, refused = 0;
    for (std::uint64_t seed = 1; seed <= 150; ++seed) {
      INFO("seed " << seed << " extender " << extender);
      SplitWorld world(seed, extender);
      for (int step = 0; step < 80; ++step) {
        switch (world.Below(4)) {
          case 0:
          case 1:
            world.Bind();
            break;
          case 2:
            world.Admit();
            break;
          default:
            world.End();
        }
      }
      split += world.split;
      refused += world.refused;
    }
    CHECK(split > 300);
    CHECK((refused > 0) == !extender);
  }
}

}  // namespace sluice::deviceplugin
