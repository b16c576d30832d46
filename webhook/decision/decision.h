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
#include "webhook/decision/share_claim.h"

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
  std::string patch;  // JSON Patch (RFC 6902), a list; empty: no change
  // Of a new pod whose shares are claims: they must exist before the pod does.
  std::vector<ClaimTemplate> claims;
  // The part of `patch` for a stored pod template (kTemplate): units, sizes of other systems as sluice's, and the
  // marker. Empty: the template has its units.
  std::string units_patch;
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
  RuleSet off = {};        // disabled rules; only the test that each rule matters sets it
  bool is_resize = false;  // with kUpdate: annotations that give a size changed
};

Decision Decide(const Input& input);

// policy.h holds these conditions as CEL; a test on a real API server compares them.

// Whether the pod asks for a share, so that it must not run without the webhook's decision.
bool ConcernsSluice(const Json& pod, bool aliases);

// Whether the API server must ask the webhook about this pod: it concerns sluice, or sets NVIDIA_VISIBLE_DEVICES.
bool NeedsDecision(const Json& pod, bool aliases);

// Whether the pod carries the marker, sluice's library in every container that requests the resource, and neither a
// placement, which comes only with the extender's binding, nor an agent's answer. The ValidatingAdmissionPolicy demands
// it.
bool IsHandled(const Json& pod);

// Whether an annotation of this key is sluice's, or one that sluice reads as an alias.
bool IsOwnAnnotation(std::string_view key, bool aliases);

// Whether the kubelet made this pod from a file of its node.
bool IsMirrorPod(const Json& pod);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_DECISION_H_
