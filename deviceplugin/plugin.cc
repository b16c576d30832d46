#include "deviceplugin/plugin.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <map>
#include <thread>

#include "common/log/log.h"
#include "deviceplugin/decide/registration.h"
#include "deviceplugin/dra/claim_store.h"
#include "deviceplugin/grpc/service.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/program.h"
#include "deviceplugin/reconciler.h"
#include "deviceplugin/reservation_watcher.h"
#include "deviceplugin/text.h"
#include "sluice/reservation.h"

namespace sluice::deviceplugin {
namespace {

using Clock = Registration::Clock;

constexpr std::chrono::milliseconds kHeartbeat{1000};
constexpr std::chrono::seconds kLockWait{5};

std::optional<SocketId> Identify(const std::string& path) {
  struct stat st;
  if (lstat(path.c_str(), &st) != 0 || !S_ISSOCK(st.st_mode)) return std::nullopt;
  return SocketId{st.st_dev, st.st_ino, int64_t{st.st_ctim.tv_sec} * 1'000'000'000 + st.st_ctim.tv_nsec};
}

// A file descriptor that closes itself.
struct Fd {
  int value = -1;
  ~Fd() {
    if (value >= 0) close(value);
  }
};

class PluginRunner {
 public:
  explicit PluginRunner(PluginOptions options) : options_(std::move(options)) {
    own_socket_ = StrCat(options_.kubelet_dir, "/", kPluginSocketName);
    kubelet_socket_ = StrCat(options_.kubelet_dir, "/", kKubeletSocketName);
  }

  absl::Status Run(bool* stuck) {
    if (auto s = WaitForFolder(); !s.ok()) return s;
    if (stopped_) return absl::OkStatus();
    reconciler_ = std::make_unique<Reconciler>(
        ReconcilerOptions{options_.config, options_.kubelet_dir, options_.nvml, snapshots_, metrics_});
    std::unique_ptr<ProbeServer> http;
    if (!options_.config.metrics_address.empty()) {
      auto started = ProbeServer::Start(
          options_.config.metrics_address, metrics_, [this] { return Unhealthy(); }, [this] { return Unready(); });
      if (!started.ok()) return started.status();
      http = *std::move(started);
    }
    // NVML calls are bounded, so this ends. Registering earlier would tell kubelet that the GPUs of running containers
    // are gone.
    while (!reconciler_->WaitForFirstPass(std::chrono::milliseconds(50)) && !StopRequested(0))
      heartbeat_ = Clock::now();
    if (options_.config.extender) reservations_ = std::make_shared<Reservations>();
    grown_ = std::make_shared<GrownShares>(
        [pods = PodsDir()](const std::string& uid) { return !IsDir(pods) || IsDir(pods + "/" + uid); });
    UpdateClaimed();
    const ReservationWatcher follower(ReservationFile(), options_.kubelet_dir, reservations_, grown_, waiting_,
                                      [this] { snapshots_->Announce(); });
    while (!stopped_) Step();
    Log(LogLevel::kInfo, "stopping");
    server_.reset();
    unlink(own_socket_.c_str());
    *stuck = reconciler_->stuck_calls() > 0;
    return absl::OkStatus();
  }

 private:
  // Kubelet's folder of pods.
  std::string PodsDir() const {
    return options_.config.pods_dir.empty() ? DefaultPodsDir(options_.kubelet_dir) : options_.config.pods_dir;
  }

  std::string ReservationFile() const {
    const std::string& file = options_.config.reservation_file;
    if (!file.empty()) return file;
    return (std::filesystem::path(options_.config.state_file).parent_path() / SLUICE_RESERVATION_FILE).string();
  }

  // Waits for kubelet's folder and locks it: the folder itself, because kubelet deletes the files in it at its start.
  absl::Status WaitForFolder() {
    bool logged = false;
    const auto until = Clock::now() + kLockWait;
    while (!StopRequested(logged ? 100 : 0)) {
      if (lock_.value < 0) lock_.value = open(options_.kubelet_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (lock_.value < 0) {
        if (!logged) Log(LogLevel::kWarn, "waiting for kubelet's folder", {{"path", options_.kubelet_dir}});
        logged = true;
        continue;
      }
      if (flock(lock_.value, LOCK_EX | LOCK_NB) == 0) break;
      if (Clock::now() > until) {
        return absl::AlreadyExistsError(StrCat("another sluice-device-plugin serves ", options_.kubelet_dir,
                                               "; only one instance per node may run"));
      }
      logged = true;
    }
    inotify_.value = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    return absl::OkStatus();
  }

  bool StopRequested(int wait_ms) {
    pollfd fd{options_.stop_fd, POLLIN, 0};
    if (poll(&fd, 1, wait_ms) > 0) stopped_ = true;
    return stopped_;
  }

  Observed Observe() const {
    return {Identify(kubelet_socket_), server_ ? Identify(own_socket_) : std::nullopt,
            server_ ? server_->watchers() : 0};
  }

  void Step() {
    heartbeat_ = Clock::now();
    ReloadConfig();
    if (!claimed_.empty()) UpdateClaimed();
    // Watch before observing, so that a change in between wakes the wait.
    inotify_add_watch(inotify_.value, options_.kubelet_dir.c_str(),
                      IN_CREATE | IN_DELETE | IN_MOVED_TO | IN_MOVED_FROM | IN_ATTRIB);
    const Observed seen = Observe();
    const bool was = registration_.registered();
    const auto action = registration_.Next(seen, Clock::now());
    if (was && !registration_.registered())
      Log(LogLevel::kInfo, "registration lost", {{"why", registration_.why_unregistered()}});
    registered_ = registration_.registered();
    idle_memory_.Step(registered_, metrics_->calls());
    switch (action) {
      case Registration::Action::kServe:
        return Serve();
      case Registration::Action::kRegister:
        return Register();
      case Registration::Action::kWait:
        return Wait();
    }
  }

  // Claims hold units if the DRA driver served the node before. They end, and none comes: this process holds the lock.
  void UpdateClaimed() {
    auto units = dra::ClaimedUnits(options_.config.alloc_dir);
    if (!units || *units == claimed_) return;
    claimed_ = *std::move(units);
    std::string text;
    for (const auto& [uuid, count] : claimed_) text += StrCat(text.empty() ? "" : ", ", uuid, ": ", count);
    Log(LogLevel::kWarn, "units withheld for claims of the DRA driver", {{"units", text.empty() ? "none" : text}});
    if (grown_->SetClaimed(claimed_)) snapshots_->Announce();
  }

  void Serve() {
    // The old server first: at its end it removes the path, whichever socket is there by then.
    server_.reset();
    if (Identify(own_socket_) || !IsDir(own_socket_)) unlink(own_socket_.c_str());
    auto server = PluginServer::Start(own_socket_, {snapshots_, metrics_, AllocationStore(options_.config.alloc_dir),
                                                    reservations_, options_.kubelet_dir, grown_, waiting_});
    const bool served = server.ok();
    if (served) {
      server_ = *std::move(server);
      Log(LogLevel::kInfo, "serving", {{"socket", own_socket_}});
    } else {
      Log(LogLevel::kError, "serving", {{"why", std::string(server.status().message())}});
    }
    registration_.Served(served, Identify(own_socket_), Clock::now());
  }

  void Register() {
    const absl::Status s = RegisterWithKubelet(kubelet_socket_, kPluginSocketName);
    metrics_->CountRegistration(s.ok());
    Log(s.ok() ? LogLevel::kInfo : LogLevel::kWarn, "registration",
        {{"result", s.ok() ? "ok" : std::string(s.message())}});
    // If kubelet restarted meanwhile, Next sees another kubelet socket and registers again.
    registration_.Registered(s.ok(), Clock::now());
    registered_ = s.ok();
    if (s.ok()) reconciler_->Wake();
  }

  void Wait() {
    auto timeout = kHeartbeat;
    if (auto wake = registration_.NextWake()) {
      timeout = std::clamp(
          std::chrono::duration_cast<std::chrono::milliseconds>(*wake - Clock::now()) + std::chrono::milliseconds(1),
          std::chrono::milliseconds(1), kHeartbeat);
    }
    pollfd fds[2] = {{options_.stop_fd, POLLIN, 0}, {inotify_.value, POLLIN, 0}};
    poll(fds, 2, static_cast<int>(timeout.count()));
    if (fds[0].revents != 0) stopped_ = true;
    char buffer[4096];
    while (read(inotify_.value, buffer, sizeof buffer) > 0) {
    }
  }

  void ReloadConfig() {
    if (const auto config = config_file_.Changed("paths, NVML and the metrics address"))
      reconciler_->Reconfigure(*config);
  }

  std::string Unhealthy() const {
    const auto now = Clock::now();
    if (now - heartbeat_.load() > std::chrono::seconds(15)) return "the main loop hangs";
    const auto config = options_.config;
    // A pass may have to wait for every card of a hanging driver.
    const auto bound = config.poll + config.nvml_timeout * 20 + std::chrono::seconds(30);
    if (now - reconciler_->last_pass() > bound) return "the reconciler hangs";
    return "";
  }

  std::string Unready() const {
    if (!registered_) return "not registered with kubelet";
    const auto snapshot = snapshots_->Latest();
    if (!snapshot) return "the cards have not been read yet";
    return snapshot->lib_problem;
  }

  PluginOptions options_;
  ConfigFile config_file_{"sluice-device-plugin", options_.config_path};
  std::string own_socket_, kubelet_socket_;
  std::shared_ptr<SnapshotPublisher> snapshots_ = std::make_shared<SnapshotPublisher>();
  std::shared_ptr<Metrics> metrics_ = std::make_shared<Metrics>();
  std::shared_ptr<Reservations> reservations_;
  std::shared_ptr<GrownShares> grown_;
  const std::shared_ptr<WaitingRequests> waiting_ = std::make_shared<WaitingRequests>();
  std::map<std::string, int> claimed_;  // units by card, of claims
  Registration registration_;
  std::unique_ptr<PluginServer> server_;
  Fd lock_, inotify_;
  IdleMemory idle_memory_;
  bool stopped_ = false;
  std::atomic<bool> registered_ = false;
  std::atomic<Clock::time_point> heartbeat_{Clock::now()};
  std::unique_ptr<Reconciler> reconciler_;
};

}  // namespace

absl::Status RunPlugin(PluginOptions options, bool* stuck) { return PluginRunner(std::move(options)).Run(stuck); }

}  // namespace sluice::deviceplugin
