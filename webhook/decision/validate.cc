#include "webhook/decision/validate.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "common/settings/settings.h"
#include "sluice/names.h"
#include "webhook/decision/findings.h"
#include "webhook/decision/host_access.h"
#include "webhook/decision/marker.h"
#include "webhook/decision/resize.h"
#include "webhook/decision/resource_claim.h"
#include "webhook/decision/share_claim.h"
#include "webhook/decision/template_search.h"

namespace sluice::webhook {
namespace {

constexpr TemplateKind kTemplates[] = {
    {"apps", "deployments", "Deployment", "/spec/template"},
    {"apps", "statefulsets", "StatefulSet", "/spec/template"},
    {"apps", "daemonsets", "DaemonSet", "/spec/template"},
    {"apps", "replicasets", "ReplicaSet", "/spec/template"},
    {"batch", "jobs", "Job", "/spec/template"},
    {"batch", "cronjobs", "CronJob", "/spec/jobTemplate/spec/template"},
    {"", "replicationcontrollers", "ReplicationController", "/spec/template"},
};

// Sluice's annotations of an object, by their whole key.
std::map<std::string, std::string> OwnAnnotations(const Json& object, bool aliases) {
  std::map<std::string, std::string> out;
  const Json* metadata = Member(object, "metadata");
  const Json* annotations = metadata == nullptr ? nullptr : Member(*metadata, "annotations");
  if (annotations == nullptr || !annotations->is_object()) return out;
  for (const auto& [key, value] : annotations->items()) {
    if (!IsOwnAnnotation(key, aliases)) continue;
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
  return !key.by_name &&
         (key.key == SLUICE_KEY_INJECTED || key.key == SLUICE_KEY_PLACEMENT || key.key == SLUICE_KEY_GRANTED);
}

// Whether sluice.dev/inject: "false" makes all other annotations meaningless.
bool IsLeftAlone(const Json& pod) {
  const Json* metadata = Member(pod, "metadata");
  const Json* annotations = metadata == nullptr ? nullptr : Member(*metadata, "annotations");
  return annotations != nullptr && Text(*annotations, kInjectField) == "false";
}

const TemplateKind* KindOf(const Json& workload) {
  const std::string_view api = Text(workload, "apiVersion");
  const std::string_view group = api.substr(0, api.find('/') == std::string_view::npos ? 0 : api.find('/'));
  for (const TemplateKind& kind : kTemplates) {
    // A document without apiVersion is Kubernetes' own: `sluice admit` reads manifests as people type them.
    if (kind.kind == Text(workload, "kind") && (api.empty() || kind.group == group)) return &kind;
  }
  return nullptr;
}

// Whether another workload made this one. Its own template was checked (a Deployment's, a CronJob's); a denial here
// would only stop a controller.
bool IsOwned(const Json& workload) {
  const Json* metadata = Member(workload, "metadata");
  const Json* owners = metadata == nullptr ? nullptr : Member(*metadata, "ownerReferences");
  return owners != nullptr && owners->is_array() && std::any_of(owners->begin(), owners->end(), [](const Json& o) {
           const Json* controller = Member(o, "controller");
           return controller != nullptr && *controller == true;
         });
}

void WarnStrays(const Input& input, const TemplateKind* kind, const std::vector<std::string>& templates,
                ValidationResult& out) {
  if (kind != nullptr) {
    const auto misplaced = OwnAnnotations(input.pod, input.config.aliases);
    if (misplaced.empty()) return;
    std::string where(kind->pointer.substr(1));
    std::replace(where.begin(), where.end(), '/', '.');
    out.warnings.push_back("the annotation " + misplaced.begin()->first + " on the " + std::string(kind->kind) +
                           " itself has no effect; put it into " + where + ".metadata.annotations");
    return;
  }
  for (const StrayAnnotation& stray : FindStrayAnnotations(input.pod, templates, input.config.aliases)) {
    out.warnings.push_back(stray.pointer.substr(1) + ": the annotation " + stray.key.substr(0, 100) +
                           " is in no pod template that sluice finds, and was not checked; it counts where the pods "
                           "get it");
  }
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
  const bool is_left_alone = IsLeftAlone(old_pod) && IsLeftAlone(input.pod);
  const auto before = OwnAnnotations(old_pod, input.config.aliases);
  const auto after = OwnAnnotations(input.pod, input.config.aliases);
  const bool is_claimed = HasOwnClaim(old_pod) && !input.off.test(static_cast<size_t>(Rule::kClaimOnly));
  bool needs_decision = false, is_resize = false;
  for (const std::string& annotation : Changed(before, after)) {
    const auto key = ParseOwnKey(annotation);
    if (key && IsReserved(*key)) {
      // The extender sets the placement in its Binding, and the agent its grant through pods/status, which is no
      // update of the pod. With a placement of their own,
      // users could reserve GPUs that they do not hold.
      if (IsTrusted(input.config, requester)) continue;
      out.denials.push_back(
          {Rule::kOwnKey, annotation + ": only sluice may change this annotation; accepted: no change"});
      continue;
    }
    if (is_left_alone) continue;
    if (is_claimed && key && (after.contains(annotation) || settings::Find(key->key) != nullptr)) {
      out.denials.push_back(
          {Rule::kClaimOnly, annotation + ": this pod's share is a ResourceClaim, whose settings annotations do not " +
                                 "change while it runs; accepted: no change, `sluice set` on the node, or a new pod"});
      continue;
    }
    const settings::Key* known = key ? settings::Find(key->key) : nullptr;
    const bool is_size = IsSizeAnnotation(annotation, input.config.aliases);
    if (is_size && !after.contains(annotation) && !HasOtherSize(after, annotation, input.config.aliases)) {
      out.denials.push_back({Rule::kOwnKey, annotation + ": this annotation gives the share and cannot go from a " +
                                                "running pod; accepted: another value, or a new pod"});
      continue;
    }
    is_resize |= is_size;
    if (is_size || (known != nullptr && known->settable)) {
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
                            settings::SettableNames() + ", or a new pod"});
  }
  if (!needs_decision || !out.denials.empty()) return out;
  const Input running{input.pod, input.name_space, input.config, input.nodes, Mode::kUpdate, input.off, is_resize};
  Decision decision = Decide(running);
  out.denials = std::move(decision.denials);
  out.warnings = std::move(decision.warnings);
  return out;
}

ValidationResult ValidateEphemeral(const Json& old_pod, const Input& input) {
  ValidationResult out;
  const auto& excluded = input.config.excluded_namespaces;
  if (std::ranges::find(excluded, input.name_space) != excluded.end()) return out;
  const PodView view = ViewPod(input.pod), before = ViewPod(old_pod);
  Decision decision;
  Findings findings(decision, input.off);
  if (!view.error.empty()) findings.Deny(Rule::kMalformed, view.error);
  if (view.error.empty() && view.annotations != nullptr && view.annotations->contains(kMarkerField)) {
    for (const Container& c : view.containers) {
      if (c.kind != ContainerKind::kEphemeral) continue;
      // Containers that are there do not change. Without a list of them all are judged.
      const bool is_new = !before.error.empty() || std::ranges::none_of(before.containers, [&](const Container& b) {
        return b.kind == c.kind && b.name == c.name && *b.json == *c.json;
      });
      if (is_new) CheckEphemeral(view, c, input, findings);
    }
  }
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

bool IsWorkloadKind(const Json& object) { return object.is_object() && KindOf(object) != nullptr; }

std::vector<std::string> TemplatesOf(const Json& workload) {
  if (!workload.is_object()) return {};
  const TemplateKind* kind = KindOf(workload);
  if (kind == nullptr) return FindTemplates(workload);
  std::string pointer(kind->pointer);
  return FindAt(workload, pointer) == nullptr ? std::vector<std::string>()
                                              : std::vector<std::string>{std::move(pointer)};
}

ValidationResult ValidateTemplate(const Json* old, const Input& input) {
  ValidationResult out;
  if (IsResourceClaim(input.pod)) return ValidateResourceClaim(input);
  if (IsOwned(input.pod)) return out;
  const TemplateKind* kind = KindOf(input.pod);
  const std::vector<std::string> templates = TemplatesOf(input.pod);
  WarnStrays(input, kind, templates, out);
  const bool aliases = input.config.aliases;
  for (const std::string& pointer : templates) {
    const Json* found = FindAt(input.pod, pointer);
    const Json* before = old == nullptr ? nullptr : FindAt(*old, pointer);
    if (before != nullptr && OwnAnnotations(*before, aliases) == OwnAnnotations(*found, aliases)) continue;
    const Json pod = kind == nullptr ? TemplateAsPod(*found) : *found;
    if (kind == nullptr && !NeedsDecision(pod, aliases)) continue;
    Decision decision = Decide({pod, input.name_space, input.config, input.nodes, Mode::kTemplate, input.off});
    for (Finding& f : decision.denials) {
      out.denials.push_back({f.rule, pointer.substr(std::min<size_t>(1, pointer.size())) + ": " + f.text});
    }
    out.warnings.insert(out.warnings.end(), decision.warnings.begin(), decision.warnings.end());
    if (out.denials.size() >= Findings::kMaxFindings) break;
  }
  return out;
}

}  // namespace sluice::webhook
