// The changes of a pod whose shares are ResourceClaims. Internal to webhook/decision.
#ifndef SLUICE_WEBHOOK_DECISION_CLAIM_PATCH_H_
#define SLUICE_WEBHOOK_DECISION_CLAIM_PATCH_H_

#include <string>
#include <vector>

#include "webhook/decision/findings.h"
#include "webhook/decision/patch.h"
#include "webhook/decision/pod.h"

namespace sluice::webhook {

struct ClaimedContainer {
  const Container* container;
  std::string entry;          // name in spec.resourceClaims
  std::string template_name;  // of the ResourceClaimTemplate
};

// Gives each of the containers its claim instead of the resource. Entries of an earlier admission that no container
// needs any more go; with an empty list, all of them.
void InjectClaims(const PodView& view, const std::vector<ClaimedContainer>& claimed, Findings& findings, Patch& patch);

// A claim in the container that the webhook did not write; empty: none.
std::string ForeignClaim(const PodView& view, const Container& c);

// The container's own LD_PRELOAD, without sluice's library.
std::string OwnPreload(const Container& c);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_CLAIM_PATCH_H_
