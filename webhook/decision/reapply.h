// A manifest that is applied again holds the webhook's changes to the pod at its creation. Internal to
// webhook/decision.
#ifndef SLUICE_WEBHOOK_DECISION_REAPPLY_H_
#define SLUICE_WEBHOOK_DECISION_REAPPLY_H_

#include <string>

#include "webhook/decision/decision.h"

namespace sluice::webhook {

// The JSON Patch that makes `input.pod` equal to the running pod where the decision about it gives the running share.
// Without it, the API server refuses the update: these fields cannot change. Empty: no change.
std::string KeepInjected(const Json& running, const Input& input);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_REAPPLY_H_
