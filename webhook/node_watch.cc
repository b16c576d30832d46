#include "webhook/node_watch.h"

#include <nlohmann/json.hpp>

#include "common/log/log.h"
#include "sluice/names.h"
#include "webhook/decision/share_claim.h"

namespace sluice::webhook {

NodeWatch::NodeWatch(kube::ClientConfig config, Service& service) : config_(std::move(config)), service_(service) {
  kube::ListOptions options;
  options.metadata_only = true;
  kube::WatchHandler handler;
  handler.begin = [this] {
    const MutexLock lock(mutex_);
    listed_.clear();
  };
  handler.item = [this](const kube::Json& object) {
    const MutexLock lock(mutex_);
    Store(object);
    const std::string_view name = NameOf(object);
    if (nodes_.contains(name)) listed_.emplace(name);
  };
  handler.end = [this] {
    const MutexLock lock(mutex_);
    std::erase_if(nodes_, [this](const auto& entry) SLUICE_REQUIRES(mutex_) { return !listed_.contains(entry.first); });
    listed_.clear();
    Publish();
  };
  handler.changed = [this](kube::Change change, const kube::Json& object) {
    const MutexLock lock(mutex_);
    if (change == kube::Change::kDeleted) {
      if (nodes_.erase(std::string(NameOf(object))) > 0) Publish();
    } else if (Store(object)) {
      Publish();
    }
  };
  handler.state = [this](bool is_up, const std::string& error) {
    const MutexLock lock(mutex_);
    is_synced_ = is_up;
    service_.metrics().SetNodes(nodes_.size(), is_synced_);
    if (!error.empty()) Log(LogLevel::kWarn, "nodes: " + error);
  };
  watcher_ = std::make_unique<kube::Watcher>(config_, "/api/v1/nodes", options, std::move(handler), "sluice-webhook");
}

void NodeWatch::FollowSlices() {
  if (slice_watcher_ != nullptr) return;
  kube::ListOptions options;
  options.field_selector = "spec.driver=" SLUICE_DOMAIN;
  kube::WatchHandler handler;
  handler.begin = [this] {
    const MutexLock lock(mutex_);
    listed_slices_.clear();
  };
  handler.item = [this](const kube::Json& object) {
    const MutexLock lock(mutex_);
    StoreSlice(object);
    listed_slices_.emplace(NameOf(object));
  };
  handler.end = [this] {
    const MutexLock lock(mutex_);
    std::erase_if(slices_,
                  [this](const auto& entry) SLUICE_REQUIRES(mutex_) { return !listed_slices_.contains(entry.first); });
    listed_slices_.clear();
    Publish();
  };
  handler.changed = [this](kube::Change change, const kube::Json& object) {
    const MutexLock lock(mutex_);
    if (change == kube::Change::kDeleted) {
      if (slices_.erase(std::string(NameOf(object))) > 0) Publish();
    } else if (StoreSlice(object)) {
      Publish();
    }
  };
  handler.state = [](bool, const std::string& error) {
    if (!error.empty()) Log(LogLevel::kWarn, "resourceslices: " + error);
  };
  slice_watcher_ = std::make_unique<kube::Watcher>(config_, "/apis/resource.k8s.io/v1/resourceslices", options,
                                                   std::move(handler), "sluice-webhook");
}

bool NodeWatch::StoreSlice(const kube::Json& object) {
  const Json* spec = Member(object, "spec");
  Slice slice{std::string(spec == nullptr ? std::string_view() : Text(*spec, "nodeName")), ReadSizes(object)};
  Slice& stored = slices_[std::string(NameOf(object))];
  if (stored == slice) return false;
  stored = std::move(slice);
  return true;
}

std::string_view NodeWatch::NameOf(const kube::Json& object) {
  const Json* metadata = Member(object, "metadata");
  return metadata == nullptr ? std::string_view() : Text(*metadata, "name");
}

bool NodeWatch::Store(const kube::Json& object) {
  std::string error;
  Node node = ReadNode(object, error);
  if (!error.empty()) Log(LogLevel::kWarn, error);
  if (node.gpus.empty()) return nodes_.erase(node.name) > 0;
  const auto it = nodes_.find(node.name);
  if (it != nodes_.end() && it->second.labels == node.labels && it->second.gpus == node.gpus) return false;
  nodes_[node.name] = std::move(node);
  return true;
}

void NodeWatch::Publish() {
  Nodes nodes = nodes_;
  for (const auto& [name, slice] : slices_) {
    if (slice.node.empty()) continue;
    Node& node = nodes[slice.node];
    node.name = slice.node;
    node.offered.insert(node.offered.end(), slice.sizes.begin(), slice.sizes.end());
  }
  service_.SetNodes(std::move(nodes));
  service_.metrics().SetNodes(nodes_.size(), is_synced_);
}

}  // namespace sluice::webhook
