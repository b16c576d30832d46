// Other systems that give a container a GPU, beside a share. Internal to webhook/decision.
#ifndef SLUICE_WEBHOOK_DECISION_OTHER_SYSTEMS_H_
#define SLUICE_WEBHOOK_DECISION_OTHER_SYSTEMS_H_

#include <string>
#include <string_view>

#include "webhook/decision/findings.h"
#include "webhook/decision/pod.h"

namespace sluice::webhook {

// The GPU that this extended resource gives: "a whole GPU", "a GPU of HAMi". Empty: it gives none, or a share of
// sluice's.
std::string GpuByResource(std::string_view resource);

// The first resource of the container that gives another GPU; empty: none.
std::string OtherGpuOf(const Container& c);

// Denies a container with a share that another system gives a GPU as well. `sized_by`: the annotation that gives the
// share.
void CheckOtherSystems(const PodView& view, const Container& c, std::string_view sized_by, const Input& input,
                       Findings& findings);

// The sharing system whose library this LD_PRELOAD holds; empty: none.
std::string_view PreloadedSystem(std::string_view preload);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_OTHER_SYSTEMS_H_
