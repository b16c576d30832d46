// Units in the pod templates of workloads, for queues: Kueue and Volcano count a template before its first pod exists,
// and the units that the webhook gives to pods are not in it. Pure, as the decision is.
#ifndef SLUICE_WEBHOOK_DECISION_TEMPLATE_UNITS_H_
#define SLUICE_WEBHOOK_DECISION_TEMPLATE_UNITS_H_

#include <string>

#include "webhook/decision/decision.h"

namespace sluice::webhook {

struct TemplateUnits {
  std::string patch;   // JSON Patch for the workload; empty: no change
  std::string reason;  // "spec/template: trainer: 50 percent by sluice.dev/gpu-fraction"
};

// input.pod is the workload; `old` is nullptr on CREATE. Each template that asks for a share gets the resource and the
// marker, from which a changed size later tells the webhook's units from the user's. An update gives units only where
// the stored template had them from here, or where sluice's annotations change: a workload that is older than the
// webhook gets no rollout. A template that would be denied stays as it is, for /validate.
TemplateUnits GiveTemplateUnits(const Json* old, const Input& input);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_TEMPLATE_UNITS_H_
