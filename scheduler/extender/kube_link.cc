#include "scheduler/extender/kube_link.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kube/watcher.h"

namespace sluice::scheduler {
namespace {

kube::ClientOptions BinderOptions() {
  kube::ClientOptions options;
  options.user_agent = "sluice-extender";
  return options;
}

kube::ListOptions Pages(std::string field_selector) {
  kube::ListOptions options;
  options.field_selector = std::move(field_selector);
  return options;
}

}  // namespace

KubeBinder::KubeBinder(const kube::ClientConfig& config) : client_(config, BinderOptions()) {}

absl::Status KubeBinder::Bind(const PodFacts& pod, const std::string& node,
                              const std::map<std::string, std::string>& annotations) {
  const kube::Json binding = {
      {"apiVersion", "v1"},
      {"kind", "Binding"},
      // The API server copies a Binding's annotations to the pod. The uid makes it refuse a new pod of the same name.
      {"metadata", {{"name", pod.name}, {"namespace", pod.name_space}, {"uid", pod.uid}, {"annotations", annotations}}},
      {"target", {{"apiVersion", "v1"}, {"kind", "Node"}, {"name", node}}}};
  return client_.Create(absl::StrCat("/api/v1/namespaces/", pod.name_space, "/pods/", pod.name, "/binding"), binding)
      .status();
}

absl::StatusOr<PodFacts> KubeBinder::Get(const std::string& name_space, const std::string& name) {
  absl::StatusOr<kube::Json> pod = client_.Get(absl::StrCat("/api/v1/namespaces/", name_space, "/pods/", name));
  if (!pod.ok()) return pod.status();
  return ReadPod(*pod);
}

class KubeFeed::Impl {
 public:
  Impl(const kube::ClientConfig& config, ClusterState& cluster)
      : nodes_(config, "/api/v1/nodes", Pages(""), ForNodes(cluster), "sluice-extender"),
        // Pods that have ended hold no units. When a pod ends it leaves the selection, and the watch reports it as
        // deleted.
        pods_(config, "/api/v1/pods", Pages("status.phase!=Succeeded,status.phase!=Failed"), ForPods(cluster),
              "sluice-extender") {}

 private:
  // Only the facts of an object are kept, and no second set of them while a list is read.
  static kube::WatchHandler ForNodes(ClusterState& cluster) {
    auto listed = std::make_shared<std::unordered_set<std::string>>();
    kube::WatchHandler handler;
    handler.begin = [listed] { listed->clear(); };
    handler.item = [&cluster, listed](const kube::Json& object) {
      NodeFacts node = ReadNode(object);
      listed->insert(node.name);
      cluster.PutNode(std::move(node));
    };
    handler.end = [&cluster, listed] { cluster.KeepNodes(std::exchange(*listed, {})); };
    handler.changed = [&cluster](kube::Change change, const kube::Json& object) {
      NodeFacts node = ReadNode(object);
      change == kube::Change::kDeleted ? cluster.RemoveNode(node.name) : cluster.PutNode(std::move(node));
    };
    return handler;
  }

  static kube::WatchHandler ForPods(ClusterState& cluster) {
    auto listed = std::make_shared<std::unordered_set<std::string>>();
    kube::WatchHandler handler;
    handler.begin = [listed] { listed->clear(); };
    handler.item = [&cluster, listed](const kube::Json& object) {
      PodFacts pod = ReadPod(object);
      listed->insert(pod.uid);
      cluster.PutPod(std::move(pod));
    };
    handler.end = [&cluster, listed] { cluster.KeepPods(std::exchange(*listed, {})); };
    handler.changed = [&cluster](kube::Change change, const kube::Json& object) {
      PodFacts pod = ReadPod(object);
      change == kube::Change::kDeleted ? cluster.RemovePod(pod.uid) : cluster.PutPod(std::move(pod));
    };
    return handler;
  }

  kube::Watcher nodes_;
  kube::Watcher pods_;
};

KubeFeed::KubeFeed(const kube::ClientConfig& config, ClusterState& cluster)
    : impl_(std::make_unique<Impl>(config, cluster)) {}
KubeFeed::~KubeFeed() = default;

}  // namespace sluice::scheduler
