// Second half of the decision: the changes that a container with a share needs. Internal to webhook/decision.
#ifndef SLUICE_WEBHOOK_DECISION_INJECTION_H_
#define SLUICE_WEBHOOK_DECISION_INJECTION_H_

#include <cstdint>

#include "webhook/decision/patch.h"
#include "webhook/decision/requested_shares.h"

namespace sluice::webhook {

// Denies variables that contradict the container's settings. Adds sluice's library to LD_PRELOAD, and a variable for
// each setting. `is_resized`: variables about the size are an earlier admission's, and get the new size. Where the
// share is a claim, the driver sets all variables, and nothing is added.
void InjectVariables(const RequestedShare& share, uint32_t percent, bool is_resized, const Input& input,
                     Findings& findings, Patch& patch);

// Sets the resource in limits and requests.
void InjectResource(const RequestedShare& share, uint32_t percent, Findings& findings, Patch& patch);

// Whether sluice's library is the first in this LD_PRELOAD.
bool PreloadsSluice(std::string_view value);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_INJECTION_H_
