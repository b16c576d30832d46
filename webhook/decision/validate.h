// What /validate judges: changes of a pod's annotations, templates of workloads, and (on servers without
// ValidatingAdmissionPolicy) pods that arrive without the marker. Pure, as the decision.
#ifndef SLUICE_WEBHOOK_DECISION_VALIDATE_H_
#define SLUICE_WEBHOOK_DECISION_VALIDATE_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "webhook/decision/decision.h"

namespace sluice::webhook {

struct Judgement {
  std::vector<Finding> denials;  // empty: allowed
  std::vector<std::string> warnings;
  std::string Message() const;
};

// Who asks, as the API server says.
struct Asker {
  std::string_view user;
  std::vector<std::string_view> groups;
};

// A pod's update. Only changes of our annotations are judged.
Judgement ValidateUpdate(const Json& old_pod, const Input& input, const Asker& asker);

// The sentence that both the ValidatingAdmissionPolicy and /validate give to a pod that concerns us and was not
// handled.
std::string_view NotHandledSentence();

// A pod's creation, after all mutation.
Judgement ValidateCreate(const Input& input);

// A workload whose pods are made from a template: `pointer` leads to it.
struct TemplateKind {
  std::string_view group;
  std::string_view resource;
  std::string_view kind;
  std::string_view pointer;
};
std::span<const TemplateKind> TemplateKinds();

// input.pod is the workload. `old` is nullptr on CREATE.
Judgement ValidateTemplate(const Json* old, const Input& input, const TemplateKind& kind);

// The pod that a template stands for, or nullptr where there is none.
const Json* TemplateOf(const Json& workload, const TemplateKind& kind);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_VALIDATE_H_
