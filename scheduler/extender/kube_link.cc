#include "scheduler/extender/kube_link.h"

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "kube/watcher.h"
#include "sluice/names.h"

namespace sluice::scheduler {
namespace {

kube::ClientOptions BinderOptions() {
  kube::ClientOptions options;
  options.user_agent = "sluice-extender";
  return options;
}

// kube-scheduler waits for the scores: they do without a claim that does not come.
kube::ClientOptions ReaderOptions() {
  kube::ClientOptions options = BinderOptions();
  options.timeout = std::chrono::seconds(1);
  options.attempts = 1;
  return options;
}

kube::ListOptions Pages(std::string field_selector) {
  kube::ListOptions options;
  options.field_selector = std::move(field_selector);
  return options;
}

}  // namespace

KubeBinder::KubeBinder(const kube::ClientConfig& config)
    : client_(config, BinderOptions()), reader_(config, ReaderOptions()) {}

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

absl::StatusOr<ClaimFacts> KubeBinder::GetClaim(const std::string& key) {
  const std::pair<std::string, std::string> names = absl::StrSplit(key, absl::MaxSplits('/', 1));
  absl::StatusOr<kube::Json> claim =
      reader_.Get(absl::StrCat("/apis/resource.k8s.io/v1/namespaces/", names.first, "/resourceclaims/", names.second));
  if (!claim.ok()) return claim.status();
  return ReadClaim(*claim);
}

absl::Status KubeBinder::Annotate(const PodFacts& pod, const std::string& annotation, const std::string& value) {
  // The API server refuses a patch that would change the uid: a new pod of the same name keeps its annotations. Through
  // pods/status, as the agent writes its own: on pods, the webhook denies this annotation to every user.
  const kube::Json patch = {
      {"metadata",
       {{"uid", pod.uid}, {"annotations", {{annotation, value.empty() ? kube::Json() : kube::Json(value)}}}}}};
  const std::string path = absl::StrCat("/api/v1/namespaces/", pod.name_space, "/pods/", pod.name, "/status");
  absl::Status status = client_.Patch(path, patch, kube::PatchType::kMerge).status();
  // Twice is as once, and the API server closes connections that were idle.
  if (absl::IsUnavailable(status)) status = client_.Patch(path, patch, kube::PatchType::kMerge).status();
  return status;
}

class KubeFeed::Impl {
 public:
  Impl(const kube::ClientConfig& config, ClusterState& cluster, ClaimState* claims)
      : nodes_(config, "/api/v1/nodes", Pages(""),
               Handler<NodeFacts>(
                   ReadNode, [](const NodeFacts& node) { return node.name; },
                   [&cluster](NodeFacts node) { cluster.PutNode(std::move(node)); },
                   [&cluster](const std::string& name) { cluster.RemoveNode(name); },
                   [&cluster](const Names& names) { cluster.KeepNodes(names); }),
               kAgent),
        // Pods that have ended hold no units. When a pod ends it leaves the selection, and the watch reports it as
        // deleted.
        pods_(config, "/api/v1/pods", Pages("status.phase!=Succeeded,status.phase!=Failed"),
              Handler<PodFacts>(
                  ReadPod, [](const PodFacts& pod) { return pod.uid; },
                  [&cluster](PodFacts pod) { cluster.PutPod(std::move(pod)); },
                  [&cluster](const std::string& uid) { cluster.RemovePod(uid); },
                  [&cluster](const Names& uids) { cluster.KeepPods(uids); }),
              kAgent) {
    if (claims == nullptr) return;
    classes_.emplace(config, "/apis/resource.k8s.io/v1/deviceclasses", Pages(""),
                     Handler<ClassFacts>(
                         ReadClass, [](const ClassFacts& device_class) { return device_class.name; },
                         [claims](ClassFacts device_class) { claims->PutClass(std::move(device_class)); },
                         [claims](const std::string& name) { claims->RemoveClass(name); },
                         [claims](const Names& names) { claims->KeepClasses(names); }),
                     kAgent);
    slices_.emplace(config, "/apis/resource.k8s.io/v1/resourceslices", Pages("spec.driver=" SLUICE_DOMAIN),
                    Handler<SliceFacts>(
                        ReadSlice, [](const SliceFacts& slice) { return slice.name; },
                        [claims](SliceFacts slice) { claims->PutSlice(std::move(slice)); },
                        [claims](const std::string& name) { claims->RemoveSlice(name); },
                        [claims](const Names& names) { claims->KeepSlices(names); }),
                    kAgent);
    claims_.emplace(config, "/apis/resource.k8s.io/v1/resourceclaims", Pages(""),
                    Handler<ClaimFacts>(
                        ReadClaim, [](const ClaimFacts& claim) { return claim.key; },
                        [claims](ClaimFacts claim) { claims->PutClaim(std::move(claim)); },
                        [claims](const std::string& key) { claims->RemoveClaim(key); },
                        [claims](const Names& keys) { claims->KeepClaims(keys); }),
                    kAgent);
  }

 private:
  using Names = std::unordered_set<std::string>;

  // Only the facts of an object are kept, and no second set of them while a list is read.
  template <class Facts>
  static kube::WatchHandler Handler(Facts (*read)(const kube::Json&), std::string (*name)(const Facts&),
                                    const std::function<void(Facts)>& put,
                                    std::function<void(const std::string&)> remove,
                                    std::function<void(const Names&)> keep) {
    auto listed = std::make_shared<Names>();
    kube::WatchHandler handler;
    handler.begin = [listed] { listed->clear(); };
    handler.item = [read, name, put, listed](const kube::Json& object) {
      Facts facts = read(object);
      listed->insert(name(facts));
      put(std::move(facts));
    };
    handler.end = [keep = std::move(keep), listed] { keep(std::exchange(*listed, {})); };
    handler.changed = [read, name, put, remove = std::move(remove)](kube::Change change, const kube::Json& object) {
      Facts facts = read(object);
      change == kube::Change::kDeleted ? remove(name(facts)) : put(std::move(facts));
    };
    return handler;
  }

  static constexpr char kAgent[] = "sluice-extender";
  kube::Watcher nodes_;
  kube::Watcher pods_;
  std::optional<kube::Watcher> classes_, slices_, claims_;
};

KubeFeed::KubeFeed(const kube::ClientConfig& config, ClusterState& cluster, ClaimState* claims)
    : impl_(std::make_unique<Impl>(config, cluster, claims)) {}
KubeFeed::~KubeFeed() = default;

}  // namespace sluice::scheduler
