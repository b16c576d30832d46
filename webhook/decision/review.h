// AdmissionReview v1: from bytes to an answer. Pure, as the decision.
#ifndef SLUICE_WEBHOOK_DECISION_REVIEW_H_
#define SLUICE_WEBHOOK_DECISION_REVIEW_H_

#include <string>
#include <string_view>
#include <vector>

#include "webhook/decision/decision.h"

namespace sluice::webhook {

enum class Path { kMutate, kValidate };

struct Answer {
  int status = 200;  // 400: the body is no AdmissionReview that we can answer
  std::string body;  // JSON for 200, a sentence otherwise
  // For metrics and logs.
  enum class Outcome { kNothing, kPatched, kAllowed, kDenied, kBad } outcome = Outcome::kNothing;
  std::vector<Rule> rules;  // those that denied
  std::string log;          // one line about what was decided; empty: nothing to say
};

Answer Review(Path path, std::string_view body, const Config& config, const Nodes& nodes);

std::string Base64(std::string_view bytes);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_REVIEW_H_
