// First half of the decision: which settings each container requests, and by which annotation.
#ifndef SLUICE_WEBHOOK_DECISION_REQUESTED_SHARES_H_
#define SLUICE_WEBHOOK_DECISION_REQUESTED_SHARES_H_

#include <string>
#include <vector>

#include "common/settings/settings.h"
#include "webhook/decision/findings.h"
#include "webhook/decision/sorted_annotations.h"

namespace sluice::webhook {

// The share and the settings that one container requests.
struct RequestedShare {
  const Container* container;
  settings::Settings settings;
  std::vector<SettingSource> sources;  // the annotations behind `settings`
  std::string sized_by;                // the annotation or resource that gives the share; empty: none
};

struct RequestedShares {
  bool concerns_sluice = false;            // false: the pod stays unchanged
  std::vector<std::string> old_answers;    // annotations that hold sluice's answers to another pod
  std::vector<RequestedShare> containers;  // those with a share or with settings
};

// Denies annotations that no container can follow. The result points into `view`.
RequestedShares ResolveShares(const PodView& view, const Input& input, Findings& findings);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_REQUESTED_SHARES_H_
