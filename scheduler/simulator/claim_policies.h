// kube-scheduler's placement of ResourceClaims (Dynamic Resource Allocation), as policies: it scores nodes, and on a
// node takes the first cards of the ResourceSlice that fit.
#ifndef SLUICE_SCHEDULER_SIMULATOR_CLAIM_POLICIES_H_
#define SLUICE_SCHEDULER_SIMULATOR_CLAIM_POLICIES_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/placement/placement_policy.h"

namespace sluice::scheduler {

// `claims-NODES-ORDER`. NODES, the score of nodes: `spread`, kube-scheduler's default (LeastAllocated and
// BalancedAllocation); `binpack` (MostAllocated); `look-ahead`, the extender's. The first two know CPU and memory
// alone. ORDER of a slice's devices: `fixed`; `fullest`, by free memory, the least first.
const std::vector<std::string>& ClaimPolicyNames();
// Simulate() fills the capacities that they need. The error for an unknown name lists the known ones.
absl::StatusOr<std::unique_ptr<PlacementPolicy>> MakeClaimPolicy(std::string_view name, const RequestMix& mix,
                                                                 int units_per_card);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_SIMULATOR_CLAIM_POLICIES_H_
