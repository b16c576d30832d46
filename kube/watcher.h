// Follows a list of objects: list, then watch with bookmarks, until destroyed. Calls the handler's functions from one
// thread of its own. Holds one object at a time.
#ifndef SLUICE_KUBE_WATCHER_H_
#define SLUICE_KUBE_WATCHER_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kube/client.h"

namespace sluice::kube {

enum class Change { kAdded, kModified, kDeleted };

struct WatchHandler {
  // A list: at the start, and again after a gap whose changes cannot be known (410). `begin`, then `item` for each
  // object, then `end`: all other objects are gone. A list that cannot be finished starts over with `begin`.
  std::function<void()> begin;
  std::function<void(const Json& object)> item;
  std::function<void()> end;
  std::function<void(Change change, const Json& object)> changed;
  // up: a watch is established; not up: with the reason. Optional.
  std::function<void(bool up, const std::string& why)> state;
};

// Sets `begin`, `item` and `end` for lists that are wanted as a whole. `add` appends the used parts of an object, if
// any; `replaced` gets the complete list.
template <typename T>
void CollectLists(WatchHandler& handler, std::function<void(const Json& object, std::vector<T>& list)> add,
                  std::function<void(std::vector<T> list)> replaced) {
  auto list = std::make_shared<std::vector<T>>();
  handler.begin = [list] { list->clear(); };
  handler.item = [list, add = std::move(add)](const Json& object) { add(object, *list); };
  handler.end = [list, replaced = std::move(replaced)] { replaced(std::exchange(*list, {})); };
}

class Watcher {
 public:
  // With `options.not_older_than` later lists, too, come from the API server's cache, no older than the last change
  // seen.
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
