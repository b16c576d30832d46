// The body of a filter or prioritize call (k8s.io/kube-scheduler/extender/v1, ExtenderArgs): one pod and up to some
// thousand node names.
#ifndef SLUICE_SCHEDULER_EXTENDER_EXTENDER_ARGS_H_
#define SLUICE_SCHEDULER_EXTENDER_EXTENDER_ARGS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/extender/claim_facts.h"
#include "scheduler/extender/pod_facts.h"

namespace sluice::scheduler {

struct ExtenderArgs {
  PodFacts pod;
  PodClaims claims;
  std::vector<std::string_view> nodes;  // point into `body` or `unescaped`
  std::vector<std::string> unescaped;   // stays empty for names that Kubernetes allows
};

// `body` must outlive the result. The error names the missing or wrong member; the scheduler logs it.
absl::StatusOr<ExtenderArgs> ReadExtenderArgs(std::string_view body);

// Appends the text as a JSON string.
void AppendJsonString(std::string_view text, std::string& out);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_EXTENDER_ARGS_H_
