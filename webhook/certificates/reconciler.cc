#include "webhook/certificates/reconciler.h"

#include <openssl/evp.h>

#include <nlohmann/json.hpp>

#include "webhook/decision/base64.h"

namespace sluice::webhook {
namespace {

using Json = nlohmann::json;

std::string DecodeBase64(const std::string& base64) {
  std::string out(base64.size() / 4 * 3 + 3, '\0');
  const int n = EVP_DecodeBlock(reinterpret_cast<unsigned char*>(out.data()),
                                reinterpret_cast<const unsigned char*>(base64.data()), static_cast<int>(base64.size()));
  if (n < 0) return {};
  const size_t padding = base64.ends_with("==") ? 2 : base64.ends_with('=') ? 1 : 0;
  out.resize(static_cast<size_t>(n) - padding);
  return out;
}

SecretData ReadSecret(const Json& secret) {
  SecretData out;
  const auto data = secret.find("data");
  if (data == secret.end() || !data->is_object()) return out;
  for (const auto& [key, value] : data->items()) {
    if (value.is_string()) out[key] = DecodeBase64(value.get<std::string>());
  }
  return out;
}

}  // namespace

CertificateReconciler::CertificateReconciler(kube::Client& client, SelfSigned settings, CertificateStore& store)
    : client_(client), settings_(std::move(settings)), store_(store) {
  const std::string host = settings_.service + "." + settings_.secret_namespace + ".svc";
  options_.names = {host, host + ".cluster.local"};
  options_.ca_lifetime = std::chrono::hours(24 * settings_.ca_days);
  options_.leaf_lifetime = std::chrono::hours(24 * settings_.leaf_days);
}

absl::Status CertificateReconciler::Reconcile(std::chrono::system_clock::time_point now,
                                              std::chrono::steady_clock::time_point tick, std::string& actions) {
  const std::string path = "/api/v1/namespaces/" + settings_.secret_namespace + "/secrets/" + settings_.secret_name;
  auto secret = client_.Get(path);
  if (!secret.ok()) return secret.status();
  SecretData data = ReadSecret(*secret);
  if (data != last_secret_) {
    last_secret_ = std::move(data);
    unchanged_since_ = tick;
  }
  const auto unchanged = std::chrono::duration_cast<std::chrono::seconds>(tick - unchanged_since_);
  RotationStep step = Rotate(last_secret_, now, unchanged, options_);
  if (!step.action.empty()) {
    Json encoded = Json::object();
    for (const auto& [key, value] : step.data) encoded[key] = Base64(value);
    (*secret)["data"] = std::move(encoded);
    auto written = client_.Update(path, *secret);
    // A conflict means that another replica was first: the next call reads its contents.
    if (!written.ok()) return written.status();
    actions = step.action;
  }
  // Publish before use: a certificate is loaded only after every API server can trust its CA.
  const std::string bundle = Base64(CaBundle(step.data));
  for (const auto& [kind, names] : {std::pair{"mutatingwebhookconfigurations", &settings_.mutating},
                                    {"validatingwebhookconfigurations", &settings_.validating}}) {
    for (const std::string& name : *names) {
      const absl::Status status =
          PublishCaBundle(std::string("/apis/admissionregistration.k8s.io/v1/") + kind + "/" + name, bundle, actions);
      if (!status.ok()) return status;
    }
  }
  if (step.data["tls.crt"] == loaded_certificate_) return absl::OkStatus();
  std::string error;
  auto pair = KeyPair::Parse(step.data["tls.crt"], step.data["tls.key"], error);
  if (pair == nullptr) return absl::DataLossError("Secret " + settings_.secret_name + ": " + error);
  store_.Set(std::move(pair));
  loaded_certificate_ = step.data["tls.crt"];
  return absl::OkStatus();
}

absl::Status CertificateReconciler::PublishCaBundle(const std::string& path, const std::string& bundle,
                                                    std::string& actions) {
  bool changed = false;
  auto written = client_.Modify(path, [&](Json& configuration) {
    changed = false;
    const auto webhooks = configuration.find("webhooks");
    if (webhooks == configuration.end() || !webhooks->is_array()) return false;
    for (Json& webhook : *webhooks) {
      Json& client = webhook["clientConfig"];
      if (client.value("caBundle", "") == bundle) continue;
      client["caBundle"] = bundle;
      changed = true;
    }
    return changed;
  });
  if (written.ok() && changed) {
    actions += (actions.empty() ? "" : "; ") + std::string("set caBundle of ") + path.substr(path.rfind('/') + 1);
  }
  return written.ok() ? absl::OkStatus() : written.status();
}

}  // namespace sluice::webhook
