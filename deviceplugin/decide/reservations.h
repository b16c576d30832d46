// Honours the scheduler extender's reservations on this node: decides which card a request gets, so that no pod that
// was bound here is refused here. Joins the agent's list of the node's pods (sluice/reservation.h) with kubelet's
// checkpoint; scheduler/placement/reservation_tracker.h decides. Used only if an extender is configured.
#ifndef SLUICE_DEVICEPLUGIN_DECIDE_RESERVATIONS_H_
#define SLUICE_DEVICEPLUGIN_DECIDE_RESERVATIONS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "deviceplugin/decide/unit_choice.h"
#include "deviceplugin/host/checkpoint.h"
#include "scheduler/placement/reservation_tracker.h"

namespace sluice::deviceplugin {

struct BoundPod {
  std::vector<scheduler::ContainerUnits> containers;  // containers with units, in kubelet's order
  scheduler::ContainerCards placement;                // empty: not placed by the extender
  uint64_t order = 0;                                 // kubelet heard of pods with smaller numbers earlier
  std::map<std::string, int> grown;                   // by card: units granted beyond its own
};

// By pod uid. DATA_LOSS: another version, or not the format of sluice/reservation.h.
absl::StatusOr<std::map<std::string, BoundPod>> ParseReservations(std::string_view json);

// The ids that are not withheld.
std::vector<std::string> Without(std::span<const std::string> ids, const std::set<std::string>& withheld);

// Thread-safe.
class Reservations {
 public:
  // How long a request waits for its reservation: the agent hears of a pod by the same watch as kubelet, perhaps later.
  static constexpr std::chrono::milliseconds kMaxWait{200};
  using Checkpoint = absl::StatusOr<std::vector<CheckpointEntry>>;

  explicit Reservations(std::chrono::milliseconds max_wait = kMaxWait) : max_wait_(max_wait) {}

  // The pods of the node that have not ended. Returns a message for each reservation that cannot be honoured.
  std::vector<std::string> SetPods(std::map<std::string, BoundPod> pods);
  void SetCheckpoint(std::vector<CheckpointEntry> checkpoint);

  // For GetPreferredAllocation, like ChooseUnits: units of the card that is reserved for a request of this size, or of
  // a card where they break no reservation. If there is no such card, the result does not fit and CheckAllocation
  // refuses it.
  // `withheld`: devices that must not be given out, asked for once the reservation has arrived; may be empty.
  UnitChoice Prefer(const UnitRequest& request, const scheduler::CardPlaces& places,
                    const std::function<std::set<std::string>()>& withheld = {});

  // For Allocate. Accepts the units that Prefer returned, or refuses them with the reason that Prefer found. Other
  // units, which kubelet took without asking (the rest of a NUMA node, an init container's), are accepted if they break
  // no reservation by the checkpoint, which is read only for them. `cards`: as for DecideGrant.
  absl::Status CheckAllocation(std::span<const std::string> ids, const std::function<Checkpoint()>& read_checkpoint,
                               int cards = 0);

 private:
  struct PreferredUnits {
    std::set<std::string> ids;
    absl::Status status;
  };

  void ApplyCheckpoint() SLUICE_REQUIRES(mutex_);  // brings tracker_ up to date with pods_ and checkpoint_
  // Units of each card that no live pod holds. Adds to `held` those of `ids` that a live pod holds.
  std::map<std::string, int> FreeUnits(const std::set<std::string>& cards, std::span<const std::string> ids,
                                       std::map<std::string, int>* held) const SLUICE_REQUIRES(mutex_);

  const std::chrono::milliseconds max_wait_;
  Mutex mutex_;
  Condition changed_;
  std::map<std::string, BoundPod> pods_ SLUICE_GUARDED_BY(mutex_);
  std::vector<CheckpointEntry> checkpoint_ SLUICE_GUARDED_BY(mutex_);
  scheduler::ReservationTracker tracker_ SLUICE_GUARDED_BY(mutex_);
  std::optional<PreferredUnits> preferred_ SLUICE_GUARDED_BY(mutex_);  // Prefer's last answer
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_DEVICEPLUGIN_DECIDE_RESERVATIONS_H_
