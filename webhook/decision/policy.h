// The CEL expressions that the API server evaluates, and the manifests around them. No other file writes them: the
// chart includes the output of `sluice-webhook --print-policy conditions`. A test on a real API server compares them
// with decision.h.
#ifndef SLUICE_WEBHOOK_DECISION_POLICY_H_
#define SLUICE_WEBHOOK_DECISION_POLICY_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sluice::webhook {

// `at` is the path of the pod or template: "object", "object.spec.template".
std::string ConcernsSluiceCel(const std::string& at, bool aliases);
std::string NeedsDecisionCel(const std::string& at, bool aliases);
std::string HandledCel();
// Whether the pod carries the marker of the webhook.
std::string InjectedCel();
// Whether an update of a pod that sluice handled changes its spec, as an apply of the user's own manifest does.
std::string ReappliedCel();
// Whether a workload of another project is new or has a new spec.
std::string WorkloadChangedCel();
// The same before mutation, where the object's generation is still the old one.
std::string WorkloadSpecChangedCel();
// Whether one of sluice's annotations differs between oldObject and object, below `at` ("", ".spec.template").
std::string KeysChangedCel(const std::string& at, bool aliases);

struct PolicyOptions {
  bool aliases = false;
  std::vector<std::string> excluded_namespaces;
  std::vector<std::string> workloads;  // GROUP/RESOURCE: workloads of other projects
  std::vector<std::string> queued;     // GROUP/RESOURCE: workloads whose templates get the units
  std::string service_namespace = "sluice-system";
  std::string service_name = "sluice-webhook";
  std::string url;              // replaces the service, for a webhook outside the cluster
  std::string ca_bundle;        // base64 of PEM; empty: cert-manager or the webhook itself sets it
  bool by_claims = false;       // shares are claims, for which the webhook makes templates
  bool without_policy = false;  // API servers before 1.30: a validating webhook with failurePolicy Fail instead
};

// MutatingWebhookConfiguration, ValidatingWebhookConfiguration, ValidatingAdmissionPolicy and its binding.
std::vector<nlohmann::json> PolicyManifests(const PolicyOptions& options);

// The expressions by name, each with and without aliases, for the chart.
nlohmann::json PolicyConditions();

// The text of docs/operate/annotations.md, from the table of settings that the code uses.
std::string AnnotationsPage();

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_POLICY_H_
