// Which container a pod's annotation means, where other projects add containers to users' pods. Internal to
// webhook/decision.
#ifndef SLUICE_WEBHOOK_DECISION_MEANT_CONTAINER_H_
#define SLUICE_WEBHOOK_DECISION_MEANT_CONTAINER_H_

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "webhook/decision/findings.h"
#include "webhook/decision/pod.h"

namespace sluice::webhook {

using ContainerNames = std::set<std::string, std::less<>>;

// The regular containers that the writer of the annotation `field` wrote; webhooks added others. The API server records
// writers before it calls webhooks (metadata.managedFields), and `kubectl apply` its manifest. nullopt: unknown.
std::optional<ContainerNames> WrittenContainers(const PodView& view, std::string_view field);

// The only one of `regular` that the annotation's writer wrote, that is no known sidecar, or that the annotation
// kubectl.kubernetes.io/default-container names. nullptr: several may be meant, or none.
const Container* MeantContainer(const PodView& view, std::string_view field,
                                const std::vector<const Container*>& regular, const Input& input,
                                const Findings& findings);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_MEANT_CONTAINER_H_
