// Second half of the decision: what a container that is given a share must look like. Internal to webhook/.
#ifndef SLUICE_WEBHOOK_DECISION_INJECTION_H_
#define SLUICE_WEBHOOK_DECISION_INJECTION_H_

#include <cstdint>

#include "webhook/decision/patch.h"
#include "webhook/decision/requested_shares.h"

namespace sluice::webhook {

// Judges the container's own variables against what it was given, and adds the library and the settings.
void InjectVariables(const Asked& asked, uint32_t percent, const Input& input, Findings& findings, Patch& patch);

// Sets the resource in limits and requests.
void InjectResource(const Asked& asked, uint32_t percent, Findings& findings, Patch& patch);

// Whether our library comes first in this LD_PRELOAD.
bool PreloadsUs(std::string_view value);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_INJECTION_H_
