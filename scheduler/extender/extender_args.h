// The body of a filter or prioritize call (k8s.io/kube-scheduler/extender/v1, ExtenderArgs): one pod and, at scale, a
// thousand names.
#ifndef SLUICE_SCHEDULER_EXTENDER_EXTENDER_ARGS_H_
#define SLUICE_SCHEDULER_EXTENDER_EXTENDER_ARGS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "scheduler/extender/pod_facts.h"

namespace sluice::scheduler {

struct ExtenderArgs {
  PodFacts pod;
  std::vector<std::string_view> nodes;  // into `body`, or into `unescaped`
  std::vector<std::string> unescaped;   // never filled where names are what Kubernetes allows
};

// `body` must outlive the result. Error: what is missing or wrong; the scheduler shows it in its log.
absl::StatusOr<ExtenderArgs> ReadExtenderArgs(std::string_view body);

// Appends the text as a JSON string.
void AppendJsonString(std::string_view text, std::string& out);

}  // namespace sluice::scheduler

#endif  // SLUICE_SCHEDULER_EXTENDER_EXTENDER_ARGS_H_
