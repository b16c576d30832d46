#include "webhook/decision/policy.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "sluice/names.h"
#include "webhook/decision/host_access.h"
#include "webhook/decision/validate.h"

namespace sluice::webhook {
namespace {

using Json = nlohmann::json;

constexpr char kAdmission[] = "admissionregistration.k8s.io/v1";
constexpr char kIsOwnKey[] = "k.matches('^([^/]+[.])?sluice[.]dev/')";
constexpr char kIsAliasKey[] =
    "(k in ['gpu-fraction', 'gpu-memory'] || "
    "k.matches('^nvidia[.]com/container[.].+[.]gpu-memory[.](request|limit)$'))";
constexpr char kIsAliasResource[] =
    "r in ['nvidia.com/gpumem', 'nvidia.com/gpumem-percentage', 'nvidia.com/gpucores', 'nvshare.com/gpu']";

std::string HasAnnotations(const std::string& at) {
  // A template's metadata may be absent; a stored object's never is.
  return "has(" + at + ".metadata) && has(" + at + ".metadata.annotations)";
}

std::string RequestsResourceCel(const std::string& c) {
  const auto in = [&](const std::string& list) {
    return "(has(" + c + ".resources." + list + ") && '" SLUICE_RESOURCE "' in " + c + ".resources." + list + ")";
  };
  return "(has(" + c + ".resources) && (" + in("limits") + " || " + in("requests") + "))";
}

std::string RequestsAliasCel(const std::string& c) {
  const auto in = [&](const std::string& list) {
    return "(has(" + c + ".resources." + list + ") && " + c + ".resources." + list + ".exists(r, " + kIsAliasResource +
           "))";
  };
  return "(has(" + c + ".resources) && (" + in("limits") + " || " + in("requests") + "))";
}

std::string IsMirrorCel(const std::string& at) {
  return "(" + HasAnnotations(at) + " && 'kubernetes.io/config.mirror' in " + at + ".metadata.annotations)";
}

// `c` in `condition` is a container.
std::string AnyContainerCel(const std::string& at, const std::string& condition) {
  return "(" + at + ".spec.containers.exists(c, " + condition + ") || (has(" + at + ".spec.initContainers) && " + at +
         ".spec.initContainers.exists(c, " + condition + ")))";
}

std::string IsOwnKeyCel(bool aliases) {
  return aliases ? std::string("(") + kIsOwnKey + " || " + kIsAliasKey + ")" : kIsOwnKey;
}

Json Condition(const std::string& name, const std::string& expression) {
  return {{"name", name}, {"expression", expression}};
}

Json Rules(const std::vector<std::string>& operations, const std::string& group,
           const std::vector<std::string>& resources) {
  return Json::array({{{"operations", operations},
                       {"apiGroups", {group}},
                       {"apiVersions", {"v1"}},
                       {"resources", resources},
                       {"scope", "Namespaced"}}});
}

// Each of `workloads` is GROUP/RESOURCE.
Json WorkloadRules(const std::vector<std::string>& workloads) {
  Json out = Json::array();
  for (const std::string& workload : workloads) {
    const size_t slash = workload.find('/');
    Json rule = Rules({"CREATE", "UPDATE"}, workload.substr(0, slash), {workload.substr(slash + 1)}).front();
    rule["apiVersions"] = {"*"};
    out.push_back(std::move(rule));
  }
  return out;
}

Json NamespaceSelector(const std::vector<std::string>& excluded) {
  if (excluded.empty()) return Json::object();
  return {
      {"matchExpressions", {{{"key", "kubernetes.io/metadata.name"}, {"operator", "NotIn"}, {"values", excluded}}}}};
}

Json Webhook(const PolicyOptions& o, const std::string& name, const std::string& path, Json rules, Json conditions,
             const char* failure) {
  Json client = Json::object();
  if (o.url.empty()) {
    client["service"] = {{"namespace", o.service_namespace}, {"name", o.service_name}, {"path", path}, {"port", 443}};
  } else {
    client["url"] = o.url + path;
  }
  if (!o.ca_bundle.empty()) client["caBundle"] = o.ca_bundle;
  return {{"name", name},
          {"admissionReviewVersions", {"v1"}},
          {"clientConfig", std::move(client)},
          {"failurePolicy", failure},
          {"matchPolicy", "Equivalent"},
          {"namespaceSelector", NamespaceSelector(o.excluded_namespaces)},
          {"matchConditions", std::move(conditions)},
          {"rules", std::move(rules)},
          {"sideEffects", "None"},
          {"timeoutSeconds", 5}};
}

// For a workload: true at its creation, and when sluice's annotations change. The workload's own annotations count too:
// they are misplaced, and kubectl shows a warning.
std::string TemplateCel(const std::string& below, bool aliases) {
  const std::string own =
      "(" + HasAnnotations("object") + " && object.metadata.annotations.exists(k, " + kIsOwnKey + "))";
  return "request.operation == 'CREATE' ? (" + own + " || " + ConcernsSluiceCel("object" + below, aliases) +
         ") : " + KeysChangedCel(below, aliases);
}

// The units of templates, where queues count them: for Kubernetes' own kinds one webhook each, as their conditions know
// the template's place.
Json QueuedWebhooks(const PolicyOptions& o) {
  Json out = Json::array();
  std::vector<std::string> others;
  for (const std::string& workload : o.queued) {
    const auto kinds = TemplateKinds();
    const auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const TemplateKind& k) {
      return workload == std::string(k.group) + "/" + std::string(k.resource);
    });
    if (kind == kinds.end()) {
      others.push_back(workload);
      continue;
    }
    std::string below(kind->pointer);
    std::replace(below.begin(), below.end(), '/', '.');
    out.push_back(Webhook(o, "queued-" + std::string(kind->resource) + ".sluice.dev", "/mutate",
                          Rules({"CREATE", "UPDATE"}, std::string(kind->group), {std::string(kind->resource)}),
                          Json::array({Condition("concerns-sluice", TemplateCel(below, o.aliases))}), "Ignore"));
  }
  if (!others.empty()) {
    out.push_back(Webhook(o, "queued.sluice.dev", "/mutate", WorkloadRules(others),
                          Json::array({Condition("changed", WorkloadSpecChangedCel())}), "Ignore"));
  }
  for (Json& webhook : out) webhook["reinvocationPolicy"] = "IfNeeded";
  return out;
}

