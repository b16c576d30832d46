// The names of the decision's rules, and a set of disabled ones (only the rule test fills it).
#ifndef SLUICE_WEBHOOK_DECISION_RULES_H_
#define SLUICE_WEBHOOK_DECISION_RULES_H_

#include <bitset>
#include <cstddef>
#include <string_view>

namespace sluice::webhook {

enum class Rule : size_t {
#define RULE(id, name) id,
#include "webhook/decision/rules.def"
#undef RULE
  kCount
};

inline constexpr std::string_view kRuleNames[] = {
#define RULE(id, name) name,
#include "webhook/decision/rules.def"
#undef RULE
};

inline constexpr std::string_view RuleName(Rule rule) { return kRuleNames[static_cast<size_t>(rule)]; }

using RuleSet = std::bitset<static_cast<size_t>(Rule::kCount)>;

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_RULES_H_
