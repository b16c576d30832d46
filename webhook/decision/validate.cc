#include "webhook/decision/validate.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "common/settings/settings.h"
#include "sluice/names.h"

namespace sluice::webhook {
namespace {

constexpr TemplateKind kTemplates[] = {
    {"apps", "deployments", "Deployment", "/spec/template"},
    {"apps", "statefulsets", "StatefulSet", "/spec/template"},
    {"apps", "daemonsets", "DaemonSet", "/spec/template"},
    {"apps", "replicasets", "ReplicaSet", "/spec/template"},
    {"batch", "jobs", "Job", "/spec/template"},
    {"batch", "cronjobs", "CronJob", "/spec/jobTemplate/spec/template"},
};

// Our annotations of an object, by their whole key.
std::map<std::string, std::string> Ours(const Json& object, bool aliases) {
  std::map<std::string, std::string> out;
  const Json* metadata = Member(object, "metadata");
  const Json* annotations = metadata == nullptr ? nullptr : Member(*metadata, "annotations");
  if (annotations == nullptr || !annotations->is_object()) return out;
  for (const auto& [key, value] : annotations->items()) {
    if (!OurKey(key) && !(aliases && (key == "gpu-fraction" || key == "gpu-memory"))) continue;
    out[key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return out;
}

std::vector<std::string> Changed(const std::map<std::string, std::string>& before,
                                 const std::map<std::string, std::string>& after) {
  std::vector<std::string> out;
  for (const auto& [key, value] : after) {
    const auto it = before.find(key);
    if (it == before.end() || it->second != value) out.push_back(key);
  }
  for (const auto& [key, value] : before) {
    if (!after.contains(key)) out.push_back(key);
  }
  return out;
}

bool IsOwn(const AnnotationKey& key) {
  return !key.by_name && (key.key == SLUICE_KEY_INJECTED || key.key == SLUICE_KEY_PLACEMENT);
}

bool Trusted(const Config& config, const Asker& asker) {
  return std::any_of(config.trusted.begin(), config.trusted.end(), [&](const std::string& name) {
    return name == asker.user || std::find(asker.groups.begin(), asker.groups.end(), name) != asker.groups.end();
  });
}

}  // namespace

std::string Judgement::Message() const {
  std::string out;
  for (const Finding& f : denials) {
    if (!out.empty()) out += "; also ";
    out += f.text;
  }
  return out;
}

Judgement ValidateUpdate(const Json& old_pod, const Input& input, const Asker& asker) {
  Judgement out;
  const auto before = Ours(old_pod, input.config.aliases);
  const auto after = Ours(input.pod, input.config.aliases);
  bool live = false;
  for (const std::string& annotation : Changed(before, after)) {
    const auto key = OurKey(annotation);
    if (key && IsOwn(*key)) {
      // The extender's Binding brings the placement, and is no update of the pod: with one of his own, a user would
      // have cards reserved that he does not hold.
      if (Trusted(input.config, asker)) continue;
      out.denials.push_back({Rule::kOwnKey, annotation + ": only sluice changes this; accepted: leave it as it is"});
      continue;
    }
    const settings::Key* known = key ? settings::Find(key->key) : nullptr;
    if (known != nullptr && known->live) {
      live = true;
      continue;
    }
    if (key && known == nullptr && after.contains(annotation)) {
      live = true;  // the decision says that it is unknown, and what is accepted
      continue;
    }
    if (key && known == nullptr) continue;  // an unknown key goes away: good
    out.denials.push_back({Rule::kOwnKey, annotation + ": cannot change on a running pod; accepted: changes of " +
                                              settings::LiveNames() + ", or a new pod"});
  }
  if (!live || !out.denials.empty()) return out;
  Input running{input.pod, input.name_space, input.config, input.nodes, Mode::kUpdate, input.off};
  Decision decision = Decide(running);
  out.denials = std::move(decision.denials);
  out.warnings = std::move(decision.warnings);
  return out;
}

std::string_view NotHandledSentence() {
  return "this pod asks for a share of a GPU (annotation sluice.dev/... or resource sluice.dev/gpu-percent), but "
         "sluice's "
         "webhook has not handled it: the webhook was not reachable, or it leaves this namespace alone; it would run "
         "without its limit, so it is refused. Try again; an administrator finds more with: kubectl sluice doctor";
}

Judgement ValidateCreate(const Input& input) {
  Judgement out;
  if (ConcernsUs(input.pod, input.config.aliases) && !Handled(input.pod)) {
    out.denials.push_back({Rule::kSetMarker, std::string(NotHandledSentence())});
  }
  return out;
}

std::span<const TemplateKind> TemplateKinds() { return kTemplates; }

const Json* TemplateOf(const Json& workload, const TemplateKind& kind) {
  const Json::json_pointer pointer{std::string(kind.pointer)};
  return workload.is_object() && workload.contains(pointer) && workload[pointer].is_object() ? &workload[pointer]
                                                                                             : nullptr;
}

Judgement ValidateTemplate(const Json* old, const Input& input, const TemplateKind& kind) {
  Judgement out;
  const Json* metadata = Member(input.pod, "metadata");
  const Json* owners = metadata == nullptr ? nullptr : Member(*metadata, "ownerReferences");
  // A ReplicaSet of a Deployment, a Job of a CronJob: judged at its owner; refusing it here would only stop a
  // controller.
  if (owners != nullptr && owners->is_array() && std::any_of(owners->begin(), owners->end(), [](const Json& o) {
        const Json* controller = Member(o, "controller");
        return controller != nullptr && *controller == true;
      })) {
    return out;
  }
  const Json* pod = TemplateOf(input.pod, kind);
  if (pod == nullptr) return out;
  const auto misplaced = Ours(input.pod, false);
  if (!misplaced.empty()) {
    std::string where(kind.pointer.substr(1));
    std::replace(where.begin(), where.end(), '/', '.');
    out.warnings.push_back("the annotation " + misplaced.begin()->first + " on the " + std::string(kind.kind) +
                           " itself has no effect; put it into " + where + ".metadata.annotations");
  }
  if (old != nullptr) {
    const Json* before = TemplateOf(*old, kind);
    const bool aliases = input.config.aliases;
    if (before != nullptr && Ours(*before, aliases) == Ours(*pod, aliases)) return out;
  }
  Input judged{*pod, input.name_space, input.config, input.nodes, Mode::kTemplate, input.off};
  Decision decision = Decide(judged);
  out.denials = std::move(decision.denials);
  for (Finding& f : out.denials) f.text = std::string(kind.pointer.substr(1)) + ": " + f.text;
  out.warnings.insert(out.warnings.end(), decision.warnings.begin(), decision.warnings.end());
  return out;
}

}  // namespace sluice::webhook
