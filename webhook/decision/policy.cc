#include "webhook/decision/policy.h"

#include <nlohmann/json.hpp>

#include "sluice/names.h"
#include "webhook/decision/validate.h"

namespace sluice::webhook {
namespace {

using Json = nlohmann::json;

constexpr char kAdmission[] = "admissionregistration.k8s.io/v1";
constexpr char kIsOwnKey[] = "k.matches('^([^/]+[.])?sluice[.]dev/')";

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

std::string IsOwnKeyCel(bool aliases) {
  return aliases ? std::string("(") + kIsOwnKey + " || k in ['gpu-fraction', 'gpu-memory'])" : kIsOwnKey;
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

Json Object(const char* kind, const char* name) {
  return {{"apiVersion", kAdmission}, {"kind", kind}, {"metadata", {{"name", name}}}};
}

}  // namespace

std::string ConcernsSluiceCel(const std::string& at, bool aliases) {
  const std::string annotations = at + ".metadata.annotations";
  const std::string has = HasAnnotations(at);
  std::string out = "!(" + has + " && 'kubernetes.io/config.mirror' in " + annotations + ") && ((" + has + " && " +
                    annotations + ".exists(k, " + kIsOwnKey + " && !(k == 'sluice.dev/inject' && " + annotations +
                    "[k] in ['false', 'true'])))";
  if (aliases) {
    out += " || (" + has + " && ('gpu-fraction' in " + annotations + " || 'gpu-memory' in " + annotations + "))";
  }
  return out + " || " + at + ".spec.containers.exists(c, " + RequestsResourceCel("c") + ") || (has(" + at +
         ".spec.initContainers) && " + at + ".spec.initContainers.exists(c, " + RequestsResourceCel("c") + ")))";
}

std::string HandledCel() {
  const std::string library = "(!" + RequestsResourceCel("c") +
                              " || (has(c.env) && c.env.exists(e, e.name == 'LD_PRELOAD' && has(e.value) && "
                              "e.value.startsWith('" SLUICE_CONTAINER_SHIM "'))))";
  return HasAnnotations("object") +
         " && '" SLUICE_DOMAIN "/" SLUICE_KEY_INJECTED
         "' in object.metadata.annotations && object.spec.containers.all(c, " +
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

Json PolicyConditions() {
  Json out = Json::object();
  for (const bool aliases : {false, true}) {
    Json& set = out[aliases ? "withAliases" : "withoutAliases"];
    set["pod"] = ConcernsSluiceCel("object", aliases);
    set["podKeysChanged"] = KeysChangedCel("", aliases);
    set["template"] = TemplateCel(".spec.template", aliases);
    set["cronJob"] = TemplateCel(".spec.jobTemplate.spec.template", aliases);
  }
  out["handled"] = HandledCel();
  out["message"] = NotHandledSentence();
  return out;
}

std::vector<Json> PolicyManifests(const PolicyOptions& o) {
  const Json pod = Json::array({Condition("concerns-sluice", ConcernsSluiceCel("object", o.aliases))});
  Json mutating = Object("MutatingWebhookConfiguration", "sluice");
  Json mutate = Webhook(o, "mutate.sluice.dev", "/mutate", Rules({"CREATE"}, "", {"pods"}), pod, "Ignore");
  mutate["reinvocationPolicy"] = "IfNeeded";
  mutating["webhooks"] = Json::array({std::move(mutate)});

  Json validating = Object("ValidatingWebhookConfiguration", "sluice");
  const auto changed = Json::array({Condition("sluice-keys-changed", KeysChangedCel("", o.aliases))});
  validating["webhooks"] = Json::array(
      {Webhook(o, "pods.sluice.dev", "/validate", Rules({"UPDATE"}, "", {"pods"}), changed, "Ignore"),
       Webhook(o, "template.sluice.dev", "/validate",
               Rules({"CREATE", "UPDATE"}, "apps", {"deployments", "statefulsets", "daemonsets", "replicasets"}),
               Json::array({Condition("concerns-sluice", TemplateCel(".spec.template", o.aliases))}), "Ignore"),
       Webhook(o, "job.sluice.dev", "/validate", Rules({"CREATE", "UPDATE"}, "batch", {"jobs"}),
               Json::array({Condition("concerns-sluice", TemplateCel(".spec.template", o.aliases))}), "Ignore"),
       Webhook(o, "cronjob.sluice.dev", "/validate", Rules({"CREATE", "UPDATE"}, "batch", {"cronjobs"}),
               Json::array({Condition("concerns-sluice", TemplateCel(".spec.jobTemplate.spec.template", o.aliases))}),
               "Ignore")});
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
