// The device plugin of one simulated node: its own decisions (reservations, unit choice, grant), without gRPC, NVML and
// kubelet's files.
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
#include "deviceplugin/decide/waiting_requests.h"
#include "scheduler/extender/pod_facts.h"
#include "test/scheduler/kubelet_model.h"

namespace sluice::scheduler {

class FleetPlugin : public PluginUnderKubelet {
 public:
  FleetPlugin(const std::vector<std::string>& cards, bool extender) {
    if (extender)
      reservations_.emplace(
          std::chrono::milliseconds(0));  // no wait: every pod that is admitted here has been reported before
    for (std::size_t i = 0; i < cards.size(); ++i) {
      deviceplugin::Card card;
      card.uuid = cards[i];
      card.numa = static_cast<int>(i / 4);
      inventory_.cards.push_back(card);
    }
  }

  // The agent reports a pod that is bound here; kubelet's checkpoint reports its units.
  void PodBound(const PodFacts& pod) {
    deviceplugin::BoundPod& bound = pods_[pod.uid];
    bound.placement = pod.placement;
    for (const ContainerUnits& container : pod.containers) {
      if (container.units > 0) bound.containers.push_back(container);
    }
    bound.order = ++bound_;
    waiting_.SetPods(pods_);
    if (reservations_) reservations_->SetPods(pods_);
  }
  void PodAdmitted(const std::string& pod, const KubeletModel::Held& held) {
    std::erase_if(checkpoint_, [&](const deviceplugin::CheckpointEntry& entry) { return entry.pod_uid == pod; });
    for (const auto& [container, units] : held) {
      deviceplugin::CheckpointEntry entry;
      entry.pod_uid = pod;
      entry.container = container;
      entry.device_ids = IdsOf(units);
      checkpoint_.push_back(std::move(entry));
    }
    waiting_.SetCheckpoint(checkpoint_);
    if (reservations_) reservations_->SetCheckpoint(checkpoint_);
  }
  void PodRemoved(const std::string& pod) {
    pods_.erase(pod);
    std::erase_if(checkpoint_, [&](const deviceplugin::CheckpointEntry& entry) { return entry.pod_uid == pod; });
    waiting_.SetPods(pods_);
    waiting_.SetCheckpoint(checkpoint_);
    if (!reservations_) return;
    reservations_->SetPods(pods_);
    reservations_->SetCheckpoint(checkpoint_);
  }

  absl::StatusOr<std::vector<Unit>> Prefer(const std::set<Unit>& available, const std::set<Unit>& must,
                                           int size) override {
    const std::vector<std::string> ids = IdsOf(available), must_ids = IdsOf(must);
    const auto places = inventory_.Places();
    const int cards = waiting_.CardsFor(size, static_cast<int>(places.size()), [this] { return checkpoint_; });
    const deviceplugin::UnitRequest request{ids, must_ids, size, cards};
    const deviceplugin::UnitChoice choice =
        reservations_ ? reservations_->Prefer(request, places) : deviceplugin::ChooseUnits(request, places);
    waiting_.SetAnswer(choice.ids, cards);
    std::vector<Unit> units;
    for (const std::string& id : choice.ids) {
      const auto parsed = deviceplugin::ParseDeviceId(id);
      units.emplace_back(parsed->uuid, parsed->unit);
    }
    return units;
  }

  std::string Allocate(const std::set<Unit>& units) override {
    const std::vector<std::string> ids = IdsOf(units);
    const int cards = waiting_.CardsOf(ids, [this] { return checkpoint_; });
    const auto grant = deviceplugin::DecideGrant(ids, inventory_, cards);
    if (!grant.ok()) return std::string(grant.status().message());
    if (!reservations_) return "";
    return std::string(reservations_->CheckAllocation(ids, [this] { return checkpoint_; }, cards).message());
  }

  void Checkpointed(const std::string& pod, const std::string& container, const std::set<Unit>& units) override {
    deviceplugin::CheckpointEntry entry;
    entry.pod_uid = pod;
    entry.container = container;
    entry.device_ids = IdsOf(units);
    checkpoint_.push_back(std::move(entry));
  }

 private:
  static std::vector<std::string> IdsOf(const std::set<Unit>& units) {
    std::vector<std::string> ids;
    ids.reserve(units.size());
    for (const Unit& unit : units) ids.push_back(deviceplugin::FormatDeviceId(unit.first, unit.second));
    return ids;
  }

  deviceplugin::Inventory inventory_;
  deviceplugin::WaitingRequests waiting_{std::chrono::milliseconds(0)};
  std::uint64_t bound_ = 0;
  std::map<std::string, deviceplugin::BoundPod> pods_;
  std::vector<deviceplugin::CheckpointEntry> checkpoint_;
  std::optional<deviceplugin::Reservations> reservations_;  // if an extender places pods
};

}  // namespace sluice::scheduler

#endif  // SLUICE_TEST_SCHEDULER_FLEET_PLUGIN_H_
