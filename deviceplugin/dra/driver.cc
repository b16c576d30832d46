#include "deviceplugin/dra/driver.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/log/log.h"
#include "deviceplugin/dra/preparer.h"
#include "deviceplugin/dra/service.h"
#include "deviceplugin/dra/slice_publisher.h"
#include "deviceplugin/host/files.h"
#include "deviceplugin/program.h"
#include "deviceplugin/reconciler.h"
#include "deviceplugin/text.h"
#include "kube/client.h"
#include "sluice/names.h"

namespace sluice::deviceplugin::dra {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kHeartbeatMs = 1000;
constexpr std::chrono::hours kCollectEvery{1};

bool IsSocket(const std::string& path) {
  struct stat st;
  return lstat(path.c_str(), &st) == 0 && S_ISSOCK(st.st_mode);
}

// A part of an API path. Kubelet passes names that the API server accepted.
bool IsName(const std::string& text) {
  return !text.empty() &&
         std::ranges::all_of(text, [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '.'; });
}

// Its own client, since a client sends one request at a time.
std::function<absl::StatusOr<nlohmann::json>(const ClaimRef&)> ClaimReader(const kube::ClientConfig& api) {
  kube::ClientOptions options;
  options.user_agent = "sluice-dra-driver";
  options.timeout = std::chrono::seconds(5);
  options.attempts = 2;
  auto client = std::make_shared<kube::Client>(api, options);
  return [client](const ClaimRef& ref) -> absl::StatusOr<nlohmann::json> {
    if (!IsName(ref.name_space) || !IsName(ref.name)) {
      return absl::InvalidArgumentError("the claim's namespace and name are no names of the API");
    }
    return client->Get(StrCat("/apis/resource.k8s.io/v1/namespaces/", ref.name_space, "/resourceclaims/", ref.name));
  };
}

class DriverRunner {
 public:
  explicit DriverRunner(DriverOptions options) : options_(std::move(options)) {
    plugin_dir_ = StrCat(options_.plugins_dir, "/", SLUICE_DOMAIN);
    plugin_socket_ = StrCat(plugin_dir_, "/dra.sock");
    registration_socket_ = StrCat(options_.registry_dir, "/", SLUICE_DOMAIN, "-reg.sock");
  }

  absl::Status Run(bool* stuck) {
    std::unique_ptr<ProbeServer> http;
    if (!options_.config.metrics_address.empty()) {
      auto started = ProbeServer::Start(
          options_.config.metrics_address, metrics_, [this] { return Unhealthy(); }, [this] { return Unready(); });
      if (!started.ok()) return started.status();
      http = *std::move(started);
    }
    if (!WaitForNode()) return absl::OkStatus();
    Reconciler reconciler({options_.config, options_.kubelet_dir, options_.nvml, snapshots_, metrics_});
    while (!reconciler.WaitForFirstPass(std::chrono::milliseconds(50)) && !StopRequested(0)) heartbeat_ = Clock::now();
    if (!stopped_) {
      const absl::Status status = ServeUntilStopped(&reconciler);
      *stuck = reconciler.stuck_calls() > 0;
      if (!status.ok()) return status;
    }
    Log(LogLevel::kInfo, "stopping");
    server_.reset();
    return absl::OkStatus();
  }

