// The device plugin of one simulated node: its own decisions (reservations, packing, judgement of a request), without
// gRPC, NVML and kubelet's files.
#ifndef SLUICE_TEST_SCHEDULER_FLEET_PLUGIN_H_
#define SLUICE_TEST_SCHEDULER_FLEET_PLUGIN_H_

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/decide/grant.h"
#include "deviceplugin/decide/reservations.h"
#include "deviceplugin/decide/unit_choice.h"
#include "kubelet_model.h"
#include "scheduler/extender/pod_facts.h"

namespace sluice::scheduler {

class FleetPlugin : public PluginUnderKubelet {
 public:
  FleetPlugin(const std::vector<std::string>& cards, bool extender) {
    if (extender) reservations_.emplace(std::chrono::milliseconds(0));  // whoever is admitted here has been told of
    for (std::size_t i = 0; i < cards.size(); ++i) {
      deviceplugin::Card card;
      card.uuid = cards[i];
      card.numa = static_cast<int>(i / 4);
      inventory_.cards.push_back(card);
      numa_[card.uuid] = card.numa;
    }
  }

  // The agent tells it of a pod that is bound here, kubelet's checkpoint what that pod got.
  void Told(const PodFacts& pod) {
    deviceplugin::ToldPod& told = told_[pod.uid];
    told.placement = pod.placement;
    for (const ContainerUnits& container : pod.containers) {
      if (container.units > 0) told.containers.push_back(container);
    }
    if (reservations_) reservations_->Told(told_);
  }
  void Given(const std::string& pod, const KubeletModel::Held& held) {
    for (const auto& [container, units] : held) {
      deviceplugin::GivenOut given;
      given.pod_uid = pod;
      given.container = container;
      given.device_ids = IdsOf(units);
      given_.push_back(std::move(given));
    }
    if (reservations_) reservations_->Given(given_);
  }
  void Gone(const std::string& pod) {
    told_.erase(pod);
    std::erase_if(given_, [&](const deviceplugin::GivenOut& given) { return given.pod_uid == pod; });
    if (!reservations_) return;
    reservations_->Told(told_);
    reservations_->Given(given_);
  }

  absl::StatusOr<std::vector<Unit>> Prefer(const std::set<Unit>& available, const std::set<Unit>& must,
                                           int size) override {
    const std::vector<std::string> ids = IdsOf(available), must_ids = IdsOf(must);
    const deviceplugin::PackRequest request{ids, must_ids, size};
    const deviceplugin::Pack pack =
        reservations_ ? reservations_->Prefer(request, numa_) : deviceplugin::ChooseUnits(request, numa_);
    std::vector<Unit> units;
    for (const std::string& id : pack.ids) {
      const auto parsed = deviceplugin::ParseDeviceId(id);
      units.emplace_back(parsed->uuid, parsed->unit);
    }
    return units;
  }

  std::string Allocate(const std::set<Unit>& units) override {
    const std::vector<std::string> ids = IdsOf(units);
    const auto grant = deviceplugin::JudgeRequest(ids, inventory_);
    if (!grant.ok()) return std::string(grant.status().message());
    if (!reservations_) return "";
    return std::string(reservations_->MayAllocate(ids, [this] { return given_; }).message());
  }

 private:
  static std::vector<std::string> IdsOf(const std::set<Unit>& units) {
    std::vector<std::string> ids;
    ids.reserve(units.size());
    for (const Unit& unit : units) ids.push_back(deviceplugin::FormatDeviceId(unit.first, unit.second));
    return ids;
  }

  deviceplugin::Inventory inventory_;
  std::map<std::string, int> numa_;
  std::map<std::string, deviceplugin::ToldPod> told_;
  std::vector<deviceplugin::GivenOut> given_;
  std::optional<deviceplugin::Reservations> reservations_;  // where an extender places pods
};

}  // namespace sluice::scheduler

#endif  // SLUICE_TEST_SCHEDULER_FLEET_PLUGIN_H_
