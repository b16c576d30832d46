// ResourceClaims and ResourceClaimTemplates for the driver sluice.dev. Pure.
#ifndef SLUICE_WEBHOOK_DECISION_RESOURCE_CLAIM_H_
#define SLUICE_WEBHOOK_DECISION_RESOURCE_CLAIM_H_

#include "webhook/decision/validate.h"

namespace sluice::webhook {

// Whether the object is one of the two kinds, by apiVersion and kind.
bool IsResourceClaim(const Json& object);

// The denials of its opaque configuration and sizes, in the words of the DRA driver, which judges them again when it
// prepares the claim. Nothing for a claim of other drivers.
ValidationResult ValidateResourceClaim(const Input& input);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_RESOURCE_CLAIM_H_
