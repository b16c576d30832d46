// The parts of objects of Dynamic Resource Allocation (resource.k8s.io/v1) that placement needs: ResourceSlices,
// ResourceClaims, DeviceClasses, and the claims of a pod.
#ifndef SLUICE_SCHEDULER_EXTENDER_CLAIM_FACTS_H_
#define SLUICE_SCHEDULER_EXTENDER_CLAIM_FACTS_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "scheduler/placement/claim_packing.h"

namespace sluice::scheduler {

struct SliceFacts {
  std::string name;
  std::string node;  // empty: the slice is not of one node, or not of sluice's driver
  std::int64_t generation = 0;
  std::vector<ClaimCard> cards;
};

// The part of a card that a claim holds.
struct HeldCard {
  std::string pool;  // sluice's driver names a node's pool after the node
  TextHash device = 0;
  std::int64_t memory = 0, compute = 0;
};

// A request's class is looked up when the claim is placed, since classes may change until then.
struct RequestedClaim {
  CardsClaim cards;
  std::vector<std::vector<std::string>> classes;  // of each request: one, or one for each alternative
};

struct ClaimFacts {
  std::string key;  // namespace/name
  bool is_allocated = false;
  std::vector<HeldCard> held;                       // cards of sluice's driver; without administrative access
  std::string pod;                                  // uid of the first pod that reserves it, or else of its owner
  bool is_of_extended_resource = false;             // kube-scheduler has made it
  std::shared_ptr<const RequestedClaim> requested;  // only of a claim that is not allocated
};

struct ClassFacts {
  std::string name;
  std::string extended_resource;  // empty: none but the one that follows from the name
  bool is_ours = false;           // it selects devices of sluice's driver
};

struct PodClaims {
  std::vector<std::string> keys;                             // of ResourceClaims, in the pod's order
  std::vector<std::pair<std::string, int>> other_resources;  // name, amount; without CPU, memory and sluice's units
  bool empty() const { return keys.empty() && other_resources.empty(); }
};

// None of these fails: a member that is missing or of another type counts as absent.
SliceFacts ReadSlice(const nlohmann::json& slice);
ClaimFacts ReadClaim(const nlohmann::json& claim);
ClassFacts ReadClass(const nlohmann::json& device_class);
PodClaims ReadPodClaims(const nlohmann::json& pod);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_CLAIM_FACTS_H_
