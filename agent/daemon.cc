#include "agent/daemon.h"

#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <utility>

#include "agent/attest.h"
#ifdef SLUICE_HAVE_KUBERNETES
#include "agent/kubernetes/kubernetes.h"
#endif
#include "agent/metrics.h"
#include "agent/nvml_unsafe.h"
#include "agent/pod_resources.h"
#include "agent/server.h"
#include "agent/service.h"
#include "sluice/names.h"
#include "sluice/version.h"

namespace sluice::agent {
namespace {

constexpr uint64_t kRecoverNs = 1'000'000'000;  // hooks try at least every half second
constexpr int kScanMs = 10'000;
constexpr int kCardsMs = 10'000;
constexpr int kKubeletMs = 30'000;
constexpr int kStartedMs = 2'000;

uint64_t FirstGeneration() {
  // Rises over restarts of the agent, is not moved by a changed clock, and begins anew only with the machine, as the
  // hooks do.
  timespec t{};
  clock_gettime(CLOCK_BOOTTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000000000u + static_cast<uint64_t>(t.tv_nsec);
}

// One line an event. JSON by nlohmann: text comes from containers.
void LogEvent(const Config& config, const Event& e) {
  const bool bad = e.kind == "refused" || e.kind == "not hooked" || e.kind == "callback late" ||
                   e.kind == "foreign process" || e.kind == "configuration refused" || e.kind == "metrics";
  const auto level = bad ? spdlog::level::warn : spdlog::level::info;
  if (config.log_format == "json") {
    spdlog::log(level, "{}",
                nlohmann::json{{"event", e.kind}, {"allocation", e.allocation}, {"text", e.text}}.dump(
                    -1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    spdlog::log(level, "{}{}{}: {}", e.allocation, e.allocation.empty() ? "" : " ", e.kind, e.text);
  }
}

void SetUpLog(const Config& config) {
  auto logger = std::make_shared<spdlog::logger>("agent", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(config.log_level));
  logger->set_pattern(config.log_format == "json" ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":%v})"
                                                  : "%Y-%m-%dT%H:%M:%S.%e%z %l %v");
  spdlog::set_default_logger(std::move(logger));
}

// In JSON every message is a JSON value.
void Say(const Config& config, spdlog::level::level_enum level, const std::string& text) {
  spdlog::log(level, "{}", config.log_format == "json" ? nlohmann::json(text).dump() : text);
}

std::string NodeName(const Config& config) {
  if (!config.node.empty()) return config.node;
  if (const char* name = std::getenv("NODE_NAME"); name != nullptr && *name != '\0') return name;  // by the chart
  char name[256] = {};
  gethostname(name, sizeof(name) - 1);
  return name;
}

// Code that only the start ran through, and the fault handler's 64 KiB around it (relocation, gRPC's and OpenSSL's
// registrations: 9 MiB), would count as this process's for ever. What is needed again comes back from the page cache.
void DropPagesOfStart() {
  dl_iterate_phdr(
      [](dl_phdr_info* object, size_t, void*) {
        for (int i = 0; i < object->dlpi_phnum; ++i) {
          const ElfW(Phdr)& part = object->dlpi_phdr[i];
          if (part.p_type != PT_LOAD || (part.p_flags & PF_W) != 0) continue;  // never written: nothing is lost
          const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)),
                          begin = object->dlpi_addr + part.p_vaddr;
          const uintptr_t from = begin / page * page;
          // NOLINTNEXTLINE(performance-no-int-to-ptr): the loader tells addresses as numbers
          madvise(reinterpret_cast<void*>(from), begin + part.p_filesz - from, MADV_DONTNEED);
        }
        return 0;
      },
      nullptr);
}

class Daemon {
 public:
  Daemon(const DaemonOptions& options, const Config& config)
      : options_(options),
        config_(config),
        server_(&loop_, options.alloc_dir.empty() ? config.alloc_dir : options.alloc_dir),
        node_(&server_, config, FirstGeneration()),
        service_(&loop_, &node_, &server_) {
    server_.Attach(&node_);
    node_.OnEvent([this](Event& e) {
      e.unix_ms = UnixMs();
      LogEvent(config_, e);
#ifdef SLUICE_HAVE_KUBERNETES
      if (kubernetes_) kubernetes_->Saw(e);
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
      if (!config_.pod_resources.empty()) TakeKubeletsWord(AskKubelet(config_.pod_resources, 500, &kubelet_error_));
      node_.RecoverUntil(MonotonicNs() + kRecoverNs);
      loop_.After(static_cast<int>(kRecoverNs / 1000000) + 500, [this] { server_.DropOrphans(); });
    }
    if (!service_.Start(options_.run_dir + "/" SLUICE_AGENT_GRPC_SOCKET, error)) return false;
    WatchConfig();
    Periodically(kScanMs, [this] {
      server_.Scan();
      KeepService();
    });
    Periodically(kCardsMs, [this] { FindCards(); });
    Periodically(kKubeletMs, [this] { WatchKubelet(); });
    Attest();
    ServeMetrics();
    return !config_.kubernetes.enabled || StartKubernetes(error);
  }

  void Run() {
    Say(config_, spdlog::level::info,
        "sluice-agent " SLUICE_VERSION " serves " + options_.run_dir + "/" SLUICE_AGENT_GRPC_SOCKET);
    loop_.After(kStartedMs, DropPagesOfStart);
    loop_.Run([this] {
      server_.Settle();  // for those that came since; a tick's own plan is not theirs
      return node_.Tick(MonotonicNs());
    });
    if (stopper_.joinable()) stopper_.join();
    if (asker_.joinable()) asker_.join();
    if (mender_.joinable()) mender_.join();
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

  // Somebody has removed its socket: nobody could ask the agent anything any more.
  void KeepService() {
    const std::string path = options_.run_dir + "/" SLUICE_AGENT_GRPC_SOCKET;
    if (stopper_.joinable() || mending_service_ || service_.InPlace(path)) return;
    mending_service_ = true;
    if (mender_.joinable()) mender_.join();
    mender_ = std::thread([this, path] {
      service_.Shutdown();  // its calls are answered on the loop
      loop_.Post([this, path] {
        mending_service_ = false;
        std::string error;
        if (stopper_.joinable()) return;
        if (!service_.Start(path, &error)) Say(config_, spdlog::level::warn, error);
      });
    });
  }

  void Stop() {
    if (stopper_.joinable()) return;
    stopper_ = std::thread([this] {
      service_.Shutdown();  // its calls are answered on the loop, so the loop ends after it
      loop_.Stop();
    });
  }

  void TakeKubeletsWord(const std::optional<DevicesInUse>& in_use) {
    if (in_use) {
      node_.SetDevicesInUse(*in_use);
      node_.Settle();
    } else if (kubelet_error_ != kubelet_said_) {
      Say(config_, spdlog::level::warn, kubelet_error_);
    }
    kubelet_said_ = in_use ? "" : kubelet_error_;
  }

  // On a thread of its own: kubelet may take its time.
  void WatchKubelet() {
    if (config_.pod_resources.empty() || asking_) return;
    asking_ = true;
    if (asker_.joinable()) asker_.join();
    asker_ = std::thread([this, socket = config_.pod_resources] {
      std::string error;
      auto in_use = AskKubelet(socket, 5000, &error);
      loop_.Post([this, error, in_use = std::move(in_use)] {
        asking_ = false;
        kubelet_error_ = error;
        TakeKubeletsWord(in_use);
      });
    });
  }

  // `sluice run` may be killed in any way; its agent and its folder must not outlive it.
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

  // Every GPU process is attached, or in somebody's container without a hook, or none of ours.
  void Attest() {
    loop_.After(static_cast<int>(std::max(config_.attest_interval_s, 1u)) * 1000, [this] { Attest(); });
    if (!nvml_ || config_.attest_interval_s == 0) return;
    std::map<std::string, std::vector<int64_t>> unhooked;
    std::set<int64_t> hooked, seen;
    for (const auto& [id, pids] : node_.AttachedPids()) {
      unhooked[id];
      hooked.insert(pids.begin(), pids.end());
    }
    const std::string alloc_dir = options_.alloc_dir.empty() ? config_.alloc_dir : options_.alloc_dir;
    for (const CardStatus& card : node_.Status().cards) {
      const std::vector<GpuProcess> processes = nvml_->Processes(card.uuid);
      std::map<int64_t, Bytes> used;
      for (const GpuProcess& p : processes) used[p.pid] += p.bytes;
      node_.SetProcesses(card.uuid, used);
      for (const GpuProcess& p : processes) {
        if (hooked.contains(p.pid) || !seen.insert(p.pid).second) continue;
        const std::string id = AllocationOfProcess("/proc", p.pid, alloc_dir);
        const auto it = unhooked.find(id);
        if (it != unhooked.end()) {
          it->second.push_back(p.pid);
        } else if (foreign_.contains(p.pid) && told_.insert(p.pid).second) {
          // At the second look: who is just ending is still listed, and no longer to be told by its folder.
          node_.AddEvent(
              "", "foreign process",
              "pid " + std::to_string(p.pid) + " uses GPU " + card.uuid + " and is in no container of sluice");
        }
      }
    }
    for (const auto& [id, pids] : unhooked) {
      node_.SetUnhooked(id, pids);
      for (const int64_t pid : pids) seen.erase(pid);
    }
    foreign_ = std::move(seen);
    std::erase_if(told_, [this](int64_t pid) { return !foreign_.contains(pid); });
    node_.Settle();
  }

  void ServeMetrics() {
    if (config_.metrics_listen == metrics_listen_) return;
    metrics_.reset();
    metrics_listen_ = config_.metrics_listen;
    if (metrics_listen_.empty()) return;
    metrics_ = std::make_unique<MetricsServer>(metrics_listen_, NodeName(config_), [this] {
      auto answer = std::make_shared<std::promise<NodeStatus>>();
      std::future<NodeStatus> status = answer->get_future();
      loop_.Post([this, answer] {
        NodeStatus now = node_.Status();
        now.attach = server_.attach_times();
        answer->set_value(std::move(now));
      });
      // A loop that has ended answers nobody.
      return status.wait_for(std::chrono::seconds(2)) == std::future_status::ready ? status.get() : NodeStatus{};
    });
    std::string error;
    if (metrics_->Start(&error)) {
      Say(config_, spdlog::level::info, "metrics at port " + std::to_string(metrics_->port()));
    } else {
      metrics_.reset();
      node_.AddEvent("", "metrics", error);
    }
  }

  void Periodically(int ms, const std::function<void()>& work) {
    loop_.After(ms, [this, ms, work] {
      work();
      Periodically(ms, work);
    });
  }

  bool StartKubernetes(std::string* error) {
#ifdef SLUICE_HAVE_KUBERNETES
    kubernetes_ = std::make_unique<Kubernetes>(&loop_, &node_, NodeName(config_), options_.run_dir, &config_);
    return kubernetes_->Start(error);
#else
    *error = "kubernetes.enabled: this agent was built without it";
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
      // An agent for one program answers that program's only question with it.
      if (error != card_error_ && options_.end_with == 0) Say(config_, spdlog::level::warn, error);
    } else {
      const std::vector<Card> cards = nvml_->Cards();
      if (cards.empty()) error = "NVML lists no GPU";
      node_.SetCards(cards);
      for (const Card& c : cards) node_.SetUsed(c.uuid, nvml_->UsedBytes(c.uuid));
      node_.Settle();
    }
    card_error_ = error;
    service_.SetCardError(error);
  }

  // The folder is watched, not the file: editors and Kubernetes replace files by rename.
  void WatchConfig() {
    if (options_.config_path.empty()) return;
    config_watch_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    const std::string folder = std::filesystem::absolute(options_.config_path).parent_path();
    if (config_watch_ < 0 ||
        inotify_add_watch(config_watch_, folder.c_str(), IN_CLOSE_WRITE | IN_MOVED_TO | IN_CREATE | IN_DELETE) < 0) {
      Say(config_, spdlog::level::warn, folder + ": cannot be watched; changes of the configuration need a restart");
      return;
    }
    loop_.Add(config_watch_, EPOLLIN, [this](uint32_t) {
      char buffer[8192];
      while (read(config_watch_, buffer, sizeof(buffer)) > 0) {
      }
      if (reload_pending_) return;
      reload_pending_ = true;
      loop_.After(100, [this] { Reload(); });  // a file that is still being written is read once
    });
  }

  void Reload() {
    reload_pending_ = false;
    Config fresh;
    std::string error;
    if (!LoadConfig(options_.config_path, &fresh, &error)) {
      if (error != config_error_) node_.AddEvent("", "configuration refused", error + "; the old one stays");
      config_error_ = error;
      node_.SetConfigError(error);
      return;
    }
    const bool was_bad = !config_error_.empty();
    config_error_.clear();
    config_ = std::move(fresh);
    if (options_.quiet) config_.log_level = "warn";
    SetUpLog(config_);
    node_.SetConfig(config_);
    ApplyHostLimit();
    node_.Settle();
    ServeMetrics();
    node_.AddEvent("", "configuration", was_bad ? "accepted again" : "read");
  }

  const DaemonOptions options_;
  Config config_;
  int lock_ = -1, config_watch_ = -1;
  bool reload_pending_ = false;
  std::string card_error_, config_error_;
  EventLoop loop_;
  Server server_;
  Node node_;
  Service service_;
  std::unique_ptr<Nvml> nvml_;
  std::set<int64_t> foreign_, told_;  // at the last look; those of them that were told
  std::string metrics_listen_;
  std::unique_ptr<MetricsServer> metrics_;
  std::thread stopper_, asker_, mender_;
  bool mending_service_ = false;
  bool asking_ = false;
  std::string kubelet_error_, kubelet_said_;
#ifdef SLUICE_HAVE_KUBERNETES
  std::unique_ptr<Kubernetes> kubernetes_;  // after all that it uses
#endif
};

}  // namespace

int RunDaemon(const DaemonOptions& options, Config config) {
  if (options.quiet) config.log_level = "warn";
  SetUpLog(config);
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {  // two descriptors a process
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
  }
  Daemon daemon(options, config);
  std::string error;
  if (!daemon.Start(&error)) {
    Say(config, spdlog::level::err, error);
    return 1;
  }
  daemon.Run();
  return 0;
}

}  // namespace sluice::agent