Json Object(const char* kind, const char* name) {
  return {{"apiVersion", kAdmission}, {"kind", kind}, {"metadata", {{"name", name}}}};
}

}  // namespace

std::string ConcernsSluiceCel(const std::string& at, bool aliases) {
  const std::string annotations = at + ".metadata.annotations";
  std::string own =
      annotations + ".exists(k, " + kIsOwnKey + " && !(k == 'sluice.dev/inject' && " + annotations + "[k] == 'true'))";
  if (aliases) own = "(" + own + " || " + annotations + ".exists(k, " + kIsAliasKey + "))";
  const std::string left_alone = "(" + HasAnnotations(at) + " && 'sluice.dev/inject' in " + annotations + " && " +
                                 annotations + "['sluice.dev/inject'] == 'false')";
  std::string out = "!" + IsMirrorCel(at) + " && ((!" + left_alone + " && " + HasAnnotations(at) + " && " + own +
                    ") || " + AnyContainerCel(at, RequestsResourceCel("c"));
  if (aliases) out += " || (!" + left_alone + " && " + AnyContainerCel(at, RequestsAliasCel("c")) + ")";
  return out + ")";
}

std::string NeedsDecisionCel(const std::string& at, bool aliases) {
  const std::string sets_devices = "(has(c.env) && c.env.exists(e, e.name == '" + std::string(kVisibleDevices) + "'))";
  return "(" + ConcernsSluiceCel(at, aliases) + ") || (!" + IsMirrorCel(at) + " && " +
         AnyContainerCel(at, sets_devices) + ")";
}

