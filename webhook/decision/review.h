// AdmissionReview v1: bytes in, an answer out. Pure, as the decision is, but for the function that makes claims'
// templates.
#ifndef SLUICE_WEBHOOK_DECISION_REVIEW_H_
#define SLUICE_WEBHOOK_DECISION_REVIEW_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "webhook/decision/decision.h"

namespace sluice::webhook {

enum class Path { kMutate, kValidate };

struct Answer {
  int status = 200;  // 400: the body is no AdmissionReview that the webhook can answer
  std::string body;  // JSON for 200, a sentence otherwise
  // For metrics and logs.
  enum class Outcome { kNothing, kPatched, kAllowed, kDenied, kBad } outcome = Outcome::kNothing;
  std::vector<Rule> rules;  // the rules that denied
  std::string log;          // one line about the decision; empty: no line
};

// Makes the templates of a pod's claims in its namespace. Returns an empty string, or why the pod must not be made.
using MakeClaims = std::function<std::string(std::string_view name_space, const std::vector<ClaimTemplate>& templates)>;

// `make` is called for a new pod whose shares are claims, unless the request is a dry run. Without it such pods are
// denied.
Answer Review(Path path, std::string_view body, const Config& config, const Nodes& nodes, const MakeClaims& make = {});

// The answer to a review of which only the beginning was kept, because it is longer than `accepted_bytes`.
Answer ReviewBeginning(std::string_view body, size_t accepted_bytes);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_REVIEW_H_
