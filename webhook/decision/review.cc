#include "webhook/decision/review.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "webhook/decision/base64.h"
#include "webhook/decision/json_reader.h"
#include "webhook/decision/reapply.h"
#include "webhook/decision/template_units.h"
#include "webhook/decision/validate.h"

namespace sluice::webhook {
namespace {

constexpr auto kReplace = nlohmann::json::error_handler_t::replace;  // a cut message may end within a character
constexpr size_t kMaxLogBytes = 2000;
constexpr size_t kMaxWarningBytes = 256;  // the API server may drop longer ones

struct Request {
  std::string_view uid, operation, name_space, group, version, resource, sub_resource;
  bool is_dry_run = false;
  const Json* object = nullptr;
  const Json* old_object = nullptr;
  Requester requester;
};

Answer Bad(std::string sentence) {
  Answer a;
  a.status = 400;
  a.body = sentence + "\n";
  a.outcome = Answer::Outcome::kBad;
  a.log = std::move(sentence);
  return a;
}

std::string ReadRequest(const Json& review, Request& r) {
  if (!review.is_object()) return "the body is not an AdmissionReview";
  if (Text(review, "kind") != "AdmissionReview") return "kind: the body is not an AdmissionReview";
  if (Text(review, "apiVersion") != "admission.k8s.io/v1") {
    return "apiVersion: '" + std::string(Text(review, "apiVersion").substr(0, 64)) +
           "' is not accepted; accepted: admission.k8s.io/v1";
  }
  const Json* request = Member(review, "request");
  if (request == nullptr || !request->is_object()) return "request: this field is not an object";
  r.uid = Text(*request, "uid");
  if (r.uid.empty()) return "request.uid: this field is missing";
  r.operation = Text(*request, "operation");
  r.name_space = Text(*request, "namespace");
  r.sub_resource = Text(*request, "subResource");
  const Json* dry_run = Member(*request, "dryRun");
  r.is_dry_run = dry_run != nullptr && *dry_run == true;
  const Json* resource = Member(*request, "resource");
  if (resource == nullptr || !resource->is_object()) return "request.resource: this field is not an object";
  r.group = Text(*resource, "group");
  r.version = Text(*resource, "version");
  r.resource = Text(*resource, "resource");
  r.object = Member(*request, "object");
  r.old_object = Member(*request, "oldObject");
  if (const Json* user = Member(*request, "userInfo"); user != nullptr) {
    r.requester.user = Text(*user, "username");
    if (const Json* groups = Member(*user, "groups"); groups != nullptr && groups->is_array()) {
      for (const Json& g : *groups) {
        if (g.is_string()) r.requester.groups.emplace_back(g.get_ref<const std::string&>());
      }
    }
  }
  return {};
}

// "namespace/name" for the log. A controller's pod has no name yet, only generateName.
std::string Name(const Request& r) {
  const Json* metadata = r.object == nullptr ? nullptr : Member(*r.object, "metadata");
  std::string_view name = metadata == nullptr ? std::string_view() : Text(*metadata, "name");
  if (name.empty() && metadata != nullptr) name = Text(*metadata, "generateName");
  return std::string(r.name_space) + "/" + std::string(name);
}

std::string Respond(const Request& r, bool allowed, std::string message, const std::vector<std::string>& warnings,
                    const std::string& patch) {
  nlohmann::ordered_json response = {{"uid", r.uid}, {"allowed", allowed}};
  if (!patch.empty()) {
    response["patchType"] = "JSONPatch";
    response["patch"] = Base64(patch);
  }
  if (!allowed) response["status"] = {{"code", 403}, {"reason", "Forbidden"}, {"message", std::move(message)}};
  if (!warnings.empty()) {
    auto list = nlohmann::ordered_json::array();
    for (const std::string& w : warnings) {
      const std::string text = "sluice: " + w;
      list.push_back(text.size() <= kMaxWarningBytes ? text : text.substr(0, kMaxWarningBytes - 3) + "...");
    }
    response["warnings"] = std::move(list);
  }
  const nlohmann::ordered_json review = {
      {"apiVersion", "admission.k8s.io/v1"}, {"kind", "AdmissionReview"}, {"response", std::move(response)}};
  return review.dump(-1, ' ', false, kReplace);
}

Answer Denied(const Request& r, const std::vector<Finding>& denials, std::string message,
              const std::vector<std::string>& warnings) {
  Answer a;
  a.outcome = Answer::Outcome::kDenied;
  for (const Finding& f : denials) a.rules.push_back(f.rule);
  a.log = ("denied " + Name(r) + ": " + message).substr(0, kMaxLogBytes);
  a.body = Respond(r, false, std::move(message), warnings, {});
  return a;
}

Answer Allowed(const Request& r, Answer::Outcome outcome, const std::vector<std::string>& warnings = {},
               const std::string& patch = {}) {
  Answer a;
  a.outcome = outcome;
  a.body = Respond(r, true, {}, warnings, patch);
  return a;
}

// Whether queues count the templates of such workloads: `queued` holds GROUP/RESOURCE or GROUP/*.
bool IsQueued(const Request& r, const Config& config) {
  return std::ranges::any_of(config.queued, [&](std::string_view entry) {
    const size_t slash = entry.find('/');
    const std::string_view resource = entry.substr(slash + 1);
    return entry.substr(0, slash) == r.group && (resource == "*" || resource == r.resource);
  });
}

Answer MutateTemplates(const Request& r, bool is_update, const Config& config, const Nodes& nodes) {
  if (!IsQueued(r, config)) return Allowed(r, Answer::Outcome::kNothing);
  if (is_update && r.old_object == nullptr) return Bad("request.oldObject is missing");
  const TemplateUnits units =
      GiveTemplateUnits(is_update ? r.old_object : nullptr, {*r.object, r.name_space, config, nodes, Mode::kTemplate});
  if (units.patch.empty()) return Allowed(r, Answer::Outcome::kNothing);
  Answer a = Allowed(r, Answer::Outcome::kPatched, {}, units.patch);
  a.log = ("patched templates of " + Name(r) + ": " + units.reason).substr(0, kMaxLogBytes);
  return a;
}

Answer Mutate(const Request& r, const Config& config, const Nodes& nodes, const MakeClaims& make) {
  const bool is_update = r.operation == "UPDATE";
  if (!r.sub_resource.empty() || (!is_update && r.operation != "CREATE")) return Allowed(r, Answer::Outcome::kNothing);
  if (r.object == nullptr) return Bad("request.object is missing");
  if (!r.group.empty() || r.resource != "pods") return MutateTemplates(r, is_update, config, nodes);
  if (r.version != "v1") return Allowed(r, Answer::Outcome::kNothing);
  if (is_update) {
    if (r.old_object == nullptr) return Bad("request.oldObject is missing");
    const std::string patch = KeepInjected(*r.old_object, {*r.object, r.name_space, config, nodes});
    if (patch.empty()) return Allowed(r, Answer::Outcome::kNothing);
    Answer a = Allowed(r, Answer::Outcome::kPatched, {}, patch);
    a.log = ("kept " + Name(r) + " as it runs").substr(0, kMaxLogBytes);
    return a;
  }
  const Decision d = Decide({*r.object, r.name_space, config, nodes});
  if (d.verdict == Verdict::kDeny) return Denied(r, d.denials, d.Message(), d.warnings);
  if (d.verdict == Verdict::kNothing) return Allowed(r, Answer::Outcome::kNothing, d.warnings);
  if (!d.claims.empty() && !r.is_dry_run) {
    std::string problem = make ? make(r.name_space, d.claims)
                               : "the nodes are served by the DRA driver, and the webhook has no access to the API "
                                 "server, where it must make the pod's claim";
    if (!problem.empty()) return Denied(r, {{Rule::kSetClaim, problem}}, problem, d.warnings);
  }
  Answer a = Allowed(r, Answer::Outcome::kPatched, d.warnings, d.patch);
  a.log = ("patched " + Name(r) + ": " + d.reason).substr(0, kMaxLogBytes);
  return a;
}

Answer Validate(const Request& r, const Config& config, const Nodes& nodes) {
  const bool update = r.operation == "UPDATE";
  const bool is_pod = r.group.empty() && r.resource == "pods";
  const bool is_ephemeral = is_pod && update && r.sub_resource == "ephemeralcontainers";
  if ((!update && r.operation != "CREATE") || (!r.sub_resource.empty() && !is_ephemeral)) {
    return Allowed(r, Answer::Outcome::kNothing);
  }
  if (r.object == nullptr) return Bad("request.object is missing");
  if (update && r.old_object == nullptr) return Bad("request.oldObject is missing");
  const Input input{*r.object, r.name_space, config, nodes};
  ValidationResult j;
  if (is_ephemeral) {
    j = ValidateEphemeral(*r.old_object, input);
  } else if (is_pod) {
    j = update ? ValidateUpdate(*r.old_object, input, r.requester) : ValidateCreate(input);
  } else {
    j = ValidateTemplate(update ? r.old_object : nullptr, input);
  }
  if (!j.denials.empty()) return Denied(r, j.denials, j.Message(), j.warnings);
  return Allowed(r, Answer::Outcome::kAllowed, j.warnings);
}

// A request whose objects cannot be read. The API server takes an error for an absent webhook and lets the request
// pass, so that a pod of such a form would go round every check: it is denied. All other objects' pods are checked
// later.
Answer Unread(const Json& beginning, const std::string& error) {
  Request r;
  if (!ReadRequest(beginning, r).empty()) return Bad(error);
  if (!r.group.empty() || r.resource != "pods") {
    return Allowed(r, Answer::Outcome::kNothing, {"this object's pod templates were not checked: " + error});
  }
  std::string message = "sluice's webhook cannot read this pod: " + error;
  return Denied(r, {{Rule::kMalformed, message}}, message, {});
}

}  // namespace

Answer ReviewBeginning(std::string_view body, size_t accepted_bytes) {
  std::string unused;
  Json beginning;
  ReadJson(body, unused, &beginning);
  return Unread(beginning, "its review is too large; accepted: at most " + std::to_string(accepted_bytes) +
                               " bytes of JSON, with the object before an update");
}

Answer Review(Path path, std::string_view body, const Config& config, const Nodes& nodes, const MakeClaims& make) {
  std::string error;
  Json beginning;
  const auto review = ReadJson(body, error, &beginning);
  if (!review) return Unread(beginning, error);
  Request request;
  error = ReadRequest(*review, request);
  if (!error.empty()) return Bad(error);
  return path == Path::kMutate ? Mutate(request, config, nodes, make) : Validate(request, config, nodes);
}

}  // namespace sluice::webhook
