#include "webhook/node_watch.h"

#include <nlohmann/json.hpp>

#include "common/log/log.h"

namespace sluice::webhook {

NodeWatch::NodeWatch(const kube::ClientConfig& config, Service& service) : service_(service) {
  kube::ListOptions options;
  options.metadata_only = true;
  kube::WatchHandler handler;
  handler.begin = [this] { listed_.clear(); };
  handler.item = [this](const kube::Json& object) {
    Store(object);
    const std::string_view name = NodeName(object);
    if (nodes_.contains(name)) listed_.emplace(name);
  };
  handler.end = [this] {
    std::erase_if(nodes_, [this](const auto& entry) { return !listed_.contains(entry.first); });
    listed_.clear();
    Publish();
  };
  handler.changed = [this](kube::Change change, const kube::Json& object) {
    if (change == kube::Change::kDeleted) {
      if (nodes_.erase(std::string(NodeName(object))) > 0) Publish();
    } else if (Store(object)) {
      Publish();
    }
  };
  handler.state = [this](bool is_up, const std::string& error) {
    is_synced_ = is_up;
    service_.metrics().SetNodes(nodes_.size(), is_synced_);
    if (!error.empty()) Log(LogLevel::kWarn, "nodes: " + error);
  };
  watcher_ = std::make_unique<kube::Watcher>(config, "/api/v1/nodes", options, std::move(handler), "sluice-webhook");
}

std::string_view NodeWatch::NodeName(const kube::Json& object) {
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
  service_.SetNodes(nodes_);
  service_.metrics().SetNodes(nodes_.size(), is_synced_);
}

}  // namespace sluice::webhook
