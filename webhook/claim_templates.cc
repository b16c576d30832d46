#include "webhook/claim_templates.h"

#include <absl/status/status.h>

#include <nlohmann/json.hpp>

#include "common/log/log.h"

namespace sluice::webhook {
namespace {

constexpr char kTemplates[] = "/resourceclaimtemplates";
constexpr char kApi[] = "/apis/resource.k8s.io/v1";

// Two requests must end before the API server gives up on the webhook, after five seconds.
kube::ClientOptions Quick() {
  kube::ClientOptions options;
  options.user_agent = "sluice-webhook";
  options.attempts = 1;
  options.retries_unavailable = false;
  options.timeout = std::chrono::milliseconds(2000);
  return options;
}

std::string KeyOf(const kube::Json& object) {
  const Json* metadata = Member(object, "metadata");
  if (metadata == nullptr) return {};
  return std::string(Text(*metadata, "namespace")) + "/" + std::string(Text(*metadata, "name"));
}

std::string Failed(const std::string& key, const absl::Status& why) {
  return "the claim of this pod's share needs the ResourceClaimTemplate " + key +
         ", which could not be created: " + std::string(why.message()).substr(0, 300) + "; try again";
}

}  // namespace

ClaimTemplates::ClaimTemplates(const kube::ClientConfig& config) : client_(config, Quick()) {
  kube::ListOptions options;
  options.metadata_only = true;
  options.label_selector = "app.kubernetes.io/managed-by=sluice";
  options.not_older_than = "0";
  kube::WatchHandler handler;
  handler.begin = [this] {
    const MutexLock lock(mutex_);
    listed_.clear();
  };
  handler.item = [this](const kube::Json& object) {
    const MutexLock lock(mutex_);
    if (std::string key = KeyOf(object); known_.contains(key)) listed_.insert(std::move(key));
  };
  // One that was made since the list is forgotten, too: the next pod asks again.
  handler.end = [this] {
    const MutexLock lock(mutex_);
    known_.swap(listed_);
    listed_.clear();
    ++deletions_;
  };
  handler.changed = [this](kube::Change change, const kube::Json& object) {
    if (change == kube::Change::kDeleted) Forget(object);
  };
  handler.state = [this](bool is_up, const std::string& error) {
    {
      const MutexLock lock(mutex_);
      is_watched_ = is_up;
    }
    if (!error.empty()) Log(LogLevel::kWarn, "resourceclaimtemplates: " + error);
  };
  watcher_ = std::make_unique<kube::Watcher>(config, std::string(kApi) + kTemplates, options, std::move(handler),
                                             "sluice-webhook");
}

ClaimTemplates::~ClaimTemplates() = default;

void ClaimTemplates::Forget(const kube::Json& object) {
  const MutexLock lock(mutex_);
  known_.erase(KeyOf(object));
  ++deletions_;
}

std::string ClaimTemplates::Ensure(std::string_view name_space, const std::vector<ClaimTemplate>& templates) {
  const std::string collection = std::string(kApi) + "/namespaces/" + std::string(name_space) + kTemplates;
  for (const ClaimTemplate& wanted : templates) {
    const std::string key = std::string(name_space) + "/" + wanted.name;
    {
      const MutexLock lock(mutex_);
      if (is_watched_ && known_.contains(key)) continue;
    }
    if (std::string error = EnsureOne(key, collection, wanted); !error.empty()) return error;
  }
  return {};
}

std::string ClaimTemplates::EnsureOne(const std::string& key, const std::string& collection,
                                      const ClaimTemplate& wanted) {
  uint64_t deletions = 0;
  {
    const MutexLock lock(mutex_);
    deletions = deletions_;
  }
  auto stored = client_.Create(collection, wanted.object);
  const bool is_new = stored.ok();
  if (absl::IsAlreadyExists(stored.status())) stored = client_.Get(collection + "/" + wanted.name);
  if (!stored.ok()) return Failed(key, stored.status());
  const Json *spec = Member(*stored, "spec"), *metadata = Member(*stored, "metadata");
  const std::string problem = TemplateProblem(spec == nullptr ? Json() : *spec, wanted.object.at("spec"));
  if (!problem.empty()) return "the ResourceClaimTemplate " + key + " " + problem;
  if (metadata != nullptr && Member(*metadata, "deletionTimestamp") != nullptr) {
    return Failed(key, absl::UnavailableError("the one that exists is being deleted"));
  }
  if (is_new) Log(LogLevel::kInfo, "made the ResourceClaimTemplate " + key);
  const MutexLock lock(mutex_);
  if (deletions == deletions_) known_.insert(key);
  return {};
}

}  // namespace sluice::webhook
