#include "agent/config_watch.h"

#include <sys/epoll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <filesystem>

namespace sluice::agent {
namespace {

constexpr int kSettleMs = 100;  // a file that is still being written is read once

}  // namespace

bool ConfigWatch::Start(const std::string& path, std::string* error) {
  // The folder is watched, not the file: editors and Kubernetes replace files by rename.
  inotify_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  const std::string folder = std::filesystem::absolute(path).parent_path();
  if (inotify_ < 0 ||
      inotify_add_watch(inotify_, folder.c_str(), IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_DELETE) < 0) {
    *error = folder + ": cannot be watched; changes of the configuration need a restart";
    return false;
  }
  loop_->Add(inotify_, EPOLLIN, [this](uint32_t) { OnEvents(); });
  return true;
}

void ConfigWatch::OnEvents() {
  char buffer[8192];
  while (read(inotify_, buffer, sizeof(buffer)) > 0) {
  }
  if (pending_) return;
  pending_ = true;
  loop_->After(kSettleMs, [this] {
    pending_ = false;
    changed_();
  });
}

}  // namespace sluice::agent
