// What the API server itself evaluates, in CEL, and the manifests around it. The one place where these expressions are
// written: the chart includes this text (`sluice-webhook --print-policy conditions`), the tests run it on a real API
// server against ConcernsUs and Handled.
#ifndef SLUICE_WEBHOOK_DECISION_POLICY_H_
#define SLUICE_WEBHOOK_DECISION_POLICY_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace sluice::webhook {

// `at` is the pod or template: "object", "object.spec.template".
std::string ConcernsUsCel(const std::string& at, bool aliases);
std::string HandledCel();
// Whether one of our annotations differs between oldObject and object, below `at` ("", ".spec.template").
std::string KeysChangedCel(const std::string& at, bool aliases);

struct PolicyOptions {
  bool aliases = false;
  std::vector<std::string> excluded_namespaces;
  std::string service_namespace = "sluice-system";
  std::string service_name = "sluice-webhook";
  std::string url;              // instead of the service, for a webhook outside the cluster
  std::string ca_bundle;        // base64 of PEM; empty: left to cert-manager or the webhook itself
  bool without_policy = false;  // servers before 1.30: a validating webhook with failurePolicy Fail instead
};

// MutatingWebhookConfiguration, ValidatingWebhookConfiguration, ValidatingAdmissionPolicy and its binding.
std::vector<nlohmann::json> PolicyManifests(const PolicyOptions& options);

// The expressions by name, each with and without aliases, for the chart.
nlohmann::json PolicyConditions();

// docs/operate/annotations.md, from the table of settings that the code uses.
std::string AnnotationsPage();

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_DECISION_POLICY_H_
