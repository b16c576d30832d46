#include "agent/kubernetes/authorizer.h"

#include <openssl/sha.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace sluice::agent {
namespace {

using kube::Json;

constexpr size_t kMaxToken = 16 << 10;
constexpr int kMaxAsking = 2;  // the server has more workers, for probes and known tokens

// The token itself is kept nowhere.
std::string Key(std::string_view token, const std::string& path) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  const std::string text = path + " " + std::string(token);
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return {reinterpret_cast<const char*>(digest), sizeof(digest)};
}

kube::ClientOptions Brief() {
  kube::ClientOptions options;
  options.user_agent = "sluice-agent";
  options.timeout = std::chrono::milliseconds(3000);  // a scraper waits for the answer
  options.attempts = 1;
  return options;
}

bool Flag(const Json& object, const char* pointer) {
  const Json::json_pointer at(pointer);
  return object.contains(at) && object[at].is_boolean() && object[at].get<bool>();
}

}  // namespace

Authorizer::Authorizer(const kube::ClientConfig& api, std::function<uint64_t()> now_ns, Options options)
    : now_ns_(std::move(now_ns)), options_(options), client_(api, Brief()) {}

Access Authorizer::Check(std::string_view token, const std::string& path) {
  if (token.empty() || token.size() > kMaxToken) return {Access::Verdict::kUnknown, "no bearer token"};
  const std::string key = Key(token, path);
  {
    const MutexLock lock(mutex_);
    const auto known = answers_.find(key);
    if (known != answers_.end() && now_ns_() < known->second.until_ns) return known->second.access;
    if (asking_ >= kMaxAsking || !reviews_.Take(now_ns_())) {
      return {Access::Verdict::kBusy, "too many tokens are tried; try again in a second"};
    }
    ++asking_;
  }
  Access access = Ask(token, path);
  const MutexLock lock(mutex_);
  --asking_;
  if (access.verdict == Access::Verdict::kBusy) return access;
  const bool allowed = access.verdict == Access::Verdict::kAllowed;
  const uint64_t until =
      now_ns_() +
      static_cast<uint64_t>(std::chrono::nanoseconds(allowed ? options_.allowed_for : options_.refused_for).count());
  if (answers_.size() >= options_.max_answers) {
    std::erase_if(answers_, [&](const auto& a) { return a.second.until_ns <= now_ns_(); });
    // Refusals go first: a flood of wrong tokens does not make a scraper's answer forgotten.
    if (answers_.size() >= options_.max_answers) {
      std::erase_if(answers_, [](const auto& a) { return a.second.access.verdict != Access::Verdict::kAllowed; });
    }
    if (answers_.size() >= options_.max_answers) answers_.clear();
  }
  answers_[key] = {access, until};
  return access;
}

Access Authorizer::Ask(std::string_view token, const std::string& path) {
  const Json review = {
      {"apiVersion", "authentication.k8s.io/v1"}, {"kind", "TokenReview"}, {"spec", {{"token", std::string(token)}}}};
  const auto who = client_.Create("/apis/authentication.k8s.io/v1/tokenreviews", review);
  if (!who.ok()) {
    return {Access::Verdict::kBusy, "the API server did not review the token: " + std::string(who.status().message())};
  }
  if (!Flag(*who, "/status/authenticated"))
    return {Access::Verdict::kUnknown, "the API server does not know this token"};
  const Json user = (*who)["status"].value("user", Json::object());
  Json spec = {{"nonResourceAttributes", {{"path", path}, {"verb", "get"}}}, {"user", user.value("username", "")}};
  for (const char* part : {"groups", "uid", "extra"}) {
    if (user.contains(part)) spec[part] = user[part];
  }
  const auto may = client_.Create(
      "/apis/authorization.k8s.io/v1/subjectaccessreviews",
      {{"apiVersion", "authorization.k8s.io/v1"}, {"kind", "SubjectAccessReview"}, {"spec", std::move(spec)}});
  if (!may.ok()) {
    return {Access::Verdict::kBusy, "the API server did not review the access: " + std::string(may.status().message())};
  }
  if (Flag(*may, "/status/allowed")) return {Access::Verdict::kAllowed, ""};
  return {Access::Verdict::kForbidden, "'" + user.value("username", "") + "' may not get the non-resource URL " + path +
                                           " (a ClusterRole allows it)"};
}

}  // namespace sluice::agent
