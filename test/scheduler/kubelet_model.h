// A model of kubelet's device manager: its choice of units for a container (pkg/kubelet/cm/devicemanager/manager.go:
// Allocate, devicesToAllocate). The plugin is a parameter.
#ifndef SLUICE_TEST_SCHEDULER_KUBELET_MODEL_H_
#define SLUICE_TEST_SCHEDULER_KUBELET_MODEL_H_

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/chains.h"
#include "scheduler/placement/pod_reservations.h"
#include "scheduler/placement/random.h"

namespace sluice::scheduler {

using Unit = std::pair<std::string, int>;  // card, number

// The calls that kubelet makes to a device plugin.
class PluginUnderKubelet {
 public:
  virtual ~PluginUnderKubelet() = default;
  // GetPreferredAllocation. `available` includes `must`.
  virtual absl::StatusOr<std::vector<Unit>> Prefer(const std::set<Unit>& available, const std::set<Unit>& must,
                                                   int size) = 0;
  // Allocate: empty, or the reason of the refusal.
  virtual std::string Allocate(const std::set<Unit>& units) = 0;
  // Kubelet has written its checkpoint, as it does after each container.
  virtual void Checkpointed(const std::string& /*pod*/, const std::string& /*container*/,
                            const std::set<Unit>& /*units*/) {}
};

class KubeletModel {
 public:
  KubeletModel(std::vector<std::string> cards, std::uint64_t seed) : cards_(std::move(cards)), random_(seed) {}

  // Empty: admitted. Otherwise the reason, and the pod holds nothing.
  std::string Admit(const std::string& pod, const std::vector<ContainerUnits>& containers, PluginUnderKubelet& plugin) {
    std::set<Unit> reusable;
    for (const ContainerUnits& container : containers) {
      if (container.units == 0) continue;
      std::set<Unit> got;
      const std::string refusal = Allocate(container, reusable, plugin, got);
      if (!refusal.empty()) {
        Remove(pod);
        return container.name + ": " + refusal;
      }
      plugin.Checkpointed(pod, container.name, got);
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

  // By container name.
  using Held = std::map<std::string, std::set<Unit>>;
  const Held& HeldBy(const std::string& pod) const { return held_.at(pod); }

  ContainerCards CardsOf(const std::string& pod) const {
    ContainerCards cards;
    for (const auto& [container, units] : held_.at(pod)) {
      std::set<std::string> set;
      for (const Unit& unit : units) set.insert(unit.first);
      cards[container].assign(set.begin(), set.end());
    }
    return cards;
  }

  // Units by pod, by card, as pod-resources would report them.
  std::map<std::string, std::map<std::string, int>> Use() const {
    std::map<std::string, std::map<std::string, int>> use;
    for (const auto& [pod, containers] : held_) {
      std::set<Unit> units;
      for (const auto& [name, set] : containers) units.insert(set.begin(), set.end());
      for (const Unit& unit : units) ++use[unit.first][pod];
    }
    return use;
  }

  const std::vector<std::string>& cards() const { return cards_; }

 private:
  std::string Allocate(const ContainerUnits& container, const std::set<Unit>& reusable, PluginUnderKubelet& plugin,
                       std::set<Unit>& got) {
    // "Allocates from reusableDevices list first": in the order of a Go map, so in any order.
    std::vector<Unit> reuse(reusable.begin(), reusable.end());
    random_.Shuffle(reuse);
    for (const Unit& unit : reuse) {
      if (static_cast<int>(got.size()) < container.units) got.insert(unit);
    }
    const int needed = container.units - static_cast<int>(got.size());
    if (needed > 0) {
      std::set<Unit> available;
      for (const std::string& card : cards_) {
        for (int number = 0; number < kUnitsPerCard; ++number) {
          if (!taken_.contains({card, number})) available.insert({card, number});
        }
      }
      if (static_cast<int>(available.size()) < needed) return "requested number of devices unavailable";
      available.insert(got.begin(), got.end());
      const auto preferred = plugin.Prefer(available, got, container.units);
      if (!preferred.ok()) return std::string(preferred.status().message());
      for (const Unit& unit : *preferred) {
        if (static_cast<int>(got.size()) < container.units && available.contains(unit)) got.insert(unit);
      }
      if (static_cast<int>(got.size()) < container.units) return "the plugin preferred too few";
    }
    return plugin.Allocate(got);
  }

  std::vector<std::string> cards_;
  Random random_;
  std::set<Unit> taken_;
  std::map<std::string, Held> held_;  // by pod
};

}  // namespace sluice::scheduler

#endif  // SLUICE_TEST_SCHEDULER_KUBELET_MODEL_H_
