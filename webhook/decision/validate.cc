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

// Sluice's annotations of an object, by their whole key.
std::map<std::string, std::string> OwnAnnotations(const Json& object, bool aliases) {
  std::map<std::string, std::string> out;
  const Json* metadata = Member(object, "metadata");
  const Json* annotations = metadata == nullptr ? nullptr : Member(*metadata, "annotations");
  if (annotations == nullptr || !annotations->is_object()) return out;
  for (const auto& [key, value] : annotations->items()) {
    if (!ParseOwnKey(key) && !(aliases && (key == "gpu-fraction" || key == "gpu-memory"))) continue;
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

// Whether only sluice may write the annotation.
bool IsReserved(const AnnotationKey& key) {
  return !key.by_name && (key.key == SLUICE_KEY_INJECTED || key.key == SLUICE_KEY_PLACEMENT);
}

bool IsTrusted(const Config& config, const Requester& requester) {
  const auto& groups = requester.groups;
  return std::any_of(config.trusted.begin(), config.trusted.end(), [&](const std::string& name) {
    return name == requester.user || std::find(groups.begin(), groups.end(), name) != groups.end();
  });
}

}  // namespace

ValidationResult ValidateUpdate(const Json& old_pod, const Input& input, const Requester& requester) {
  ValidationResult out;
  const auto before = OwnAnnotations(old_pod, input.config.aliases);
  const auto after = OwnAnnotations(input.pod, input.config.aliases);
  bool needs_decision = false;
  for (const std::string& annotation : Changed(before, after)) {
    const auto key = ParseOwnKey(annotation);
    if (key && IsReserved(*key)) {
      // The extender sets the placement in its Binding, which is no update of the pod. With a placement of their own,
      // users could reserve GPUs that they do not hold.
      if (IsTrusted(input.config, requester)) continue;
      out.denials.push_back(
          {Rule::kOwnKey, annotation + ": only sluice may change this annotation; accepted: no change"});
      continue;
    }
    const settings::Key* known = key ? settings::Find(key->key) : nullptr;
    if (known != nullptr && known->live) {
      needs_decision = true;
      continue;
    }
    if (key && known == nullptr && after.contains(annotation)) {
      needs_decision = true;  // the decision denies the unknown key and lists the accepted ones
      continue;
    }
    if (key && known == nullptr) continue;  // the removal of an unknown key is allowed
    out.denials.push_back(
        {Rule::kOwnKey, annotation + ": this annotation cannot change on a running pod; accepted: a change of " +
                            settings::LiveNames() + ", or a new pod"});
  }
  if (!needs_decision || !out.denials.empty()) return out;
  const Input running{input.pod, input.name_space, input.config, input.nodes, Mode::kUpdate, input.off};
  Decision decision = Decide(running);
  out.denials = std::move(decision.denials);
  out.warnings = std::move(decision.warnings);
  return out;
}

std::string_view NotHandledSentence() {
  return "this pod requests a share of a GPU (annotation sluice.dev/... or resource sluice.dev/gpu-percent), but "
         "sluice's webhook has not handled it: the webhook was not reachable, or its configuration excludes this "
         "namespace. The pod would run without its limit, so it is denied. Try again; an administrator can find the "
         "cause with: kubectl sluice doctor";
}

ValidationResult ValidateCreate(const Input& input) {
  ValidationResult out;
  if (ConcernsSluice(input.pod, input.config.aliases) && !IsHandled(input.pod)) {
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

ValidationResult ValidateTemplate(const Json* old, const Input& input, const TemplateKind& kind) {
  ValidationResult out;
  const Json* metadata = Member(input.pod, "metadata");
  const Json* owners = metadata == nullptr ? nullptr : Member(*metadata, "ownerReferences");
  // The owner was checked (a Deployment of a ReplicaSet, a CronJob of a Job); a denial here would only stop a
  // controller.
  if (owners != nullptr && owners->is_array() && std::any_of(owners->begin(), owners->end(), [](const Json& o) {
        const Json* controller = Member(o, "controller");
        return controller != nullptr && *controller == true;
      })) {
    return out;
  }
  const Json* pod = TemplateOf(input.pod, kind);
  if (pod == nullptr) return out;
  const auto misplaced = OwnAnnotations(input.pod, false);
  if (!misplaced.empty()) {
    std::string where(kind.pointer.substr(1));
    std::replace(where.begin(), where.end(), '/', '.');
    out.warnings.push_back("the annotation " + misplaced.begin()->first + " on the " + std::string(kind.kind) +
                           " itself has no effect; put it into " + where + ".metadata.annotations");
  }
  if (old != nullptr) {
    const Json* before = TemplateOf(*old, kind);
    const bool aliases = input.config.aliases;
    if (before != nullptr && OwnAnnotations(*before, aliases) == OwnAnnotations(*pod, aliases)) return out;
  }
  const Input of_template{*pod, input.name_space, input.config, input.nodes, Mode::kTemplate, input.off};
  Decision decision = Decide(of_template);
  out.denials = std::move(decision.denials);
  for (Finding& f : out.denials) f.text = std::string(kind.pointer.substr(1)) + ": " + f.text;
  out.warnings.insert(out.warnings.end(), decision.warnings.begin(), decision.warnings.end());
  return out;
}

}  // namespace sluice::webhook
