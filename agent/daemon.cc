#include "agent/daemon.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <set>
#include <thread>
#include <utility>

#include "agent/attestation.h"
#include "agent/config_watch.h"
#include "agent/log.h"
#include "common/log/log.h"
#include "common/startup_pages.h"
#ifdef SLUICE_HAVE_KUBERNETES
#include "agent/kubernetes/kubernetes.h"
#include "agent/metrics_endpoint.h"
#endif
#include "agent/nvml_unsafe.h"
#include "agent/pod_resources.h"
#include "agent/printable.h"
#include "agent/server.h"
#include "agent/service.h"
#include "sluice/names.h"
#include "sluice/version.h"

namespace sluice::agent {
namespace {

constexpr uint64_t kRecoverNs = 1'000'000'000;  // hooks try to connect at least every half second
constexpr int kScanMs = 10'000;
constexpr int kCardsMs = 10'000;
constexpr int kKubeletMs = 30'000;
constexpr int kStartedMs = 2'000;
constexpr int kCertificateMs = 10'000;

// It rises over restarts of the agent and does not follow changes of the clock. It begins anew with the machine, as the
// hooks do.
uint64_t FirstGeneration() {
  timespec t{};
  clock_gettime(CLOCK_BOOTTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

std::string NodeName(const Config& config) {
  if (!config.node.empty()) return config.node;
  if (const char* name = std::getenv("NODE_NAME"); name != nullptr && *name != '\0') return name;  // from the chart
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

class Daemon {
 public:
  Daemon(const DaemonOptions& options, const Config& config)
      : options_(options),
        config_(config),
        alloc_dir_(options.alloc_dir.empty() ? config.alloc_dir : options.alloc_dir),
        server_(&loop_, alloc_dir_),
        node_(&server_, config, FirstGeneration()),
        service_(&loop_, &node_, &server_),
        attestation_(&node_, NamesOfPods()),
        config_watch_(&loop_, [this] { Reload(); }) {
    server_.Attach(&node_);
    node_.OnEvent([this](Event& e) {
      e.unix_ms = UnixMs();
      LogEvent(e);
#ifdef SLUICE_HAVE_KUBERNETES
      if (kubernetes_) kubernetes_->OnEvent(e);
#endif
    });
  }

  bool Start(std::string* error) {
    if (!Lock(error) || !Signals(error)) return false;
    if (options_.end_with > 0 && !EndWith(options_.end_with, error)) return false;
    ApplyHostLimit();
    FindCards();
    if (!server_.Start(error)) return false;
    if (server_.found_allocations()) {
      if (!config_.pod_resources.empty()) UseDevices(ListDevicesInUse(config_.pod_resources, 500, &kubelet_error_));
      node_.RecoverUntil(MonotonicNs() + kRecoverNs);
      loop_.After(static_cast<int>(kRecoverNs / 1000000) + 500, [this] { server_.DropOrphans(); });
    }
    if (!service_.Start(options_.run_dir + "/" SLUICE_AGENT_GRPC_SOCKET, error)) return false;
    WatchConfig();
    Periodically(kScanMs, [this] {
      server_.Scan();
      RestoreService();
    });
    Periodically(kCardsMs, [this] { FindCards(); });
    Periodically(kKubeletMs, [this] { AskKubelet(); });
    loop_.After(0, [this] { Attest(); });  // once all has started: it has a thread
    if (config_.kubernetes.enabled && !StartKubernetes(error)) return false;
    ServeMetrics();
#ifdef SLUICE_HAVE_KUBERNETES
    Periodically(kCertificateMs, [this] { metrics_.Refresh(); });
#endif
    return true;
  }

  void Run() {
    Log(LogLevel::kInfo, "sluice-agent " SLUICE_VERSION " serves " + options_.run_dir + "/" SLUICE_AGENT_GRPC_SOCKET);
    loop_.After(kStartedMs, DropStartupPages);
    loop_.Run([this] {
      server_.Settle();  // for processes that attached since: the tick's own plan is not charged to them
      return node_.Tick(MonotonicNs());
    });
    if (stopper_.joinable()) stopper_.join();
    if (asker_.joinable()) asker_.join();
    if (restorer_.joinable()) restorer_.join();
    if (sampler_.joinable()) sampler_.join();
    unlink((options_.run_dir + "/" SLUICE_AGENT_GRPC_SOCKET).c_str());
  }

 private:
  bool Lock(std::string* error) {
    std::error_code ec;
    std::filesystem::create_directories(options_.run_dir, ec);
    const std::string path = options_.run_dir + "/agent.lock";
    lock_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock_ < 0) {
      *error = "--run-dir: '" + options_.run_dir + "' cannot be used: " + std::strerror(errno);
      return false;
    }
    if (flock(lock_, LOCK_EX | LOCK_NB) == 0) return true;
    *error = "--run-dir: another agent serves '" + options_.run_dir + "'";
    return false;
  }

  bool Signals(std::string* error) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, nullptr);  // before gRPC makes threads
    signal(SIGPIPE, SIG_IGN);
    const int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    const bool ok = fd >= 0 && loop_.Add(fd, EPOLLIN, [this, fd](uint32_t) {
      signalfd_siginfo info{};
      if (read(fd, &info, sizeof(info)) > 0) Stop();
    });
    if (!ok) *error = std::string("signalfd: ") + std::strerror(errno);
    return ok;
  }

  // Makes the gRPC socket again where it was removed: without it no tool reaches the agent.
  void RestoreService() {
    const std::string path = options_.run_dir + "/" SLUICE_AGENT_GRPC_SOCKET;
    if (stopper_.joinable() || restoring_ || service_.HasSocket(path)) return;
    restoring_ = true;
    if (restorer_.joinable()) restorer_.join();
    restorer_ = std::thread([this, path] {
      service_.Shutdown();  // the loop answers its calls, so not on the loop's thread
      loop_.Post([this, path] {
        restoring_ = false;
        std::string error;
        if (stopper_.joinable()) return;
        if (!service_.Start(path, &error)) Log(LogLevel::kWarn, error);
      });
    });
  }

  void Stop() {
    if (stopper_.joinable()) return;
    stopper_ = std::thread([this] {
      service_.Shutdown();  // the loop answers its calls, so the loop ends after it
      loop_.Stop();
    });
  }

  void UseDevices(const std::optional<DevicesInUse>& in_use) {
    if (in_use) {
      node_.SetDevicesInUse(*in_use);
      node_.Settle();
    } else if (kubelet_error_ != kubelet_logged_) {
      Log(LogLevel::kWarn, kubelet_error_);
    }
    kubelet_logged_ = in_use ? "" : kubelet_error_;
  }

  // On a thread of its own: kubelet may be slow.
  void AskKubelet() {
    if (config_.pod_resources.empty() || asking_) return;
    asking_ = true;
    if (asker_.joinable()) asker_.join();
    asker_ = std::thread([this, socket = config_.pod_resources, asked = MonotonicNs()] {
      std::string error;
      OtherOwners others;
      auto in_use = ListDevicesInUse(socket, 5000, &error, &others);
      loop_.Post([this, error, asked, in_use = std::move(in_use), others = std::move(others)] {
        asking_ = false;
        kubelet_error_ = error;
        UseDevices(in_use);
        if (in_use) attestation_.SetOthers(others, asked);
      });
    });
  }

  // `sluice run` may be killed; its agent and its folder must not outlive it.
  bool EndWith(int pid, std::string* error) {
    const int fd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (fd < 0) {
      *error = "--end-with: no process " + std::to_string(pid);
      return false;
    }
    return loop_.Add(fd, EPOLLIN, [this, fd](uint32_t) {
      loop_.Remove(fd);
      std::error_code ec;
      std::filesystem::remove_all(options_.run_dir, ec);
      Stop();
    });
  }

  void Attest() {
    loop_.After(static_cast<int>(std::max(config_.attest_interval_s, 1u)) * 1000, [this] { Attest(); });
    if (!nvml_ || config_.attest_interval_s == 0 || sampling_) return;
    sampling_ = true;
    std::vector<std::string> gpus, allocations;
    std::set<int64_t> attached;
    for (const CardStatus& c : node_.Cards()) gpus.push_back(c.uuid);
    for (const auto& [id, identity] : node_.KnownIdentities()) {
      allocations.push_back(id);
      attached.insert(identity.pids.begin(), identity.pids.end());
    }
    if (sampler_.joinable()) sampler_.join();
    auto limits = config_.driver_limits ? attestation_.TakeLimits() : std::vector<DriverLimit>{};
    sampler_ =
        std::thread([this, gpus = std::move(gpus), allocations = std::move(allocations), attached = std::move(attached),
                     folder = alloc_dir_, limits = std::move(limits), root = config_.cgroup_root] {
          ReportLimits(SetDriverLimits(*nvml_, limits, root));
          auto sample = std::make_shared<GpuSample>(TakeSample(*nvml_, gpus, folder, allocations, attached));
          loop_.Post([this, sample] {
            sampling_ = false;
            const bool kubelet = !config_.pod_resources.empty();
            if (attestation_.Apply(sample, config_.exempt_namespaces, kubelet, MonotonicNs())) AskKubelet();
          });
        });
  }

  void ReportLimits(const std::vector<RefusedLimit>& refused) {
    for (const RefusedLimit& r : refused) {
      loop_.Post([this, r] {
        attestation_.LimitFailed(r.limit);
        if (!std::exchange(limits_failed_, true)) node_.AddEvent("", "driver limit", r.why);
      });
    }
  }

  void ServeMetrics() {
#ifdef SLUICE_HAVE_KUBERNETES
    const std::string error = metrics_.Serve(config_, NodeName(config_), kubernetes_ ? &kubernetes_->api() : nullptr);
#else
    const std::string error = config_.metrics_listen.empty() ? "" : "metrics.listen: this agent was built without HTTP";
#endif
    if (!error.empty()) node_.AddEvent("", "metrics", error);
  }

  void Periodically(int ms, const std::function<void()>& work) {
    loop_.After(ms, [this, ms, work] {
      work();
      Periodically(ms, work);
    });
  }

  // Of the watch, if there is one.
  std::function<Attestation::PodName(const std::string&)> NamesOfPods() {
#ifdef SLUICE_HAVE_KUBERNETES
    if (config_.kubernetes.enabled) {
      return [this](const std::string& uid) { return kubernetes_ ? kubernetes_->NameOf(uid) : Attestation::PodName{}; };
    }
#endif
    return {};
  }

  bool StartKubernetes(std::string* error) {
#ifdef SLUICE_HAVE_KUBERNETES
    kubernetes_ = std::make_unique<Kubernetes>(&loop_, &node_, NodeName(config_), options_.run_dir, &config_);
    return kubernetes_->Start(error);
#else
    *error = "kubernetes.enabled: this agent was built without Kubernetes";
    return false;
#endif
  }

  void ApplyHostLimit() {
    struct sysinfo info{};
    sysinfo(&info);
    const Bytes ram = static_cast<Bytes>(info.totalram) * info.mem_unit;
    node_.SetHostLimit(config_.host_memory_bytes > 0 ? config_.host_memory_bytes
                                                     : ram / 100 * config_.host_memory_percent);
  }

  void FindCards() {
    std::string error;
    if (!nvml_) nvml_ = Nvml::Load(options_.nvml.empty() ? config_.nvml : options_.nvml, &error);
    if (!nvml_) {
      // The agent of one program gives this error as the answer to the program's only request.
      if (error != card_error_ && options_.end_with == 0) Log(LogLevel::kWarn, error);
    } else {
      const std::vector<Card> cards = nvml_->Cards();
      if (cards.empty()) error = "NVML lists no GPU";
      node_.SetCards(cards);
      for (const Card& c : cards) {
        if (c.cgroup_memory > 0 && small_cards_.insert(c.uuid).second)
          Log(LogLevel::kWarn, c.uuid + ": the driver limits the agent's cgroup to " + std::to_string(c.cgroup_memory) +
                                   " bytes of " + std::to_string(c.memory));
      }
      for (const Card& c : cards) node_.SetUsed(c.uuid, nvml_->UsedBytes(c.uuid));
      node_.Settle();
    }
    card_error_ = error;
    service_.SetCardError(error);
  }

  void WatchConfig() {
    std::string error;
    if (!options_.config_path.empty() && !config_watch_.Start(options_.config_path, &error))
      Log(LogLevel::kWarn, error);
  }

  void Reload() {
    Config fresh;
    std::string error;
    if (!LoadConfig(options_.config_path, &fresh, &error)) {
      if (error != config_error_) node_.AddEvent("", "configuration refused", error + "; the old one stays in force");
      config_error_ = error;
      node_.SetConfigError(Printable(error));
      return;
    }
    const bool was_bad = !config_error_.empty();
    config_error_.clear();
    config_ = std::move(fresh);
    if (options_.quiet) config_.log_level = LogLevel::kWarn;
    SetUpLog(config_);
    node_.SetConfig(config_);
    ApplyHostLimit();
    node_.Settle();
    ServeMetrics();
    node_.AddEvent("", "configuration", was_bad ? "accepted again" : "read");
  }

  const DaemonOptions options_;
  Config config_;
  const std::string alloc_dir_;
  int lock_ = -1;
  std::string card_error_, config_error_;
  std::set<std::string> small_cards_;  // logged: NVML gives the agent's cgroup a smaller size
  EventLoop loop_;
  Server server_;
  Node node_;
  Service service_;
  Attestation attestation_;
  bool limits_failed_ = false;  // told once
  ConfigWatch config_watch_;
  std::unique_ptr<Nvml> nvml_;
  std::thread stopper_, asker_, restorer_, sampler_;
  bool restoring_ = false;
  bool sampling_ = false;  // sampler_ runs; it alone calls NVML then, beside FindCards(), and NVML allows that
  bool asking_ = false;
  std::string kubelet_error_, kubelet_logged_;
#ifdef SLUICE_HAVE_KUBERNETES
  std::unique_ptr<Kubernetes> kubernetes_;                               // it uses the members above
  MetricsEndpoint metrics_{&loop_, &node_, &server_, options_.run_dir};  // last: its threads use the members above
#endif
};

}  // namespace

int RunDaemon(const DaemonOptions& options, Config config) {
  if (options.quiet) config.log_level = LogLevel::kWarn;
  SetUpLog(config);
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {  // each process takes two descriptors
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  Daemon daemon(options, config);
  std::string error;
  if (!daemon.Start(&error)) {
    Log(LogLevel::kError, error);
    return 1;
  }
  daemon.Run();
  return 0;
}

}  // namespace sluice::agent
