#include "deviceplugin/decide/grown_shares.h"

#include <algorithm>

#include "deviceplugin/decide/device_id.h"
#include "deviceplugin/decide/grant.h"
#include "deviceplugin/text.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {

std::set<std::string> WithheldUnits(const std::map<std::string, BoundPod>& pods,
                                    const std::vector<CheckpointEntry>& checkpoint,
                                    const std::function<bool(const std::string&)>& lives,
                                    const std::map<std::string, int>& claimed) {
  std::map<std::string, int> grown = claimed;  // by card
  for (const auto& [uid, pod] : pods) {
    if (pod.grown.empty() || !lives(uid)) continue;
    for (const auto& [card, units] : pod.grown) grown[card] += units;
  }
  std::set<std::string> withheld;
  if (std::ranges::all_of(grown, [](const auto& card) { return card.second <= 0; })) return withheld;
  // How likely a device is free: kubelet keeps the entry of an ended pod until it needs the units.
  enum Rank { kFree, kOfEnded, kOfUnknown, kHeld };
  std::map<std::string, Rank> ranks;
  for (const CheckpointEntry& entry : checkpoint) {
    const Rank rank = pods.contains(entry.pod_uid) ? kHeld : lives(entry.pod_uid) ? kOfUnknown : kOfEnded;
    for (const std::string& id : entry.device_ids) ranks[id] = std::max(ranks[id], rank);
  }
  for (const auto& [card, units] : grown) {
    int missing = units;
    for (const Rank wanted : {kFree, kOfEnded, kOfUnknown}) {
      for (int unit = SLUICE_UNITS_PER_GPU - 1; unit >= 0 && missing > 0; --unit) {
        std::string id = FormatDeviceId(card, unit);
        const auto rank = ranks.find(id);
        if ((rank == ranks.end() ? kFree : rank->second) != wanted) continue;
        withheld.insert(std::move(id));
        --missing;
      }
    }
  }
  return withheld;
}

bool GrownShares::SetPods(std::map<std::string, BoundPod> pods) {
  MutexLock lock(mutex_);
  pods_ = std::move(pods);
  return Update();
}

bool GrownShares::SetCheckpoint(std::vector<CheckpointEntry> checkpoint) {
  MutexLock lock(mutex_);
  checkpoint_ = std::move(checkpoint);
  return Update();
}

bool GrownShares::SetClaimed(std::map<std::string, int> units) {
  MutexLock lock(mutex_);
  claimed_ = std::move(units);
  return Update();
}

bool GrownShares::Update() {
  std::set<std::string> now = WithheldUnits(pods_, checkpoint_, lives_, claimed_);
  if (now == withheld_) return false;
  withheld_ = std::move(now);
  return true;
}

std::set<std::string> GrownShares::Withheld() const {
  MutexLock lock(mutex_);
  return withheld_;
}

absl::Status GrownShares::CheckAllocation(std::span<const std::string> ids) const {
  MutexLock lock(mutex_);
  for (const std::string& text : ids) {
    if (!withheld_.contains(text)) continue;
    const auto id = ParseDeviceId(text);
    if (!id.ok()) continue;
    const auto of_card = std::ranges::count_if(
        withheld_, [&](const std::string& other) { return other.starts_with(id->uuid + SLUICE_DEVICE_ID_SEPARATOR); });
    if (claimed_.contains(id->uuid)) {
      return Refusal("claimed", StrCat(of_card, " free percent of GPU ", id->uuid,
                                       " are held by claims of Dynamic Resource Allocation, from before this node's "
                                       "switch to the device plugin. Delete their pods, or request less"));
    }
    return Refusal("grown", StrCat(of_card, " free percent of GPU ", id->uuid,
                                   " are granted to running pods that asked for more, and too few are left for this "
                                   "one. Delete the pod so that it is placed again, or request less"));
  }
  return absl::OkStatus();
}

}  // namespace sluice::deviceplugin
