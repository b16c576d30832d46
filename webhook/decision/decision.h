// (pod, namespace, configuration, known GPUs) -> patch, denial or nothing. Pure: no I/O, no clock, no global state;
// thread-safe. Run on its own result it adds nothing.
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

// One rule that was broken, with the sentence for people.
struct Finding {
  Rule rule;
  std::string text;
};

struct Decision {
  Verdict verdict = Verdict::kNothing;
  std::vector<Finding> denials;
  std::vector<std::string> warnings;
  std::string patch;   // JSON Patch (RFC 6902), a list; empty where there is nothing to change
  std::string reason;  // "trainer: 50 percent by sluice.dev/gpu-fraction"

  std::string Message() const;  // the denials as one line
};

// What is judged: a pod that is to be made, the template of one (no placement yet, so want of knowledge only warns), or
// a running pod whose annotations change (its spec is what it is).
enum class Mode { kCreate, kTemplate, kUpdate };

struct Input {
  const Json& pod;
  std::string_view name_space;
  const Config& config;
  const Nodes& nodes;
  Mode mode = Mode::kCreate;
  RuleSet off = {};  // rules switched off, by the test that each rule matters
};

Decision Decide(const Input& input);

// Whether the API server is to ask us about this pod: the same condition as the CEL expression in policy.h, tested
// against it on a real API server.
bool ConcernsUs(const Json& pod, bool aliases);

// Whether the pod carries the marker, and our library in every container that asks: what the ValidatingAdmissionPolicy
// demands. The same condition as the CEL expression in policy.h.
bool Handled(const Json& pod);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_DECISION_H_
