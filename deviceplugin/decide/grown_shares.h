// Keeps the units off new pods that the agent granted to running ones beyond their own (sluice/reservation.h, "grown"),
// and those that claims of Dynamic Resource Allocation hold, if the DRA driver served this node before. The agent may
// be down by now, so the pods' own folders say which of them still live.
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_GROWN_SHARES_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_GROWN_SHARES_H_

#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/mutex.h"
#include "deviceplugin/decide/reservations.h"
#include "deviceplugin/host/checkpoint.h"

namespace sluice::deviceplugin {

// The devices to withhold: on each card as many as its live pods have grown in sum and its claims hold, free ones, the
// highest first. `lives`: whether the pod with this uid still exists. `claimed`: units by card.
std::set<std::string> WithheldUnits(const std::map<std::string, BoundPod>& pods,
                                    const std::vector<CheckpointEntry>& checkpoint,
                                    const std::function<bool(const std::string&)>& lives,
                                    const std::map<std::string, int>& claimed = {});

// Thread-safe.
class GrownShares {
 public:
  explicit GrownShares(std::function<bool(const std::string&)> lives) : lives_(std::move(lives)) {}

  // Each returns whether other devices are withheld now.
  bool SetPods(std::map<std::string, BoundPod> pods) SLUICE_EXCLUDES(mutex_);
  bool SetCheckpoint(std::vector<CheckpointEntry> checkpoint) SLUICE_EXCLUDES(mutex_);
  bool SetClaimed(std::map<std::string, int> units) SLUICE_EXCLUDES(mutex_);

  std::set<std::string> Withheld() const SLUICE_EXCLUDES(mutex_);
  // For Allocate: refuses withheld devices.
  absl::Status CheckAllocation(std::span<const std::string> ids) const SLUICE_EXCLUDES(mutex_);

 private:
  bool Update() SLUICE_REQUIRES(mutex_);

  const std::function<bool(const std::string&)> lives_;
  mutable Mutex mutex_;
  std::map<std::string, BoundPod> pods_ SLUICE_GUARDED_BY(mutex_);
  std::vector<CheckpointEntry> checkpoint_ SLUICE_GUARDED_BY(mutex_);
  std::map<std::string, int> claimed_ SLUICE_GUARDED_BY(mutex_);
  std::set<std::string> withheld_ SLUICE_GUARDED_BY(mutex_);
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_GROWN_SHARES_H_
