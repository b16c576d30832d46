// Server: folders and listeners. Connections: server_connections.cc.
#include "agent/server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "common/selinux/container_label.h"
#include "sluice/names.h"

namespace sluice::agent {
namespace {

namespace fs = std::filesystem;
constexpr const char* kLiveFile = "live.json";
constexpr uint64_t kListenAgainNs = 1'000'000'000;  // after an attempt that failed
constexpr uint32_t kWatched = IN_CREATE | IN_MOVED_TO | IN_MOVED_FROM | IN_DELETE | IN_CLOSE_WRITE | IN_ONLYDIR;

std::string Errno(const std::string& what) { return what + ": " + std::strerror(errno); }

// Temporary name, sync, rename: a reader sees the old content or the new one.
bool WriteFile(const std::string& path, const std::string& text, std::string* error) {
  const std::string temporary = path + ".tmp";
  unlink(temporary.c_str());  // left by an agent that was killed; a link would name a file elsewhere
  const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) {
    *error = Errno(temporary);
    return false;
  }
  const bool ok = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && fsync(fd) == 0;
  if (!ok) *error = Errno(temporary);
  close(fd);
  if (ok && rename(temporary.c_str(), path.c_str()) == 0) return true;
  if (ok) *error = Errno(path);
  unlink(temporary.c_str());
  return false;
}

// The folder itself, not one that a link names. -1: there is none (errno).
int OpenFolder(const std::string& path) { return open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC); }

void RemoveSocket(const std::string& folder) {
  const int dir = OpenFolder(folder);
  if (dir < 0) return;
  unlinkat(dir, SLUICE_SOCKET_NAME, 0);
  close(dir);
}

// Every user may connect: only the container sees the folder, and it runs as any user. By descriptor: a link that has
// taken the socket's place must not open another file to all users.
bool OpenToAll(int dir, const char* name, struct stat* st) {
  const int fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return false;
  const bool ok =
      fstat(fd, st) == 0 && S_ISSOCK(st->st_mode) && chmod(("/proc/self/fd/" + std::to_string(fd)).c_str(), 0666) == 0;
  close(fd);
  return ok;
}

}  // namespace

Server::Server(EventLoop* loop, const std::string& alloc_dir)
    : loop_(loop), alloc_dir_(alloc_dir), spare_fd_(open("/dev/null", O_RDONLY | O_CLOEXEC)) {
  rlimit files{};
  max_descriptors_ = getrlimit(RLIMIT_NOFILE, &files) == 0 ? static_cast<size_t>(files.rlim_cur) : 1024;
}

Server::~Server() {
  while (!connections_.empty()) Destroy(connections_.begin()->first);
  for (auto& [id, place] : places_) {
    if (place.listener < 0) continue;
    StopListening(place);
    RemoveSocket(Directory(id));
  }
  if (inotify_ >= 0) {
    loop_->Remove(inotify_);
    close(inotify_);
  }
  close(spare_fd_);
}

bool Server::Start(std::string* error) {
  std::error_code ec;
  fs::create_directories(alloc_dir_, ec);
  if (!fs::is_directory(alloc_dir_, ec)) {
    *error = "alloc_dir: '" + alloc_dir_ + "' cannot be made: " + ec.message();
    return false;
  }
  inotify_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
  if (inotify_ >= 0) {
    loop_->Add(inotify_, EPOLLIN, [this](uint32_t) {
      char buffer[8192];
      while (read(inotify_, buffer, sizeof(buffer)) > 0) {
      }
      Scan();  // compares everything, so a lost event does no harm
    });
  }
  Scan();
  return true;
}

void Server::Watch(const std::string& folder) {
  if (inotify_ >= 0) inotify_add_watch(inotify_, folder.c_str(), kWatched);
}

