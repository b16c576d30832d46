// An API server as the extender sees it: Bindings change pods, and pods and nodes are returned as JSON. Counts units,
// to find pods that kubelet would refuse.
#ifndef SLUICE_TEST_SCHEDULER_FAKE_CLUSTER_H_
#define SLUICE_TEST_SCHEDULER_FAKE_CLUSTER_H_

#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/extender/cluster_state.h"
#include "scheduler/extender/extender.h"

namespace sluice::scheduler {

using Json = nlohmann::json;

inline Json MakeNode(const std::string& name, const std::vector<int>& free) {
  Json cards = Json::array();
  for (std::size_t i = 0; i < free.size(); ++i) {
    cards.push_back({{"uuid", absl::StrCat("GPU-", name, "-", i)},
                     {"model", "T"},
                     {"memory", 1u << 30},
                     {"free", free[i]},
                     {"numa", static_cast<int>(i / 4)}});
  }
  return {{"metadata", {{"name", name}, {"annotations", {{"sluice.dev/gpus", cards.dump()}}}}},
          {"status",
           {{"allocatable",
             {{"cpu", "96"}, {"memory", "384Gi"}, {"sluice.dev/gpu-percent", std::to_string(100 * free.size())}}}}}};
}

inline Json MakePod(const std::string& name, int units, const std::string& cpu = "1") {
  return {{"metadata", {{"name", name}, {"namespace", "default"}, {"uid", "uid-" + name}}},
          {"spec",
           {{"containers",
             Json::array({{{"name", "main"},
                           {"resources",
                            {{"requests", {{"cpu", cpu}, {"memory", "1Gi"}, {"sluice.dev/gpu-percent", units}}},
                             {"limits", {{"sluice.dev/gpu-percent", std::to_string(units)}}}}}}})}}},
          {"status", {{"phase", "Pending"}}}};
}

// As the watches pass a list on.
inline void ReplaceNodes(ClusterState& cluster, const std::vector<Json>& nodes) {
  std::unordered_set<std::string> names;
  for (const Json& node : nodes) {
    names.insert(node["metadata"]["name"]);
    cluster.PutNode(ReadNode(node));
  }
  cluster.KeepNodes(names);
}

inline void ReplacePods(ClusterState& cluster, const std::vector<Json>& pods) {
  std::unordered_set<std::string> uids;
  for (const Json& pod : pods) {
    uids.insert(pod["metadata"]["uid"]);
    cluster.PutPod(ReadPod(pod));
  }
  cluster.KeepPods(uids);
}

class FakeBinder : public Binder {
 public:
  absl::Status Bind(const PodFacts& pod, const std::string& node,
                    const std::map<std::string, std::string>& annotations) override {
    if (before) before();
    const std::lock_guard lock(mutex_);
    if (!answer.ok() && !bind_anyway) return answer;
    Json& object = pods_[pod.uid];
    if (object.is_null()) return absl::NotFoundError("pods \"" + pod.name + "\" not found");
    if (object["spec"].contains("nodeName"))
      return absl::AbortedError("pod " + pod.name + " is already assigned to a node");
    object["spec"]["nodeName"] = node;
    for (const auto& [key, value] : annotations) object["metadata"]["annotations"][key] = value;
    return answer;
  }

  absl::StatusOr<PodFacts> Get(const std::string& name_space, const std::string& name) override {
    const std::lock_guard lock(mutex_);
    for (const auto& [uid, pod] : pods_) {
      if (pod.is_object() && pod["metadata"]["name"] == name && pod["metadata"]["namespace"] == name_space) {
        return ReadPod(pod);
      }
    }
    return absl::NotFoundError("pods \"" + name + "\" not found");
  }

  absl::StatusOr<ClaimFacts> GetClaim(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    if (const auto found = claims.find(key); found != claims.end()) return ReadClaim(found->second);
    return absl::NotFoundError("resourceclaims \"" + key + "\" not found");
  }

  absl::Status Annotate(const PodFacts& pod, const std::string& annotation, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    ++annotations_written;
    if (!answer.ok()) return answer;
    Json& object = pods_[pod.uid];
    if (object.is_null()) return absl::NotFoundError("pods \"" + pod.name + "\" not found");
    object["metadata"]["annotations"][annotation] = value;
    if (value.empty()) object["metadata"]["annotations"].erase(annotation);
    return absl::OkStatus();
  }

  void Create(const Json& pod) {
    const std::lock_guard lock(mutex_);
    pods_[pod["metadata"]["uid"]] = pod;
  }

  Json Pod(const std::string& uid) {
    const std::lock_guard lock(mutex_);
    return pods_[uid];
  }

  // Units reserved on each card, over all bound pods.
  std::map<std::string, int> ReservedUnits() {
    const std::lock_guard lock(mutex_);
    std::map<std::string, int> sum;
    for (const auto& [uid, pod] : pods_) {
      if (!pod.is_object()) continue;
      const PodFacts facts = ReadPod(pod);
      if (facts.node.empty()) continue;
      for (const auto& [container, cards] : facts.placement) {
        for (const std::string& card : cards) sum[card] += std::min(100, facts.containers[0].units);
      }
    }
    return sum;
  }

  std::map<std::string, Json> claims;  // by namespace/name
  std::function<void()> before;
  absl::Status answer;
  int annotations_written = 0;
  bool bind_anyway = false;  // binds and still returns `answer`: the response was lost

 private:
  std::mutex mutex_;
  std::map<std::string, Json> pods_;
};

}  // namespace sluice::scheduler

#endif  // SLUICE_TEST_SCHEDULER_FAKE_CLUSTER_H_