std::string InjectedCel() {
  return HasAnnotations("object") + " && '" SLUICE_DOMAIN "/" SLUICE_KEY_INJECTED "' in object.metadata.annotations";
}

std::string HandledCel() {
  const std::string library = "(!" + RequestsResourceCel("c") +
                              " || (has(c.env) && c.env.exists(e, e.name == 'LD_PRELOAD' && has(e.value) && "
                              "e.value.startsWith('" SLUICE_CONTAINER_SHIM "'))))";
  return InjectedCel() +
         " && !('" SLUICE_DOMAIN "/" SLUICE_KEY_PLACEMENT "' in object.metadata.annotations) && !('" SLUICE_DOMAIN
         "/" SLUICE_KEY_GRANTED "' in object.metadata.annotations) && object.spec.containers.all(c, " +
         library + ") && (!has(object.spec.initContainers) || object.spec.initContainers.all(c, " + library + "))";
}

std::string KeysChangedCel(const std::string& below, bool aliases) {
  const std::string now = "object" + below, old = "oldObject" + below;
  const std::string has_now = HasAnnotations(now), has_old = HasAnnotations(old);
  const std::string in_now = now + ".metadata.annotations", in_old = old + ".metadata.annotations";
  return "((" + has_now + " && " + in_now + ".exists(k, " + IsOwnKeyCel(aliases) + " && !(" + has_old + " && k in " +
         in_old + " && " + in_old + "[k] == " + in_now + "[k]))) || (" + has_old + " && " + in_old + ".exists(k, " +
         IsOwnKeyCel(aliases) + " && !(" + has_now + " && k in " + in_now + "))))";
}

std::string ReappliedCel() {
  return HasAnnotations("oldObject") + " && '" SLUICE_DOMAIN "/" SLUICE_KEY_INJECTED
                                       "' in oldObject.metadata.annotations && object.spec != oldObject.spec";
}

std::string WorkloadChangedCel() {
  return "request.operation == 'CREATE' || !has(object.metadata.generation) || !has(oldObject.metadata.generation) || "
         "object.metadata.generation != oldObject.metadata.generation";
}

std::string WorkloadSpecChangedCel() {
  return "request.operation == 'CREATE' || !has(object.spec) || !has(oldObject.spec) || object.spec != oldObject.spec";
}

Json PolicyConditions() {
  Json out = Json::object();
  for (const bool aliases : {false, true}) {
    Json& set = out[aliases ? "withAliases" : "withoutAliases"];
    set["pod"] = ConcernsSluiceCel("object", aliases);
    set["podDecision"] = NeedsDecisionCel("object", aliases);
    set["podKeysChanged"] = KeysChangedCel("", aliases);
    set["template"] = TemplateCel(".spec.template", aliases);
    set["cronJob"] = TemplateCel(".spec.jobTemplate.spec.template", aliases);
  }
  out["handled"] = HandledCel();
  out["injected"] = InjectedCel();
  out["reapplied"] = ReappliedCel();
  out["workloadChanged"] = WorkloadChangedCel();
  out["workloadSpecChanged"] = WorkloadSpecChangedCel();
  out["message"] = NotHandledSentence();
  return out;
}

