// First half of the decision: which container is given which settings, by which annotation. Internal to webhook/.
#ifndef SLUICE_WEBHOOK_DECISION_REQUESTED_SHARES_H_
#define SLUICE_WEBHOOK_DECISION_REQUESTED_SHARES_H_

#include <map>
#include <string>
#include <vector>

#include "common/settings/settings.h"
#include "webhook/decision/decision.h"

namespace sluice::webhook {

// Collects denials and warnings; a rule that is switched off says nothing. A hostile pod may be wrong in a hundred
// thousand places: people are told of the first ones.
class Findings {
 public:
  static constexpr size_t kMost = 20;
  Findings(Decision& decision, const RuleSet& off) : decision_(decision), off_(off) {}
  bool On(Rule rule) const { return !off_.test(static_cast<size_t>(rule)); }
  void Deny(Rule rule, std::string text) {
    if (!On(rule) || Full()) return;
    decision_.denials.push_back({rule, std::move(text)});
    if (Full()) decision_.denials.back().text += "; there may be more";
  }
  bool Full() const { return decision_.denials.size() >= kMost; }
  void Warn(Rule rule, std::string text) {
    if (On(rule) && decision_.warnings.size() < kMost) decision_.warnings.push_back(std::move(text));
  }

 private:
  Decision& decision_;
  const RuleSet& off_;
};

// One annotation as it was written, with the field that messages name.
struct Written {
  const settings::Key* key;
  std::string value;
  std::string field;
};

// What one container was given.
struct Asked {
  const Container* container;
  settings::Settings settings;
  std::vector<Written> written;  // what `settings` came from
  std::string sized_by;          // the annotation or resource that gave the size; empty: none
};

struct AskedPod {
  bool concerns = false;          // false: leave the pod alone
  bool left_alone = false;        // inject: "false"
  std::vector<Asked> containers;  // those with a size or with settings
};

AskedPod Resolve(const PodView& view, const Input& input, Findings& findings);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_REQUESTED_SHARES_H_
