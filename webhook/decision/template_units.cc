#include "webhook/decision/template_units.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "webhook/decision/marker.h"
#include "webhook/decision/template_search.h"
#include "webhook/decision/validate.h"

namespace sluice::webhook {
namespace {

using OrderedJson = nlohmann::ordered_json;

const Json* Annotations(const Json& pod) {
  const Json* metadata = Member(pod, "metadata");
  const Json* annotations = metadata == nullptr ? nullptr : Member(*metadata, "annotations");
  return annotations != nullptr && annotations->is_object() ? annotations : nullptr;
}

// Whether every annotation of sluice's in `a` is in `b` with the same value, but for the marker.
bool AreOwnAnnotationsIn(const Json* a, const Json* b, bool aliases) {
  if (a == nullptr) return true;
  for (const auto& [key, value] : a->items()) {
    if (key == kMarkerField || !IsOwnAnnotation(key, aliases)) continue;
    if (b == nullptr || !b->contains(key) || b->at(key) != value) return false;
  }
  return true;
}

// Whether an update leaves this template to its author.
bool IsOfBefore(const Json& old_template, const Json& now, bool aliases) {
  const Json* before = Annotations(old_template);
  const Json* after = Annotations(now);
  return (before == nullptr || !before->contains(kMarkerField)) && AreOwnAnnotationsIn(before, after, aliases) &&
         AreOwnAnnotationsIn(after, before, aliases);
}

}  // namespace

TemplateUnits GiveTemplateUnits(const Json* old, const Input& input) {
  TemplateUnits out;
  auto patch = OrderedJson::array();
  const bool aliases = input.config.aliases;
  for (const std::string& pointer : TemplatesOf(input.pod)) {
    const Json* found = FindAt(input.pod, pointer);
    if (found == nullptr) continue;
    const Json pod = TemplateAsPod(*found);
    if (!ConcernsSluice(pod, aliases)) continue;
    const Json* before = old == nullptr ? nullptr : FindAt(*old, pointer);
    if (before != nullptr && IsOfBefore(*before, pod, aliases)) continue;
    const Decision decision = Decide({pod, input.name_space, input.config, input.nodes, Mode::kTemplate, input.off});
    if (decision.verdict != Verdict::kPatch || decision.units_patch.empty()) continue;
    for (OrderedJson& operation : OrderedJson::parse(decision.units_patch)) {
      operation["path"] = pointer + operation["path"].get<std::string>();
      patch.push_back(std::move(operation));
    }
    const std::string where = pointer.substr(std::min<size_t>(1, pointer.size()));
    out.reason += (out.reason.empty() ? "" : "; ") + where + ": " + decision.reason;
  }
  if (!patch.empty()) out.patch = patch.dump();
  return out;
}

}  // namespace sluice::webhook
