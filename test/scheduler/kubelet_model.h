// Kubelet's device manager, as far as it decides which units a container gets (pkg/kubelet/cm/devicemanager/manager.go:
// Allocate, devicesToAllocate), and the device plugin's own rule in Allocate: one card for up to 100 units, else whole
// cards.
#ifndef TEST_SCHEDULER_KUBELET_MODEL_H_
#define TEST_SCHEDULER_KUBELET_MODEL_H_

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/chains.h"
#include "scheduler/promise_keeper.h"
#include "scheduler/random.h"

namespace sluice::scheduler {

class KubeletModel {
 public:
  using Unit = std::pair<std::string, int>;  // card, number

  KubeletModel(std::vector<std::string> cards, std::uint64_t seed) : cards_(std::move(cards)), random_(seed) {}

  // Empty: admitted. Otherwise the reason, and nothing is held.
  std::string Admit(const std::string& pod, const std::vector<ContainerUnits>& containers, PromiseKeeper& plugin) {
    std::set<Unit> reusable;
    for (const ContainerUnits& container : containers) {
      if (container.units == 0) continue;
      std::set<Unit> got;
      const std::string refusal = Allocate(container, reusable, plugin, got);
      if (!refusal.empty()) {
        Remove(pod);
        return container.name + ": " + refusal;
      }
      for (const Unit& unit : got) {
        taken_.insert(unit);
        held_[pod][container.name].insert(unit);
        if (container.kind == ContainerKind::kInit) {
          reusable.insert(unit);
        } else {
          reusable.erase(unit);
        }
      }
    }
    return "";
  }

  void Remove(const std::string& pod) {
    for (const auto& [container, units] : held_[pod]) {
      for (const Unit& unit : units) taken_.erase(unit);
    }
    held_.erase(pod);
  }

  ContainerCards CardsOf(const std::string& pod) const {
    ContainerCards cards;
    for (const auto& [container, units] : held_.at(pod)) {
      std::set<std::string> set;
      for (const Unit& unit : units) set.insert(unit.first);
      cards[container].assign(set.begin(), set.end());
    }
    return cards;
  }

  // By card: units by pod, as pod-resources would tell.
  std::map<std::string, std::map<std::string, int>> Use() const {
    std::map<std::string, std::map<std::string, int>> use;
    for (const auto& [pod, containers] : held_) {
      std::set<Unit> units;
      for (const auto& [name, set] : containers) units.insert(set.begin(), set.end());
      for (const Unit& unit : units) ++use[unit.first][pod];
    }
    return use;
  }

 private:
  std::string Allocate(const ContainerUnits& container, const std::set<Unit>& reusable, PromiseKeeper& plugin,
                       std::set<Unit>& got) {
    // "Allocates from reusableDevices list first": in the order of a Go map, that is, any.
    std::vector<Unit> reuse(reusable.begin(), reusable.end());
    random_.Shuffle(reuse);
    for (const Unit& unit : reuse) {
      if (static_cast<int>(got.size()) < container.units) got.insert(unit);
    }
    const int needed = container.units - static_cast<int>(got.size());
    if (needed > 0) {
      CardUnitCounts free, must;
      std::map<std::string, std::vector<Unit>> available;
      int sum = 0;
      for (const std::string& card : cards_) {
        for (int number = 0; number < kUnitsPerCard; ++number) {
          if (taken_.contains({card, number})) continue;
          available[card].push_back({card, number});
          ++free[card];
          ++sum;
        }
      }
      if (sum < needed) return "requested number of devices unavailable";
      for (const Unit& unit : got) {
        ++free[unit.first];
        ++must[unit.first];
      }
      const auto cards = plugin.Choose(free, must, container.units);
      if (!cards.ok()) return std::string(cards.status().message());
      for (const std::string& card : *cards) {
        random_.Shuffle(available[card]);
        for (const Unit& unit : available[card]) {
          if (static_cast<int>(got.size()) < container.units) got.insert(unit);
        }
      }
      if (static_cast<int>(got.size()) < container.units) return "the plugin preferred too few";
    }
    return Judge(got);
  }

  // The plugin's Allocate.
  static std::string Judge(const std::set<Unit>& got) {
    std::map<std::string, int> per_card;
    for (const Unit& unit : got) ++per_card[unit.first];
    if (per_card.size() == 1) return "";
    for (const auto& [card, count] : per_card) {
      if (count != kUnitsPerCard) return "units of " + std::to_string(per_card.size()) + " cards";
    }
    return "";
  }

  std::vector<std::string> cards_;
  Random random_;
  std::set<Unit> taken_;
  std::map<std::string, std::map<std::string, std::set<Unit>>> held_;  // pod -> container -> units
};

}  // namespace sluice::scheduler

#endif  // TEST_SCHEDULER_KUBELET_MODEL_H_
