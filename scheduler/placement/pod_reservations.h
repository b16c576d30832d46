// Which reservations are still open on a node: the one account that extender and device plugin both keep, so that they
// agree.
#ifndef SLUICE_SCHEDULER_PLACEMENT_POD_RESERVATIONS_H_
#define SLUICE_SCHEDULER_PLACEMENT_POD_RESERVATIONS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/chains.h"

namespace sluice::scheduler {

using ContainerCards = std::map<std::string, std::vector<std::string>>;  // by container name: card uuids

// The value of the annotation sluice.dev/placement. Error: not an object of arrays of strings.
absl::StatusOr<ContainerCards> ParsePlacement(const std::string& json);
std::string FormatPlacement(const ContainerCards& cards);

// A chain's cards, in order: the union over the containers that share it.
std::vector<std::string> CardsOf(const Chain& chain, const std::vector<ContainerUnits>& containers,
                                 const ContainerCards& cards);

struct LivePod {
  std::vector<ContainerUnits> containers;
  std::vector<Chain> chains;
  std::vector<std::vector<std::string>> annotated;  // cards, one list a chain; empty: not placed by the extender
  std::vector<std::vector<std::string>> reserved;   // what `annotated` has become by exchanges
  std::optional<ContainerCards> actual;             // once it is known what kubelet gave it

  bool Waits() const { return !reserved.empty() && !actual; }
};

// Error: containers that no card can hold, or a placement that names too few or too many cards.
absl::StatusOr<LivePod> MakeLivePod(std::vector<ContainerUnits> containers, const ContainerCards& placement);

struct Slot {
  Chain chain;
  std::vector<std::string> cards;
};

using LivePods = std::map<std::string, LivePod>;  // by uid

// Kubelet may give one pod what was reserved for another that asks for the same: it does not say for whom it asks. It
// is known now what kubelet gave to this pod. Where that was reserved for another pod that still waits and asks for the
// same, the two exchange reservations.
void Settle(LivePods& pods, const std::string& uid, ContainerCards actual);

// The reservations that are still open.
std::vector<Slot> OpenSlots(const LivePods& pods);

// Units of a card that are given or reserved to these pods.
int Committed(const LivePods& pods, const std::string& card);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_POD_RESERVATIONS_H_
