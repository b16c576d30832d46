// A pod's containers as kubelet's device manager sees them: which containers get units of their own, and which get the
// units that an init container had.
#ifndef SLUICE_SCHEDULER_PLACEMENT_CHAINS_H_
#define SLUICE_SCHEDULER_PLACEMENT_CHAINS_H_

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::scheduler {

inline constexpr int kUnitsPerCard = 100;  // of a real cluster; a test holds it equal to SLUICE_UNITS_PER_GPU

enum class ContainerKind { kInit, kSidecar, kRegular };

struct ContainerUnits {
  std::string name;
  ContainerKind kind = ContainerKind::kRegular;
  int units = 0;
  int cards = 0;  // over which they are split evenly; 0: one card up to 100 units, whole cards above

  int Cards() const { return cards > 0 ? cards : std::max(1, units / kUnitsPerCard); }
  // A part of each of several cards. Whole cards are not split: their number follows from the units.
  bool IsSplit() const { return cards > 1 && units < cards * kUnitsPerCard; }
};

// Units that one or more containers of a pod use in turn. Kubelet asks the plugin for `first` units, later perhaps for
// more on top of them ("must include"), and never for more than `total` in all. Up to 100 units are on one card, more
// are whole cards, unless they are split over several.
struct Chain {
  int first = 0;
  int total = 0;
  std::vector<int> containers;  // indices of the containers that use it
  int split = 1;                // cards over which the units are split evenly; 1: they are not

  int Cards() const { return split > 1 ? split : std::max(1, total / kUnitsPerCard); }
  int UnitsPerCard() const { return split > 1 ? total / split : std::min(total, kUnitsPerCard); }
  int FirstCards() const { return split > 1 ? split : std::max(1, first / kUnitsPerCard); }
  bool HasShapeOf(const Chain& other) const {
    return first == other.first && total == other.total && split == other.split;
  }
  bool operator==(const Chain&) const = default;
};

// Follows kubelet 1.28 to 1.34 (pkg/kubelet/cm/devicemanager/manager.go, Allocate and devicesToAllocate). An init
// container's units go to the later containers before kubelet asks for new ones. A sidecar or regular container keeps
// its units. All units stay taken until the pod ends.
//
// `containers` is in kubelet's order: init containers and sidecars as in the spec, then the regular ones. Containers
// with 0 units are skipped. Chains of one pod that begin with the same number of units get the same total, because the
// plugin cannot tell their requests apart.
//
// Error: units that no card can hold, or that kubelet would pick at random from several cards. A split share shares
// units only with an equal one: kubelet adds units without a view to cards.
absl::StatusOr<std::vector<Chain>> ChainsOf(const std::vector<ContainerUnits>& containers);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_CHAINS_H_
