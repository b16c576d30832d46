// The checks behind /validate: changed annotations of a pod, templates of workloads, and (on API servers without
// ValidatingAdmissionPolicy) new pods without the marker. Pure, as the decision is.
#ifndef SLUICE_WEBHOOK_DECISION_VALIDATE_H_
#define SLUICE_WEBHOOK_DECISION_VALIDATE_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "webhook/decision/decision.h"

namespace sluice::webhook {

struct ValidationResult {
  std::vector<Finding> denials;  // empty: allowed
  std::vector<std::string> warnings;
  std::string Message() const { return JoinFindings(denials); }
};

// The user behind the request, as the API server authenticated it.
struct Requester {
  std::string_view user;
  std::vector<std::string_view> groups;
};

// Checks an update of a pod: only changes of sluice's annotations count.
ValidationResult ValidateUpdate(const Json& old_pod, const Input& input, const Requester& requester);

// Checks the ephemeral containers that an update adds to a running pod. Only pods with a share count.
ValidationResult ValidateEphemeral(const Json& old_pod, const Input& input);

// The denial of a pod that requests a share and was not handled. Both the ValidatingAdmissionPolicy and /validate use
// it.
std::string_view NotHandledSentence();

// Checks a new pod after all mutation.
ValidationResult ValidateCreate(const Input& input);

// A kind of workload of Kubernetes itself, with its pod template at the JSON pointer `pointer`.
struct TemplateKind {
  std::string_view group;
  std::string_view resource;
  std::string_view kind;
  std::string_view pointer;
};
std::span<const TemplateKind> TemplateKinds();

// Whether this is one of them, by apiVersion and kind.
bool IsWorkloadKind(const Json& object);

// The pointers of the pod templates of a workload: by its kind, or by their shape. Empty: it has none.
std::vector<std::string> TemplatesOf(const Json& workload);

// input.pod is the workload, or a ResourceClaim or its template (resource_claim.h). `old` is nullptr on CREATE.
// Templates of other kinds than Kubernetes' own, and annotations that stand in no template, are named in warnings.
ValidationResult ValidateTemplate(const Json* old, const Input& input);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_VALIDATE_H_
