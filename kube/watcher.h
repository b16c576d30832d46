// Follows a list of objects: list, then watch with bookmarks, until destroyed. Calls the handler's functions from one
// thread of its own.
#ifndef SLUICE_KUBE_WATCHER_H_
#define SLUICE_KUBE_WATCHER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kube/client.h"

namespace sluice::kube {

enum class Change { kAdded, kModified, kDeleted };

struct WatchHandler {
  // The whole list: at the start, and again after a gap whose changes cannot be known (410).
  std::function<void(std::vector<Json> items)> replaced;
  std::function<void(Change change, const Json& object)> changed;
  // up: a watch is established; not up: with the reason. Optional.
  std::function<void(bool up, const std::string& why)> state;
};

class Watcher {
 public:
  Watcher(ClientConfig config, std::string path, ListOptions options, WatchHandler handler,
          std::string user_agent = "sluice");
  ~Watcher();  // returns when no function is being called any more
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::kube

#endif  // SLUICE_KUBE_WATCHER_H_
