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
  // Nor may a text grow with the names of a thousand containers.
  static constexpr size_t kMaxTextBytes = 4000;

  // Adds to `decision`. A rule in `off` neither denies nor warns.
  Findings(Decision& decision, const RuleSet& off) : decision_(decision), off_(off) {}
  bool IsEnabled(Rule rule) const { return !off_.test(static_cast<size_t>(rule)); }
  bool IsFull() const { return decision_.denials.size() >= kMaxFindings; }
  void Deny(Rule rule, std::string text) {
    if (!IsEnabled(rule) || IsFull()) return;
    decision_.denials.push_back({rule, Short(std::move(text))});
    if (IsFull()) decision_.denials.back().text += "; there may be more errors";
  }
  void Warn(Rule rule, std::string text) {
    if (!IsEnabled(rule) || decision_.warnings.size() >= kMaxFindings) return;
    decision_.warnings.push_back(Short(std::move(text)));
  }
  // `reaction` is an administrator's setting.
  void React(Reaction reaction, Rule rule, std::string text) {
    if (reaction == Reaction::kDeny) return Deny(rule, std::move(text));
    if (reaction == Reaction::kWarn) Warn(rule, std::move(text));
  }

 private:
  static std::string Short(std::string text) {
    return text.size() <= kMaxTextBytes ? std::move(text) : text.substr(0, kMaxTextBytes) + "...";
  }

  Decision& decision_;
  const RuleSet& off_;
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_FINDINGS_H_
