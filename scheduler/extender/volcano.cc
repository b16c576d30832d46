#include "scheduler/extender/volcano.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "scheduler/extender/json_scanner.h"
#include "sluice/names.h"

namespace sluice::scheduler {
namespace {

using Json = nlohmann::json;

// volcano.sh/volcano/pkg/scheduler/api, TaskStatus and the codes of a fit error.
constexpr int kPipelined = 4;
constexpr int kError = 1, kUnschedulable = 2;

constexpr const char* kPlacement = SLUICE_DOMAIN "/" SLUICE_KEY_PLACEMENT;

Reply BadRequest(const std::string& why) { return {400, Json{{"errorMessage", why}}.dump()}; }

Reply Fits() { return {200, R"({"status":"","code":0})"}; }
Reply FitsNot(const std::string& why, int code) { return {200, Json{{"status", why}, {"code", code}}.dump()}; }

Reply Answer(const absl::Status& status) { return {200, Json{{"errorMessage", std::string(status.message())}}.dump()}; }

std::string Text(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// A member of a document as it stands in the text; empty: there is none.
std::string_view MemberOf(std::string_view object, std::string_view name) {
  std::string_view out;
  const bool read = ForEachMember(object, [&](std::string_view key, std::string_view value) {
    if (key == name) out = value;
  });
  return read ? out : std::string_view();
}

}  // namespace

struct VolcanoCalls::Task {
  std::string uid, name_space, name, node;
  int status = 0;
  std::string placement;  // the annotation in Volcano's copy of the pod, which it writes again when it binds

  static absl::StatusOr<Task> Read(std::string_view body) {
    const Json json = Json::parse(MemberOf(body, "task"), nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return absl::InvalidArgumentError("task is missing: Volcano's extender plugin sends it");
    Task task{.uid = Text(json, "UID"),
              .name_space = Text(json, "Namespace"),
              .name = Text(json, "Name"),
              .node = Text(json, "NodeName")};
    if (task.uid.empty() || task.name_space.empty() || task.name.empty()) {
      return absl::InvalidArgumentError("task has no UID, Namespace or Name");
    }
    if (const auto found = json.find("Status"); found != json.end() && found->is_number_integer()) {
      task.status = found->get<int>();
    }
    const auto text = json.value(Json::json_pointer("/Pod/metadata/annotations"), Json());
    if (text.is_object()) task.placement = Text(text, kPlacement);
    return task;
  }
};

Reply VolcanoCalls::Predicate(const std::string& body) {
  const auto task = Task::Read(body);
  if (!task.ok()) return BadRequest(std::string(task.status().message()));
  // Volcano's document of a node has all of its pods; only its name counts.
  const Json name = Json::parse(MemberOf(MemberOf(body, "node"), "Name"), nullptr, /*allow_exceptions=*/false);
  if (!name.is_string()) return BadRequest("node has no Name");
  ClusterState& cluster = extender_.cluster();
  if (!cluster.Synced()) return FitsNot("sluice-extender has not read the cluster yet", kError);
  const auto pod = extender_.KnownPod(task->name_space, task->name, task->uid);
  if (!pod.ok()) return FitsNot(std::string(pod.status().message()), kError);
  if (pod->containers.empty()) return Fits();
  if (!pod->node.empty() || !extender_.MayBePlaced(*pod)) {
    return FitsNot(absl::StrCat("pod ", pod->FullName(), ": a binding of it is under way"), kError);
  }
  const std::string_view nodes[] = {name.get_ref<const std::string&>()};
  const FilterResult result = cluster.Filter(*pod, nodes);
  extender_.Count(Extender::kVolcanoPredicate, result.fitting == 0);
  if (result.fitting > 0) return Fits();
  return FitsNot(result.reasons[result.reason_index[0]], kUnschedulable);
}

Reply VolcanoCalls::Allocate(const std::string& body) {
  const auto task = Task::Read(body);
  if (!task.ok()) return BadRequest(std::string(task.status().message()));
  const absl::Status status = AllocateTask(*task);
  extender_.Count(Extender::kVolcanoAllocate, !status.ok());
  return Answer(status);
}

absl::Status VolcanoCalls::AllocateTask(const Task& task) {
  if (!extender_.cluster().Synced()) return absl::UnavailableError("sluice-extender has not read the cluster yet");
  const auto pod = extender_.KnownPod(task.name_space, task.name, task.uid);
  if (!pod.ok()) return pod.status();
  if (pod->containers.empty()) return absl::OkStatus();
  if (!pod->node.empty()) {
    // Volcano thinks better of an eviction.
    const MutexLock lock(mutex_);
    leaving_.erase(task.uid);
    return absl::OkStatus();
  }
  if (task.node.empty()) return absl::InvalidArgumentError("task has no NodeName");
  return task.status == kPipelined ? Expect(*pod, task.node) : ReserveFor(*pod, task);
}

absl::Status VolcanoCalls::Expect(const PodFacts& pod, const std::string& node) {
  const MutexLock lock(mutex_);
  for (auto uid = leaving_.begin(); uid != leaving_.end();) {
    uid = extender_.cluster().FindPod(*uid) ? std::next(uid) : leaving_.erase(uid);
  }
  std::vector<PodFacts> others;
  for (const auto& [uid, other] : expected_) {
    if (uid != pod.uid) others.push_back(other);
  }
  auto cards = extender_.cluster().PredictPlacement(pod, node, leaving_, others);
  if (!cards.ok()) return cards.status();
  PodFacts& entry = expected_[pod.uid] = pod;
  entry.node = node;
  entry.placement = *std::move(cards);
  return absl::OkStatus();
}

absl::Status VolcanoCalls::ReserveFor(const PodFacts& pod, const Task& task) {
  if (!extender_.MayBePlaced(pod)) {
    return absl::FailedPreconditionError(absl::StrCat("pod ", pod.FullName(), ": a binding of it is under way"));
  }
  ClusterState& cluster = extender_.cluster();
  const auto cards = cluster.Reserve(pod, task.node);
  if (!cards.ok()) return cards.status();
  const std::string placement = FormatPlacement(*cards);
  absl::Status status;
  if (task.placement.empty()) {
    status = extender_.binder().Annotate(pod, kPlacement, placement);
  } else if (task.placement != placement) {
    // Volcano's Binding would bring back the cards of an earlier session. The next session sees the pod without them.
    status = extender_.binder().Annotate(pod, kPlacement, "");
    if (status.ok()) status = absl::AbortedError(absl::StrCat("pod ", pod.FullName(), ": its earlier cards are taken"));
  }
  if (!status.ok()) {
    cluster.Release(pod.uid);
    return status;
  }
  cluster.Report(pod.uid, Binding::kForeign);
  return absl::OkStatus();
}

Reply VolcanoCalls::Deallocate(const std::string& body) {
  const auto task = Task::Read(body);
  if (!task.ok()) return BadRequest(std::string(task.status().message()));
  ClusterState& cluster = extender_.cluster();
  const auto pod = cluster.FindPod(task->uid);
  const MutexLock lock(mutex_);
  if (expected_.erase(task->uid) > 0) return Answer(absl::OkStatus());
  if (pod && !pod->node.empty()) {
    if (!pod->containers.empty()) leaving_.insert(task->uid);
  } else if (cluster.BindingOf(task->uid) == Binding::kForeign) {
    cluster.Release(task->uid);
  }
  return Answer(absl::OkStatus());
}

Reply VolcanoCalls::SessionClose(const std::string& /*body*/) {
  const MutexLock lock(mutex_);
  expected_.clear();
  return {200, "{}"};
}

}  // namespace sluice::scheduler
