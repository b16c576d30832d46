// The part of the decision where shares are ResourceClaims. Internal to webhook/decision.
#ifndef SLUICE_WEBHOOK_DECISION_CLAIM_SHARES_H_
#define SLUICE_WEBHOOK_DECISION_CLAIM_SHARES_H_

#include <optional>
#include <vector>

#include "webhook/decision/findings.h"
#include "webhook/decision/patch.h"
#include "webhook/decision/units.h"

namespace sluice::webhook {

// Adds the container's share with its claim, or denies. A template whose claim cannot be known yet gets a warning and a
// share without claim. `percent`: of each card, where a fraction or units say so; 0: gpu-memory says the size.
void GrantClaim(const PodView& view, const RequestedShare& r, uint32_t percent, const Input& input, Findings& findings,
                Decision& out, std::vector<GrantedShare>& shares);

// Writes sizes that were units or variables as annotations, from which a second pass and an apply of the pod's manifest
// know them. The pod has annotations by now.
void KeepSizes(const std::vector<GrantedShare>& shares, Patch& patch);

// Gives the containers their claims instead of the resource, and lists the templates in `out`. An init container has
// the claim of a regular one with an equal request: they never run together.
void AddClaims(const PodView& view, const std::vector<GrantedShare>& shares, const Input& input, Findings& findings,
               Patch& patch, Decision& out);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_CLAIM_SHARES_H_
