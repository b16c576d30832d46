// Watches the nodes' metadata, and where shares are claims the driver's ResourceSlices, and gives the service the
// nodes' GPUs.
#ifndef SLUICE_WEBHOOK_NODE_WATCH_H_
#define SLUICE_WEBHOOK_NODE_WATCH_H_

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/mutex.h"
#include "kube/watcher.h"
#include "webhook/decision/nodes.h"
#include "webhook/server/service.h"

namespace sluice::webhook {

// `service` must outlive it. Everything runs on the watchers' threads.
class NodeWatch {
 public:
  NodeWatch(kube::ClientConfig config, Service& service);

  // Begins to watch the slices, too. To call it again does nothing.
  void FollowSlices();

 private:
  struct Slice {
    std::string node;
    std::vector<uint64_t> sizes;
    bool operator==(const Slice&) const = default;
  };

  // True if a decision could see the change. A node's heartbeat changes nothing in its metadata.
  bool Store(const kube::Json& object) SLUICE_REQUIRES(mutex_);
  bool StoreSlice(const kube::Json& object) SLUICE_REQUIRES(mutex_);
  static std::string_view NameOf(const kube::Json& object);
  void Publish() SLUICE_REQUIRES(mutex_);

  const kube::ClientConfig config_;
  Service& service_;
  Mutex mutex_;
  Nodes nodes_ SLUICE_GUARDED_BY(mutex_);                   // those with GPUs
  std::set<std::string> listed_ SLUICE_GUARDED_BY(mutex_);  // of them, those in the list that is being read
  std::map<std::string, Slice, std::less<>> slices_ SLUICE_GUARDED_BY(mutex_);  // by name
  std::set<std::string> listed_slices_ SLUICE_GUARDED_BY(mutex_);
  bool is_synced_ SLUICE_GUARDED_BY(mutex_) = false;
  std::unique_ptr<kube::Watcher> watcher_, slice_watcher_;  // last, because their functions use the others
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_NODE_WATCH_H_
