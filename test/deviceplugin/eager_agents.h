// Stands in for the node agent, as fast as the real one: a listening agent.sock in each allocation's folder as soon as
// allocation.json is there. FakeAgents looks every 10 ms, which would be the latency that a test measures.
#ifndef SLUICE_TEST_DEVICEPLUGIN_EAGER_AGENTS_H_
#define SLUICE_TEST_DEVICEPLUGIN_EAGER_AGENTS_H_

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <atomic>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

#include "deviceplugin/host/files.h"
#include "test/deviceplugin/plugin_process.h"

namespace sluice::deviceplugin {

class EagerAgents {
 public:
  explicit EagerAgents(std::string alloc_dir) : root_(std::move(alloc_dir)) {
    inotify_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    inotify_add_watch(inotify_, root_.c_str(), IN_CREATE | IN_DELETE | IN_ONLYDIR);
    thread_ = std::thread([this] { Run(); });
  }
  ~EagerAgents() {
    stopping_ = true;
    thread_.join();
    close(inotify_);
  }
  EagerAgents(const EagerAgents&) = delete;
  EagerAgents& operator=(const EagerAgents&) = delete;

 private:
  void Visit(const std::string& name) {
    const std::string dir = root_ + "/" + name;
    if (agents_.contains(name) || !IsFile(dir + "/allocation.json")) return;
    try {
      agents_[name] = std::make_unique<FakeAgent>(dir);
      // NOLINTNEXTLINE(bugprone-empty-catch): the folder may be removed at any moment
    } catch (const std::runtime_error&) {
    }
  }

  void Arrive(const std::string& name) {
    const int watch = inotify_add_watch(inotify_, (root_ + "/" + name).c_str(), IN_MOVED_TO | IN_ONLYDIR);
    if (watch >= 0) names_[watch] = name;
    Visit(name);
  }

  void Run() {
    const auto names = ListDir(root_);
    for (const std::string& name : names.ok() ? *names : std::vector<std::string>{}) Arrive(name);
    alignas(inotify_event) char buffer[65536];
    while (!stopping_) {
      pollfd fd{inotify_, POLLIN, 0};
      if (poll(&fd, 1, 20) <= 0) continue;
      const ssize_t n = read(inotify_, buffer, sizeof buffer);
      for (ssize_t at = 0; at < n;) {
        const auto* event = reinterpret_cast<const inotify_event*>(buffer + at);
        at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
        const auto folder = names_.find(event->wd);
        if (folder != names_.end()) {
          (event->mask & IN_IGNORED) != 0 ? void(names_.erase(folder)) : Visit(folder->second);
        } else if ((event->mask & IN_CREATE) != 0) {
          agents_.erase(event->name);  // a folder of this name that was removed before
          Arrive(event->name);
        } else if ((event->mask & IN_DELETE) != 0) {
          agents_.erase(event->name);
        }
      }
    }
  }

  const std::string root_;
  int inotify_ = -1;
  std::map<int, std::string> names_;  // by watch
  std::map<std::string, std::unique_ptr<FakeAgent>> agents_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace sluice::deviceplugin

#endif  // SLUICE_TEST_DEVICEPLUGIN_EAGER_AGENTS_H_
