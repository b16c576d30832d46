#include "webhook/refused_pod_remover.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "sluice/names.h"
#include "webhook/decision/pod.h"

namespace sluice::webhook {
namespace {

constexpr std::chrono::seconds kLeasePollInterval{4};  // at most a third of the Lease's duration
constexpr size_t kMaxRemovalsPerPoll = 20;             // a burst of refusals must not cause a burst of deletions

bool BelongsToReplicaSet(const Json& metadata) {
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

bool IsRefusedPod(const Json& pod) {
  const Json* metadata = Member(pod, "metadata");
  const Json* status = Member(pod, "status");
  return metadata != nullptr && status != nullptr && Member(*metadata, "deletionTimestamp") == nullptr &&
         Text(*status, "phase") == "Failed" && Text(*status, "reason") == "UnexpectedAdmissionError" &&
         Text(*status, "message").find(SLUICE_REFUSAL) != std::string_view::npos && BelongsToReplicaSet(*metadata);
}

RefusedPodRemover::RefusedPodRemover(kube::ClientConfig config, kube::Client& client, RemoveRefused settings,
                                     std::string identity, std::function<void(const std::string&)> removed)
    : config_(std::move(config)),
      client_(client),
      settings_(std::move(settings)),
      removed_(std::move(removed)),
      lease_(client, {settings_.name_space, settings_.lease, std::move(identity)}) {}

RefusedPodRemover::~RefusedPodRemover() {
  watcher_.reset();
  lease_.Release();
}

absl::Status RefusedPodRemover::Poll(std::chrono::steady_clock::time_point now) {
  if (now >= next_lease_poll_) {
    next_lease_poll_ = now + kLeasePollInterval;
    if (const absl::Status status = lease_.Tick(now); !status.ok()) {
      if (!lease_.Held(now)) watcher_.reset();
      return status;
    }
  }
  if (!lease_.Held(now)) {
    watcher_.reset();
    return absl::OkStatus();
  }
  if (watcher_ == nullptr) StartWatching();
  return RemoveDuePods(now);
}

void RefusedPodRemover::StartWatching() {
  {
    const MutexLock lock(mutex_);
    pods_.clear();
  }
  kube::ListOptions options;
  options.field_selector = "status.phase=Failed";
  kube::WatchHandler handler;
  handler.begin = [] {};
  handler.item = [this](const kube::Json& pod) { Add(pod); };
  handler.end = [] {};  // RemoveDuePods forgets pods that no longer exist
  handler.changed = [this](kube::Change change, const kube::Json& pod) {
    if (change != kube::Change::kDeleted) return Add(pod);
    const MutexLock lock(mutex_);
    pods_.erase(std::string(Text(pod["metadata"], "uid")));
  };
  watcher_ = std::make_unique<kube::Watcher>(config_, "/api/v1/pods", options, std::move(handler), "sluice-webhook");
}

void RefusedPodRemover::Add(const Json& pod) {
  if (!IsRefusedPod(pod)) return;
  const Json& metadata = pod["metadata"];
  Pod p;
  p.uid = Text(metadata, "uid");
  p.name = std::string(Text(metadata, "namespace")) + "/" + std::string(Text(metadata, "name"));
  p.path =
      "/api/v1/namespaces/" + std::string(Text(metadata, "namespace")) + "/pods/" + std::string(Text(metadata, "name"));
  p.reason = Text(pod["status"], "message");
  p.first_seen = std::chrono::steady_clock::now();
  const MutexLock lock(mutex_);
  pods_.emplace(p.uid, std::move(p));
}

absl::Status RefusedPodRemover::RemoveDuePods(std::chrono::steady_clock::time_point now) {
  std::vector<Pod> due;
  {
    const MutexLock lock(mutex_);
    for (const auto& [uid, pod] : pods_) {
      if (due.size() == kMaxRemovalsPerPoll) break;
      if (now - pod.first_seen >= std::chrono::seconds(settings_.after_seconds)) due.push_back(pod);
    }
  }
  for (const Pod& pod : due) {
    // By uid: a newer pod of the same name stays.
    const absl::Status status = client_.Delete(pod.path, Json{{"preconditions", {{"uid", pod.uid}}}});
    if (!status.ok() && !absl::IsNotFound(status) && !absl::IsAborted(status)) return status;
    {
      const MutexLock lock(mutex_);
      pods_.erase(pod.uid);
    }
    if (status.ok()) removed_(pod.name + ": " + pod.reason);
    if (!lease_.Held(std::chrono::steady_clock::now())) break;
  }
  return absl::OkStatus();
}

}  // namespace sluice::webhook
