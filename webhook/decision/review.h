// AdmissionReview v1: bytes in, an answer out. Pure, as the decision is.
#ifndef SLUICE_WEBHOOK_DECISION_REVIEW_H_
#define SLUICE_WEBHOOK_DECISION_REVIEW_H_

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

Answer Review(Path path, std::string_view body, const Config& config, const Nodes& nodes);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_REVIEW_H_
