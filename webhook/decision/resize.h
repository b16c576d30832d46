// Another size for a running container. Its units, which the scheduler gave, stay; the node's agent gives the rest.
// Pure.
#ifndef SLUICE_WEBHOOK_DECISION_RESIZE_H_
#define SLUICE_WEBHOOK_DECISION_RESIZE_H_

#include <map>
#include <string>
#include <string_view>

#include "webhook/decision/requested_shares.h"

namespace sluice::webhook {

// Why the running container cannot have the size that its annotations give. Empty: it can, or they give none.
std::string ResizeProblem(const RequestedShare& share);

// Whether the annotation gives a size: gpu-fraction or gpu-memory, in any form that may change on a running pod.
bool IsSizeAnnotation(std::string_view annotation, bool aliases);

// Whether `annotations` still hold a size for the containers that `removed`, a size, applied to.
bool HasOtherSize(const std::map<std::string, std::string>& annotations, std::string_view removed, bool aliases);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_RESIZE_H_
