// The decision about one pod: pod, namespace, configuration and known GPUs in; patch, denial or nothing out. Pure: no
// I/O, no clock, no global state, so every function is thread-safe. A decision on its own result adds nothing.
#ifndef SLUICE_WEBHOOK_DECISION_DECISION_H_
#define SLUICE_WEBHOOK_DECISION_DECISION_H_

#include <string>
#include <string_view>
#include <vector>

#include "webhook/decision/config.h"
#include "webhook/decision/nodes.h"
#include "webhook/decision/pod.h"
#include "webhook/decision/rules.h"

namespace sluice::webhook {

enum class Verdict { kNothing, kPatch, kDeny };

// One broken rule, with the sentence that the user reads.
struct Finding {
  Rule rule;
  std::string text;
};

// The sentences in one line, separated by "; also ".
std::string JoinFindings(const std::vector<Finding>& findings);

struct Decision {
  Verdict verdict = Verdict::kNothing;
  std::vector<Finding> denials;
  std::vector<std::string> warnings;
  std::string patch;   // JSON Patch (RFC 6902), a list; empty: no change
  std::string reason;  // "trainer: 50 percent by sluice.dev/gpu-fraction"

  std::string Message() const { return JoinFindings(denials); }
};

// kCreate: a new pod. kTemplate: the template of a workload; its pods are not placed yet, so unknown GPUs only warn.
// kUpdate: changed annotations of a running pod, whose spec is fixed.
enum class Mode { kCreate, kTemplate, kUpdate };

struct Input {
  const Json& pod;
  std::string_view name_space;
  const Config& config;
  const Nodes& nodes;
  Mode mode = Mode::kCreate;
  RuleSet off = {};  // disabled rules; only the test that each rule matters sets it
};

Decision Decide(const Input& input);

// Whether the API server must ask the webhook about this pod. policy.h holds the same condition as CEL; a test on a
// real API server compares them.
bool ConcernsSluice(const Json& pod, bool aliases);

// Whether the pod carries the marker, and sluice's library in every container that requests the resource: the
// ValidatingAdmissionPolicy demands it. policy.h holds the same condition as CEL.
bool IsHandled(const Json& pod);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_DECISION_H_
