// Which reservations on a node are still open. Extender and device plugin keep this same account, so that they agree.
#ifndef SLUICE_SCHEDULER_PLACEMENT_POD_RESERVATIONS_H_
#define SLUICE_SCHEDULER_PLACEMENT_POD_RESERVATIONS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/chains.h"

namespace sluice::scheduler {

using ContainerCards = std::map<std::string, std::vector<std::string>>;  // card uuids by container name

// The value of the annotation sluice.dev/placement. Error: not an object of arrays of strings.
absl::StatusOr<ContainerCards> ParsePlacement(const std::string& json);
std::string FormatPlacement(const ContainerCards& cards);

// A chain's cards, sorted: the union over the containers that share it.
std::vector<std::string> CardsOf(const Chain& chain, const std::vector<ContainerUnits>& containers,
                                 const ContainerCards& cards);

struct LivePod {
  std::vector<ContainerUnits> containers;
  std::vector<Chain> chains;
  std::vector<std::vector<std::string>> annotated;  // cards per chain; empty: not placed by the extender
  std::vector<std::vector<std::string>> reserved;   // `annotated` after exchanges with other pods
  std::optional<ContainerCards> actual;             // the cards that kubelet gave, once known

  bool AwaitsAdmission() const { return !reserved.empty() && !actual; }
};

// Error: containers that no card can hold, or a placement that names too few or too many cards.
absl::StatusOr<LivePod> MakeLivePod(std::vector<ContainerUnits> containers, const ContainerCards& placement);

struct OpenReservation {
  Chain chain;
  std::vector<std::string> cards;
};

using LivePods = std::map<std::string, LivePod>;  // by uid

// Records which cards kubelet gave to the pod. Kubelet does not say for which pod it asks, so it may give one pod the
// cards that were reserved for another pod with an equal request. The two pods then exchange reservations.
void RecordAdmission(LivePods& pods, const std::string& uid, ContainerCards actual);

// The reservations of pods that kubelet has not admitted yet.
std::vector<OpenReservation> OpenReservations(const LivePods& pods);

// Units of a card that these pods hold or have reserved.
int CommittedUnits(const LivePods& pods, const std::string& card);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_POD_RESERVATIONS_H_