std::vector<Json> PolicyManifests(const PolicyOptions& o) {
  const Json pod = Json::array({Condition("concerns-sluice", ConcernsSluiceCel("object", o.aliases))});
  Json mutating = Object("MutatingWebhookConfiguration", "sluice");
  const Json decision = Json::array({Condition("concerns-sluice", NeedsDecisionCel("object", o.aliases))});
  Json mutate = Webhook(o, "mutate.sluice.dev", "/mutate", Rules({"CREATE"}, "", {"pods"}), decision, "Ignore");
  mutate["reinvocationPolicy"] = "IfNeeded";
  if (o.by_claims) mutate["sideEffects"] = "NoneOnDryRun";
  const auto reapplied = Json::array({Condition("reapplied", ReappliedCel())});
  mutating["webhooks"] =
      Json::array({std::move(mutate),
                   Webhook(o, "reapply.sluice.dev", "/mutate", Rules({"UPDATE"}, "", {"pods"}), reapplied, "Ignore")});

  for (Json& webhook : QueuedWebhooks(o)) mutating["webhooks"].push_back(std::move(webhook));

  Json validating = Object("ValidatingWebhookConfiguration", "sluice");
  const auto changed = Json::array({Condition("sluice-keys-changed", KeysChangedCel("", o.aliases))});
  // Fail: only changes of sluice's own annotations wait for the webhook. Else an outage would let a pod's owner write
  // its placement, by which the extender reckons, and values that no one has read.
  validating["webhooks"] = Json::array(
      {Webhook(o, "pods.sluice.dev", "/validate", Rules({"UPDATE"}, "", {"pods"}), changed, "Fail"),
       Webhook(o, "ephemeral.sluice.dev", "/validate", Rules({"UPDATE"}, "", {"pods/ephemeralcontainers"}),
               Json::array({Condition("has-share", InjectedCel())}), "Ignore"),
       Webhook(o, "template.sluice.dev", "/validate",
               Rules({"CREATE", "UPDATE"}, "apps", {"deployments", "statefulsets", "daemonsets", "replicasets"}),
               Json::array({Condition("concerns-sluice", TemplateCel(".spec.template", o.aliases))}), "Ignore"),
       Webhook(o, "job.sluice.dev", "/validate", Rules({"CREATE", "UPDATE"}, "batch", {"jobs"}),
               Json::array({Condition("concerns-sluice", TemplateCel(".spec.template", o.aliases))}), "Ignore"),
       Webhook(o, "cronjob.sluice.dev", "/validate", Rules({"CREATE", "UPDATE"}, "batch", {"cronjobs"}),
               Json::array({Condition("concerns-sluice", TemplateCel(".spec.jobTemplate.spec.template", o.aliases))}),
               "Ignore"),
       Webhook(o, "replicationcontroller.sluice.dev", "/validate",
               Rules({"CREATE", "UPDATE"}, "", {"replicationcontrollers"}),
               Json::array({Condition("concerns-sluice", TemplateCel(".spec.template", o.aliases))}), "Ignore")});
  if (!o.workloads.empty()) {
    validating["webhooks"].push_back(Webhook(o, "workload.sluice.dev", "/validate", WorkloadRules(o.workloads),
                                             Json::array({Condition("changed", WorkloadChangedCel())}), "Ignore"));
  }
  if (o.without_policy) {
    // No namespace is excluded, as for the policy: otherwise a pod could run without its limit there.
    Json handled = Webhook(o, "handled.sluice.dev", "/validate", Rules({"CREATE"}, "", {"pods"}), pod, "Fail");
    handled["namespaceSelector"] = Json::object();
    validating["webhooks"].push_back(std::move(handled));
    return {std::move(mutating), std::move(validating)};
  }
  Json policy = Object("ValidatingAdmissionPolicy", "sluice-handled");
  policy["spec"] = {
      {"failurePolicy", "Fail"},
      {"matchConstraints", {{"resourceRules", Rules({"CREATE"}, "", {"pods"})}}},
      {"matchConditions", pod},
      {"validations",
       Json::array({{{"expression", HandledCel()}, {"message", NotHandledSentence()}, {"reason", "Forbidden"}}})}};
  Json binding = Object("ValidatingAdmissionPolicyBinding", "sluice-handled");
  binding["spec"] = {{"policyName", "sluice-handled"}, {"validationActions", {"Deny"}}};
  return {std::move(mutating), std::move(validating), std::move(policy), std::move(binding)};
}

}  // namespace sluice::webhook
