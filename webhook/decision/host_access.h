// Fields with which a pod reaches past its share of a GPU, and runtimes that keep the share from being held. Internal
// to webhook/decision.
#ifndef SLUICE_WEBHOOK_DECISION_HOST_ACCESS_H_
#define SLUICE_WEBHOOK_DECISION_HOST_ACCESS_H_

#include <string>
#include <string_view>

#include "webhook/decision/findings.h"
#include "webhook/decision/patch.h"
#include "webhook/decision/pod.h"

namespace sluice::webhook {

// NVIDIA's container runtime reads it: the GPUs of a container.
inline constexpr std::string_view kVisibleDevices = "NVIDIA_VISIBLE_DEVICES";

// Reacts to privileged containers, host folders and host namespaces of a pod with a share, as the setting `privileged`
// says.
void CheckHostAccess(const PodView& view, const Input& input, Findings& findings);

// The same for an ephemeral container that is added to a running pod with a share. Its NVIDIA_VISIBLE_DEVICES counts
// too.
void CheckEphemeral(const PodView& view, const Container& c, const Input& input, Findings& findings);

// The entry of a container's env with which NVIDIA's runtime gives it no GPU.
std::string NoDevices();

// Whether this variable asks for GPUs. A value that the webhook does not see counts as such.
bool AsksForDevices(const Json& variable);

// Hides all GPUs from the containers without a share of a pod with one.
void HideDevices(const Container& c, const Input& input, Findings& findings, Patch& patch);

// Reacts to variables that ask for GPUs in a pod without a share, as the setting `visibleDevices` says.
void CheckVisibleDevices(const PodView& view, const Input& input, Findings& findings);

// Warns about a runtime class whose sandbox keeps the library out.
void WarnSandbox(const PodView& view, const Input& input, Findings& findings);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_HOST_ACCESS_H_
