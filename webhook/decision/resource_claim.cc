#include "webhook/decision/resource_claim.h"

#include <nlohmann/json.hpp>

#include "common/claims/parameters.h"
#include "webhook/decision/findings.h"

namespace sluice::webhook {
namespace {

constexpr std::string_view kTemplate = "ResourceClaimTemplate";

}  // namespace

bool IsResourceClaim(const Json& object) {
  const std::string_view kind = Text(object, "kind");
  return Text(object, "apiVersion").starts_with("resource.k8s.io/") && (kind == "ResourceClaim" || kind == kTemplate);
}

ValidationResult ValidateResourceClaim(const Input& input) {
  ValidationResult out;
  const Json* spec = Member(input.pod, "spec");
  const bool is_template = Text(input.pod, "kind") == kTemplate;
  if (is_template && spec != nullptr) spec = Member(*spec, "spec");
  if (spec == nullptr) return out;
  Decision decision;
  Findings findings(decision, input.off);
  for (std::string& error : claims::CheckSpec(*spec, is_template ? "spec.spec" : "spec")) {
    findings.Deny(Rule::kClaim, std::move(error));
  }
  out.denials = std::move(decision.denials);
  return out;
}

}  // namespace sluice::webhook
