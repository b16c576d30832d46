// Collects the denials and warnings of one decision. Internal to webhook/decision.
#ifndef SLUICE_WEBHOOK_DECISION_FINDINGS_H_
#define SLUICE_WEBHOOK_DECISION_FINDINGS_H_

#include <string>
#include <utility>

#include "webhook/decision/decision.h"

namespace sluice::webhook {

class Findings {
 public:
  // A hostile pod can have a hundred thousand errors; a message lists the first ones.
  static constexpr size_t kMaxFindings = 20;

  // Adds to `decision`. A rule in `off` neither denies nor warns.
  Findings(Decision& decision, const RuleSet& off) : decision_(decision), off_(off) {}
  bool IsEnabled(Rule rule) const { return !off_.test(static_cast<size_t>(rule)); }
  bool IsFull() const { return decision_.denials.size() >= kMaxFindings; }
  void Deny(Rule rule, std::string text) {
    if (!IsEnabled(rule) || IsFull()) return;
    decision_.denials.push_back({rule, std::move(text)});
    if (IsFull()) decision_.denials.back().text += "; there may be more errors";
  }
  void Warn(Rule rule, std::string text) {
    if (IsEnabled(rule) && decision_.warnings.size() < kMaxFindings) decision_.warnings.push_back(std::move(text));
  }
  // `reaction` is an administrator's setting.
  void React(Reaction reaction, Rule rule, std::string text) {
    if (reaction == Reaction::kDeny) Deny(rule, std::move(text));
    if (reaction == Reaction::kWarn) Warn(rule, std::move(text));
  }

 private:
  Decision& decision_;
  const RuleSet& off_;
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_FINDINGS_H_
