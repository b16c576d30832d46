#include "webhook/certificates/reconciler.h"

#include <openssl/evp.h>

#include <nlohmann/json.hpp>

#include "webhook/decision/review.h"

namespace sluice::webhook {
namespace {

using Json = nlohmann::json;

std::string Decode(const std::string& base64) {
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
    if (value.is_string()) out[key] = Decode(value.get<std::string>());
  }
  return out;
}

}  // namespace

CertificateKeeper::CertificateKeeper(kube::Client& client, SelfSigned settings, CertificateStore& store)
    : client_(client), settings_(std::move(settings)), store_(store) {
  const std::string host = settings_.service + "." + settings_.secret_namespace + ".svc";
  options_.names = {host, host + ".cluster.local"};
  options_.authority_life = std::chrono::hours(24 * settings_.ca_days);
  options_.leaf_life = std::chrono::hours(24 * settings_.leaf_days);
}

absl::Status CertificateKeeper::Tick(std::chrono::system_clock::time_point now,
                                     std::chrono::steady_clock::time_point tick, std::string& said) {
  const std::string path = "/api/v1/namespaces/" + settings_.secret_namespace + "/secrets/" + settings_.secret_name;
  auto secret = client_.Get(path);
  if (!secret.ok()) return secret.status();
  SecretData data = ReadSecret(*secret);
  if (data != seen_) {
    seen_ = std::move(data);
    since_ = tick;
  }
  RotationStep step = Rotate(seen_, now, std::chrono::duration_cast<std::chrono::seconds>(tick - since_), options_);
  if (!step.what.empty()) {
    Json encoded = Json::object();
    for (const auto& [key, value] : step.data) encoded[key] = Base64(value);
    (*secret)["data"] = std::move(encoded);
    auto written = client_.Update(path, *secret);
    // Another replica was first: what it wrote counts, and is read at the next look.
    if (!written.ok()) return written.status();
    said = step.what;
  }
  // Trust before use: a certificate is taken only when every API server can know its authority.
  const std::string bundle = Base64(Bundle(step.data));
  for (const auto& [kind, names] : {std::pair{"mutatingwebhookconfigurations", &settings_.mutating},
                                    {"validatingwebhookconfigurations", &settings_.validating}}) {
    for (const std::string& name : *names) {
      const absl::Status status =
          Publish(std::string("/apis/admissionregistration.k8s.io/v1/") + kind + "/" + name, bundle, said);
      if (!status.ok()) return status;
    }
  }
  if (step.data["tls.crt"] == certificate_) return absl::OkStatus();
  std::string error;
  auto pair = KeyPair::Parse(step.data["tls.crt"], step.data["tls.key"], error);
  if (pair == nullptr) return absl::DataLossError("Secret " + settings_.secret_name + ": " + error);
  store_.Set(std::move(pair));
  certificate_ = step.data["tls.crt"];
  return absl::OkStatus();
}

absl::Status CertificateKeeper::Publish(const std::string& path, const std::string& bundle, std::string& said) {
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
  if (written.ok() && changed)
    said += (said.empty() ? "" : "; ") + std::string("caBundle of ") + path.substr(path.rfind('/') + 1);
  return written.ok() ? absl::OkStatus() : written.status();
}

}  // namespace sluice::webhook
