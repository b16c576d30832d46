// Keeps up with a list of objects: list, then watch with bookmarks, for ever. Calls its functions from one own thread.
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
  // The whole list: at the start, and again where what happened between cannot be known (410).
  std::function<void(std::vector<Json> items)> replaced;
  std::function<void(Change change, const Json& object)> changed;
  // true when a watch is up, false with the reason when it is not. Optional.
  std::function<void(bool up, const std::string& why)> state;
};

class Watcher {
 public:
  Watcher(ClientConfig config, std::string path, ListOptions options, WatchHandler handler,
          std::string user_agent = "sluice");
  ~Watcher();  // returns when no function is called any more
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::kube

#endif  // SLUICE_KUBE_WATCHER_H_
