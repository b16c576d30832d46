// A pod's containers as kubelet's device manager sees them: which of them get units of their own, and which get the
// units that an init container had.
#ifndef SLUICE_SCHEDULER_PLACEMENT_CHAINS_H_
#define SLUICE_SCHEDULER_PLACEMENT_CHAINS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice::scheduler {

inline constexpr int kUnitsPerCard = 100;  // of a real cluster: SLUICE_UNITS_PER_GPU, tested to be equal

enum class ContainerKind { kInit, kSidecar, kRegular };

struct ContainerUnits {
  std::string name;
  ContainerKind kind = ContainerKind::kRegular;
  int units = 0;
};

// One place that kubelet fills: it asks the plugin for `first` units, later perhaps for more on top of them ("must
// include"), never for more than `total` in all. Up to 100 units are on one card, more are whole cards.
struct Chain {
  int first = 0;
  int total = 0;
  std::vector<int> containers;  // indices of those that use it

  int Cards() const { return total <= kUnitsPerCard ? 1 : total / kUnitsPerCard; }
  int UnitsPerCard() const { return total <= kUnitsPerCard ? total : kUnitsPerCard; }
  bool operator==(const Chain&) const = default;
};

// By the rules of kubelet 1.28 to 1.34 (pkg/kubelet/cm/devicemanager/manager.go, Allocate and devicesToAllocate): what
// an init container got is handed to the containers after it before anything else is asked for; a sidecar or regular
// container keeps what it took; all of it stays taken until the pod ends. `containers` in kubelet's order: init
// containers and sidecars as in the spec, then the regular ones. Those with 0 units have no part in it.
//
// Chains of one pod that begin with the same number of units get the same total: the plugin cannot tell their requests
// apart. Error: units that no card can hold, or that kubelet would pick at random from several cards.
absl::StatusOr<std::vector<Chain>> ChainsOf(const std::vector<ContainerUnits>& containers);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_PLACEMENT_CHAINS_H_
