#include "webhook/refused_pods.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "sluice/names.h"
#include "webhook/decision/pod.h"

namespace sluice::webhook {
namespace {

constexpr std::chrono::seconds kLook{4};  // a third of the Lease's duration at most
constexpr size_t kAtOnce = 20;            // deletions in one look: a storm of refusals must not become a storm of ours

bool OfReplicaSet(const Json& metadata) {
  const Json* owners = Member(metadata, "ownerReferences");
  if (owners == nullptr || !owners->is_array()) return false;
  for (const Json& o : *owners) {
    const Json* controller = Member(o, "controller");
    if (controller != nullptr && *controller == true) {
      return Text(o, "kind") == "ReplicaSet" && Text(o, "apiVersion").starts_with("apps/");
    }
  }
  return false;
}

}  // namespace

bool IsRefused(const Json& pod) {
  const Json* metadata = Member(pod, "metadata");
  const Json* status = Member(pod, "status");
  return metadata != nullptr && status != nullptr && Member(*metadata, "deletionTimestamp") == nullptr &&
         Text(*status, "phase") == "Failed" && Text(*status, "reason") == "UnexpectedAdmissionError" &&
         Text(*status, "message").find(SLUICE_REFUSAL) != std::string_view::npos && OfReplicaSet(*metadata);
}

RefusedPods::RefusedPods(kube::ClientConfig config, kube::Client& client, RemoveRefused settings, std::string identity,
                         std::function<void(const std::string&)> removed)
    : config_(std::move(config)),
      client_(client),
      settings_(std::move(settings)),
      removed_(std::move(removed)),
      lease_(client, {settings_.name_space, settings_.lease, std::move(identity)}) {}

RefusedPods::~RefusedPods() {
  watcher_.reset();
  lease_.Release();
}

absl::Status RefusedPods::Tick(std::chrono::steady_clock::time_point now) {
  if (now >= next_look_) {
    next_look_ = now + kLook;
    if (const absl::Status status = lease_.Tick(now); !status.ok()) {
      if (!lease_.Held(now)) watcher_.reset();
      return status;
    }
  }
  if (!lease_.Held(now)) {
    watcher_.reset();
    return absl::OkStatus();
  }
  if (watcher_ == nullptr) Lead();
  return RemoveOld(now);
}

void RefusedPods::Lead() {
  {
    const std::lock_guard lock(mutex_);
    pods_.clear();
  }
  kube::ListOptions options;
  options.field_selector = "status.phase=Failed";
  kube::WatchHandler handler;
  handler.replaced = [this](const std::vector<kube::Json>& items) {
    for (const kube::Json& pod : items) Put(pod);  // what has gone meanwhile is not found when it is removed
  };
  handler.changed = [this](kube::Change change, const kube::Json& pod) {
    if (change != kube::Change::kDeleted) return Put(pod);
    const std::lock_guard lock(mutex_);
    pods_.erase(std::string(Text(pod["metadata"], "uid")));
  };
  watcher_ = std::make_unique<kube::Watcher>(config_, "/api/v1/pods", options, std::move(handler), "sluice-webhook");
}

void RefusedPods::Put(const Json& pod) {
  if (!IsRefused(pod)) return;
  const Json& metadata = pod["metadata"];
  Pod p;
  p.uid = Text(metadata, "uid");
  p.name = std::string(Text(metadata, "namespace")) + "/" + std::string(Text(metadata, "name"));
  p.path =
      "/api/v1/namespaces/" + std::string(Text(metadata, "namespace")) + "/pods/" + std::string(Text(metadata, "name"));
  p.why = Text(pod["status"], "message");
  p.seen = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  pods_.emplace(p.uid, std::move(p));
}

absl::Status RefusedPods::RemoveOld(std::chrono::steady_clock::time_point now) {
  std::vector<Pod> due;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [uid, pod] : pods_) {
      if (due.size() == kAtOnce) break;
      if (now - pod.seen >= std::chrono::seconds(settings_.after_seconds)) due.push_back(pod);
    }
  }
  for (const Pod& pod : due) {
    // By uid: a pod of the same name that was made since stays.
    const absl::Status status = client_.Delete(pod.path, Json{{"preconditions", {{"uid", pod.uid}}}});
    if (!status.ok() && !absl::IsNotFound(status) && !absl::IsAborted(status)) return status;
    {
      const std::lock_guard lock(mutex_);
      pods_.erase(pod.uid);
    }
    if (status.ok()) removed_(pod.name + ": " + pod.why);
    if (!lease_.Held(std::chrono::steady_clock::now())) break;
  }
  return absl::OkStatus();
}

}  // namespace sluice::webhook