void Server::Scan() {
  std::error_code ec;
  std::set<std::string> there;
  Watch(alloc_dir_);  // before the scan: a change during it is an event then
  for (fs::directory_iterator it(alloc_dir_, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string id = it->path().filename();
    if (!IsAllocationId(id) || !fs::is_directory(it->symlink_status(ec))) continue;
    there.insert(id);
    Watch(it->path());
    Place& place = places_[id];
    struct stat st{};
    const std::string file = Directory(id) + "/" SLUICE_ALLOCATION_FILE;
    if (lstat(file.c_str(), &st) != 0) {
      if (place.listener >= 0) Unserve(id);
      continue;
    }
    const int64_t mtime = st.st_mtim.tv_sec * 1000000000ll + st.st_mtim.tv_nsec;
    const bool known = place.listener >= 0 && place.mtime_ns == mtime && place.inode == st.st_ino;
    if (known && HasSocket(id, place)) continue;
    // An attempt to listen changes the folder, and so is the reason for the next scan.
    if (place.failed_ns != 0 && MonotonicNs() - place.failed_ns < kListenAgainNs) continue;
    std::string error;
    if (known ? Listen(id, &place, &error) : Serve(id, &place, &error)) {
      place.mtime_ns = mtime;
      place.inode = st.st_ino;
      place.logged.clear();
    } else if (error != place.logged) {
      place.logged = error;
      node_->AddEvent(id, "refused", error);
    }
  }
  for (auto it = places_.begin(); it != places_.end();) {
    const std::string id = it->first;
    if (there.contains(id)) {
      ++it;
      continue;
    }
    Unserve(id);
    it = places_.erase(it);
  }
  node_->Settle();
}

bool Server::Serve(const std::string& id, Place* place, std::string* error) {
  AllocationSpec spec;
  if (!ReadAllocation(Directory(id) + "/" SLUICE_ALLOCATION_FILE, &spec, error)) return false;
  if (spec.id != id) {
    *error = Directory(id) + ": holds the allocation of another id, '" + spec.id + "'";
    return false;
  }
  if (!node_->AddAllocation(spec, LoadLive(id), error)) return false;
  if (place->listener >= 0) return HasSocket(id, *place) || Listen(id, place, error);
  if (spec.tied && id != creating_ && !orphans_.contains(id)) {
    const int owner =
        spec.owner > 0 ? static_cast<int>(syscall(SYS_pidfd_open, static_cast<pid_t>(spec.owner), 0)) : -1;
    orphans_[id] = owner;
    if (owner >= 0) {
      loop_->Add(owner, EPOLLIN, [this, id](uint32_t) {
        int& fd = orphans_.at(id);
        loop_->Remove(fd);
        close(std::exchange(fd, -1));
        DropOrphans();
      });
    }
  }
  if (Listen(id, place, error)) return true;
  node_->RemoveAllocation(id);
  return false;
}

// Whether the listener's socket is still under its name.
bool Server::HasSocket(const std::string& id, const Place& place) const {
  struct stat st{};
  return lstat((Directory(id) + "/" SLUICE_SOCKET_NAME).c_str(), &st) == 0 && S_ISSOCK(st.st_mode) &&
         st.st_ino == place.socket;
}

// Also replaces a socket that was removed; connections stay.
bool Server::Listen(const std::string& id, Place* place, std::string* error) {
  // Bound through the folder's descriptor, so that a path longer than sockaddr_un works too.
  const int dir = OpenFolder(Directory(id));
  const int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_un addr{};
  addr.sun_family = AF_UNIX;
  // It gets its name when it accepts: a process that starts with the allocation must not be refused.
  constexpr const char* kUnfinished = "." SLUICE_SOCKET_NAME;
  std::snprintf(addr.sun_path, sizeof(addr.sun_path), "/proc/self/fd/%d/%s", dir, kUnfinished);
  bool ok = dir >= 0 && fd >= 0;
  if (ok) unlink(addr.sun_path);  // left by an agent that was killed
  ok = ok && bind(fd, reinterpret_cast<sockaddr*>(&addr), sizeof(addr)) == 0;
  // SELinux lets a container use the socket only with the label that the device plugin gave the folder.
  const std::string path = Directory(id) + "/" + kUnfinished;
  if (ok) {  // else errno is the reason
    const std::string label = LabelOf(Directory(id));
    ok = LabelOf(path) == label || SetContainerLabel(path, label, error);
  }
  struct stat st{};
  ok = ok && OpenToAll(dir, kUnfinished, &st) && listen(fd, 4096) == 0;
  if (ok && place->queue == nullptr) place->queue = FairQueue::Make(loop_);
  ok = ok && place->queue != nullptr && place->queue->Add(fd, EPOLLIN, [this, id](uint32_t) { Accept(id); });
  ok = ok && renameat(dir, kUnfinished, dir, SLUICE_SOCKET_NAME) == 0;
  if (!ok && error->empty()) *error = Errno(path);
  if (dir >= 0) close(dir);
  if (ok) {
    StopListening(*place);
    place->listener = fd;
    place->socket = st.st_ino;
  } else if (fd >= 0) {
    close(fd);
  }
  place->failed_ns = ok ? 0 : MonotonicNs();
  return ok;
}

void Server::StopListening(Place& place) {
  if (place.listener < 0) return;
  place.queue->Remove(place.listener);
  close(std::exchange(place.listener, -1));
}

void Server::Unserve(const std::string& id) {
  Place& place = places_[id];
  if (place.listener >= 0) {
    StopListening(place);
    RemoveSocket(Directory(id));
  }
  place = Place{};
  node_->RemoveAllocation(id);
}

void Server::DropOrphans() {
  drop_orphans_ = true;
  for (auto it = orphans_.begin(); it != orphans_.end();) {
    const auto [id, owner] = *it++;
    if (owner < 0 && node_->Processes(id) == 0) Release(id);
  }
}

bool Server::Create(const AllocationSpec& spec, std::string* directory, std::string* error) {
  *directory = Directory(spec.id);
  if (mkdir(directory->c_str(), 0755) != 0) {
    *error = Errno(*directory);
    return false;
  }
  Place place;
  if (!WriteFile(*directory + "/" SLUICE_ALLOCATION_FILE, WriteAllocation(spec), error)) {
    Release(spec.id);
    return false;
  }
  creating_ = spec.id;
  Scan();
  creating_.clear();
  const auto it = places_.find(spec.id);
  if (it != places_.end() && it->second.listener >= 0) return true;
  *error = it == places_.end() ? *directory + ": was removed" : it->second.logged;
  Release(spec.id);
  return false;
}

void Server::Release(const std::string& id) {
  std::error_code ec;
  fs::remove_all(Directory(id), ec);
  if (const auto orphan = orphans_.find(id); orphan != orphans_.end()) {
    if (orphan->second >= 0) {
      loop_->Remove(orphan->second);
      close(orphan->second);
    }
    orphans_.erase(orphan);
  }
  Scan();
}

bool Server::SaveLive(const std::string& id, const std::map<std::string, std::string>& live, std::string* error) {
  return WriteFile(Directory(id) + "/" + kLiveFile, nlohmann::json(live).dump() + "\n", error);
}

std::map<std::string, std::string> Server::LoadLive(const std::string& id) const {
  std::map<std::string, std::string> out;
  std::string text, error;
  if (!ReadRegularFile(Directory(id) + "/" + kLiveFile, &text, &error)) return out;
  const auto object = nlohmann::json::parse(text, nullptr, false);
  if (!object.is_object()) return out;
  for (const auto& [key, value] : object.items()) {
    if (value.is_string()) out[key] = value.get<std::string>();
  }
  return settings::ParseAll(out, "").ok() ? out : std::map<std::string, std::string>{};
}

}  // namespace sluice::agent