 private:
  // Locks the folder that the device plugin locks too: a node offers its cards in one way only.
  bool WaitForNode() {
    bool is_logged = false;
    while (!StopRequested(is_logged ? 200 : 0)) {
      heartbeat_ = Clock::now();
      if (lock_ < 0) lock_ = open(options_.kubelet_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      if (lock_ >= 0 && flock(lock_, LOCK_EX | LOCK_NB) == 0) return true;
      if (!is_logged) {
        Log(LogLevel::kWarn, lock_ < 0 ? "waiting for kubelet's folder" : "waiting for the device plugin to end",
            {{"path", options_.kubelet_dir}});
      }
      is_logged = true;
    }
    return false;
  }

  absl::Status ServeUntilStopped(Reconciler* reconciler) {
    const auto held = std::make_shared<HeldUnits>(AllocationStore(options_.config.alloc_dir));
    PreparerOptions preparing{snapshots_,
                              ClaimStore(options_.config.alloc_dir, options_.config.cdi_dir),
                              options_.node,
                              options_.config.reserve,
                              ClaimReader(options_.api),
                              held};
    preparer_ = std::make_shared<Preparer>(std::move(preparing));
    if (auto s = preparer_->Restore(); !s.ok()) {
      return absl::UnavailableError(StrCat("the allocation folder cannot be read: ", s.message()));
    }
    {
      const MutexLock lock(publisher_mutex_);  // the status page asks it already
      publisher_ = std::make_unique<SlicePublisher>(SlicePublisherOptions{
          options_.api, options_.node, options_.config.reserve, snapshots_, held, options_.config.slices_removed});
    }
    std::thread collector([this] { RunCollector(); });
    while (!stopped_) {
      heartbeat_ = Clock::now();
      ReloadConfig(reconciler);
      // Kubelet's start leaves the sockets alone. Without them kubelet would never find this driver again.
      if (!server_ || !IsSocket(plugin_socket_) || !IsSocket(registration_socket_)) Serve();
      registered_ = server_ && server_->registered();
      idle_memory_.Step(registered_, metrics_->calls());
      StopRequested(kHeartbeatMs);
    }
    collector.join();
    const MutexLock lock(publisher_mutex_);
    publisher_.reset();
    return absl::OkStatus();
  }  // NOLINT(clang-analyzer-cplusplus.NewDeleteLeaks): the claim reader's std::function frees its copy

  void RunCollector() {
    auto next = Clock::now();
    while (!stopped_) {
      if (Clock::now() >= next) {
        preparer_->Collect();
        next = Clock::now() + kCollectEvery;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }

  void Serve() {
    server_.reset();
    absl::Status status = MakeDirs(plugin_dir_);
    if (status.ok()) {
      auto server =
          DriverServer::Start({preparer_, snapshots_, metrics_, options_.node, plugin_socket_, registration_socket_});
      status = server.status();
      if (server.ok()) server_ = *std::move(server);
    }
    Log(status.ok() ? LogLevel::kInfo : LogLevel::kError, "serving",
        {{"socket", plugin_socket_}, {"result", status.ok() ? "ok" : std::string(status.message())}});
  }

  bool StopRequested(int wait_ms) {
    pollfd fd{options_.stop_fd, POLLIN, 0};
    if (poll(&fd, 1, wait_ms) > 0) stopped_ = true;
    return stopped_;
  }

  void ReloadConfig(Reconciler* reconciler) {
    if (const auto config = config_file_.Changed("paths, NVML, reserve and the metrics address"))
      reconciler->Reconfigure(*config);
  }

  std::string Unhealthy() const {
    return Clock::now() - heartbeat_.load() > std::chrono::seconds(15) ? "the main loop hangs" : "";
  }

  std::string Unready() const {
    const auto snapshot = snapshots_->Latest();
    if (!snapshot) return "waiting for the device plugin to end, or for the first reading of the cards";
    if (!registered_) return "not registered with kubelet";
    if (!snapshot->lib_problem.empty()) return snapshot->lib_problem;
    const MutexLock lock(publisher_mutex_);
    return publisher_ ? publisher_->problem() : "stopping";
  }

  DriverOptions options_;
  ConfigFile config_file_{"sluice-dra-driver", options_.config_path};
  IdleMemory idle_memory_;
  std::string plugin_dir_, plugin_socket_, registration_socket_;
  std::shared_ptr<SnapshotPublisher> snapshots_ = std::make_shared<SnapshotPublisher>();
  std::shared_ptr<Metrics> metrics_ = std::make_shared<Metrics>();
  std::shared_ptr<Preparer> preparer_;
  mutable Mutex publisher_mutex_;
  std::unique_ptr<SlicePublisher> publisher_ SLUICE_GUARDED_BY(publisher_mutex_);
  std::unique_ptr<DriverServer> server_;
  int lock_ = -1;  // held until the process ends
  std::atomic<bool> stopped_ = false, registered_ = false;
  std::atomic<Clock::time_point> heartbeat_{Clock::now()};
};

}  // namespace

absl::Status RunDriver(DriverOptions options, bool* stuck) { return DriverRunner(std::move(options)).Run(stuck); }

}  // namespace sluice::deviceplugin::dra
