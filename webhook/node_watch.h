// Watches the nodes' metadata, and gives the service the nodes' GPUs.
#ifndef SLUICE_WEBHOOK_NODE_WATCH_H_
#define SLUICE_WEBHOOK_NODE_WATCH_H_

#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "kube/watcher.h"
#include "webhook/decision/nodes.h"
#include "webhook/server/service.h"

namespace sluice::webhook {

// `service` must outlive it. Everything runs on the watcher's thread.
class NodeWatch {
 public:
  NodeWatch(const kube::ClientConfig& config, Service& service);

 private:
  // True if a decision could see the change. A node's heartbeat changes nothing in its metadata.
  bool Store(const kube::Json& object);
  static std::string_view NodeName(const kube::Json& object);
  void Publish();

  Service& service_;
  Nodes nodes_;                   // those with GPUs
  std::set<std::string> listed_;  // of them, those in the list that is being read
  bool is_synced_ = false;
  std::unique_ptr<kube::Watcher> watcher_;  // last, because its functions use the others
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_NODE_WATCH_H_
