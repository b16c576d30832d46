// sluice-webhook: the process around Service.
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "common/command_line.h"
#include "common/read_file.h"
#include "kube/watcher.h"
#include "sluice/names.h"
#include "sluice/version.h"
#include "webhook/certificates/reconciler.h"
#include "webhook/decision/manifest.h"
#include "webhook/decision/policy.h"
#include "webhook/refused_pods.h"
#include "webhook/server/service.h"

namespace {

using namespace sluice;           // NOLINT(google-build-using-namespace): the program itself
using namespace sluice::webhook;  // NOLINT(google-build-using-namespace)
using std::chrono::milliseconds;

constexpr rlim_t kDescriptors = 8192;

struct Flags {
  std::string config, certificate, key, kubeconfig, print_policy;
  std::string listen = "0.0.0.0:8443";
  std::string metrics_listen = "0.0.0.0:9443";
  std::string port_file;
  std::string service = "sluice-system/sluice-webhook";
  std::string url, ca_file;
  unsigned drain_seconds = 3;
  int workers = 2;
  bool check = false, version = false, print_annotations = false, without_policy = false;
};

// One line, whatever users wrote into names and values: a log must not hold lines that we did not write.
void Say(std::string line) {
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < ' ' || c == 127) c = '?';
  }
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  std::fprintf(stderr, "sluice-webhook: %s\n", line.c_str());
}

// nullopt: said why.
std::optional<File> LoadConfig(const std::string& path, std::string* text = nullptr) {
  if (path.empty()) return File{};
  std::string error;
  const auto yaml = ReadWholeFile(path, error);
  if (!yaml) {
    Say(error);
    return std::nullopt;
  }
  if (text != nullptr) *text = *yaml;
  auto file = ParseConfig(*yaml, error);
  if (!file) Say(path + ": " + error);
  return file;
}

bool SplitAddress(const std::string& text, HttpOptions& options) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return false;
  options.address = text.substr(0, colon);
  if (options.address.starts_with('[') && options.address.ends_with(']')) {
    options.address = options.address.substr(1, options.address.size() - 2);
  }
  char* end = nullptr;
  const unsigned long port = std::strtoul(text.c_str() + colon + 1, &end, 10);
  if (*end != '\0' || end == text.c_str() + colon + 1 || port > 65535 || options.address.empty()) return false;
  options.port = static_cast<uint16_t>(port);
  return true;
}

int PrintPolicy(const Flags& flags, const File& file) {
  if (flags.print_policy == "conditions") {
    std::cout << WriteManifest(PolicyConditions());
    return 0;
  }
  PolicyOptions options;
  options.aliases = file.decision.aliases;
  options.excluded_namespaces = file.decision.excluded_namespaces;
  options.url = flags.url;
  options.without_policy = flags.without_policy;
  if (!flags.ca_file.empty()) {
    std::string error;
    const auto ca = ReadWholeFile(flags.ca_file, error);
    if (!ca) {
      Say("--ca: " + error);
      return 2;
    }
    options.ca_bundle = Base64(*ca);
  }
  const size_t slash = flags.service.find('/');
  options.service_namespace = flags.service.substr(0, slash);
  if (slash != std::string::npos) options.service_name = flags.service.substr(slash + 1);
  bool first = true;
  for (const auto& manifest : PolicyManifests(options)) {
    std::cout << (first ? "" : "---\n") << WriteManifest(manifest);
    first = false;
  }
  return 0;
}

// The nodes' GPUs, from a watch of their metadata alone.
class NodeCache {
 public:
  NodeCache(const kube::ClientConfig& config, Service& service) : service_(service) {
    kube::ListOptions options;
    options.metadata_only = true;
    kube::WatchHandler handler;
    handler.replaced = [this](const std::vector<kube::Json>& items) {
      nodes_.clear();
      for (const auto& item : items) Put(item);
      Publish();
    };
    handler.changed = [this](kube::Change change, const kube::Json& object) {
      if (change == kube::Change::kDeleted) {
        std::string ignored;
        nodes_.erase(ReadNode(object, ignored).name);
        Publish();
      } else if (Put(object)) {
        Publish();
      }
    };
    handler.state = [this](bool up, const std::string& why) {
      up_ = up;
      service_.metrics().Nodes(nodes_.size(), up_);
      if (!why.empty()) Say("nodes: " + why);
    };
    watcher_ = std::make_unique<kube::Watcher>(config, "/api/v1/nodes", options, std::move(handler), "sluice-webhook");
  }

 private:
  // True where something changed that decisions see. A node's heartbeat changes nothing of its metadata.
  bool Put(const kube::Json& object) {
    std::string error;
    Node node = ReadNode(object, error);
    if (!error.empty()) Say(error);
    if (node.gpus.empty()) return nodes_.erase(node.name) > 0;
    const auto it = nodes_.find(node.name);
    if (it != nodes_.end() && it->second.labels == node.labels && it->second.gpus == node.gpus) return false;
    nodes_[node.name] = std::move(node);
    return true;
  }

  void Publish() {
    service_.SetNodes(nodes_);
    service_.metrics().Nodes(nodes_.size(), up_);
  }

  Service& service_;
  Nodes nodes_;
  bool up_ = false;
  std::unique_ptr<kube::Watcher> watcher_;  // last: its functions use the others
};

// This replica's name among the others. Not the host's alone: replicas with hostNetwork may share that.
std::string Identity() {
  char host[256] = "webhook";
  gethostname(host, sizeof(host) - 1);
  std::random_device random;
  char unique[32];
  std::snprintf(unique, sizeof(unique), "_%08x%08x", random(), random());
  return std::string(host) + unique;
}

class Process {
 public:
  Process(const Flags& flags, const File& file, Service& service) : flags_(flags), file_(file), service_(service) {}

  // False: cannot start, said why.
  bool Begin() {
    if (file_.self_signed || file_.watch_nodes || file_.remove_refused) Connect();
    if (!file_.self_signed) {
      reloader_ = std::make_unique<FileReloader>(flags_.certificate, flags_.key, service_.certificates());
      ReloadCertificate();
    } else if (client_ == nullptr) {
      Say("selfSigned needs the API server; accepted: in a pod, or with --kubeconfig");
      return false;
    } else {
      keeper_ = std::make_unique<CertificateKeeper>(*client_, *file_.self_signed, service_.certificates());
    }
    LoadText();
    return true;
  }

  // About once a second: what may have changed.
  void Tick() {
    ReloadConfig();
    if (reloader_ != nullptr) ReloadCertificate();
    const auto now = std::chrono::steady_clock::now();
    if (keeper_ != nullptr && now >= next_keep_) Keep();
    if (refused_ != nullptr && now >= next_refused_) Refused();
  }

 private:
  void Connect() {
    auto config = flags_.kubeconfig.empty() ? kube::InCluster() : kube::FromKubeconfig(flags_.kubeconfig);
    if (!config.ok()) {
      Say(std::string(config.status().message()) + "; gpu-memory goes by assumedGpuMemory alone" +
          (file_.remove_refused ? ", and refused pods stay" : ""));
      return;
    }
    // This thread also takes signals: it waits for no API server that is away, and comes again by its own clock.
    kube::ClientOptions options;
    options.user_agent = "sluice-webhook";
    options.attempts = 1;
    options.timeout = milliseconds(5000);
    client_ = std::make_unique<kube::Client>(*config, options);
    if (file_.watch_nodes) nodes_ = std::make_unique<NodeCache>(*config, service_);
    if (file_.remove_refused) {
      refused_ = std::make_unique<RefusedPods>(*config, *client_, *file_.remove_refused, Identity(),
                                               [this](const std::string& pod) {
                                                 Say("removed " + pod);
                                                 service_.metrics().RefusedPodRemoved();
                                               });
    }
  }

  void Refused() {
    const absl::Status status = refused_->Tick(std::chrono::steady_clock::now());
    service_.metrics().Leads(refused_->leads());
    next_refused_ = {};
    if (status.ok()) return refused_backoff_.Reset();
    Say("refused pods: " + std::string(status.message()));
    next_refused_ = std::chrono::steady_clock::now() + refused_backoff_.Next();
  }

  void Keep() {
    std::string said;
    const absl::Status status = keeper_->Tick(std::chrono::system_clock::now(), std::chrono::steady_clock::now(), said);
    if (!said.empty()) Say("certificate: " + said);
    if (status.ok()) {
      backoff_.Reset();
      next_keep_ = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      if (const auto pair = service_.certificates().Current())
        service_.metrics().CertificateLoaded(true, pair->not_after());
      return;
    }
    Say("certificate: " + std::string(status.message()));
    next_keep_ = std::chrono::steady_clock::now() + (absl::IsAborted(status) ? milliseconds(200) : backoff_.Next());
  }

  void ReloadCertificate() {
    std::string message;
    const auto result = reloader_->Poll(std::chrono::system_clock::now(), message);
    if (!message.empty()) Say("certificate: " + message);
    if (result == FileReloader::Result::kLoaded) {
      service_.metrics().CertificateLoaded(true, service_.certificates().Current()->not_after());
    } else if (!message.empty()) {
      service_.metrics().CertificateLoaded(false, {});
    }
  }

  void LoadText() {
    std::string unused;
    if (!flags_.config.empty()) text_ = ReadWholeFile(flags_.config, unused).value_or("");
  }

  void ReloadConfig() {
    if (flags_.config.empty()) return;
    std::string error;
    // One that cannot be read, or is empty, is being replaced.
    std::string text = ReadWholeFile(flags_.config, error).value_or("");
    if (text == text_ || text.empty()) return;
    text_ = std::move(text);
    auto file = ParseConfig(text_, error);
    service_.metrics().ConfigLoaded(file.has_value());
    if (!file) {
      Say(flags_.config + ": " + error + "; the configuration in use stays");
      return;
    }
    service_.SetConfig(std::move(file->decision));
    Say(flags_.config + ": loaded (watchNodes, selfSigned and removeRefused are taken at the next start)");
  }

  const Flags& flags_;
  const File& file_;
  Service& service_;
  std::string text_;
  std::unique_ptr<kube::Client> client_;
  std::unique_ptr<NodeCache> nodes_;
  std::unique_ptr<FileReloader> reloader_;
  std::unique_ptr<CertificateKeeper> keeper_;
  std::unique_ptr<RefusedPods> refused_;
  std::chrono::steady_clock::time_point next_keep_{};
  std::chrono::steady_clock::time_point next_refused_{};
  kube::Backoff backoff_{0x5eed}, refused_backoff_{0x5eee};
};

int Serve(const Flags& flags, const File& file) {
  HttpOptions https, metrics;
  if (!SplitAddress(flags.listen, https) || !SplitAddress(flags.metrics_listen, metrics)) {
    Say("--listen, --metrics-listen: '" + flags.listen + "', '" + flags.metrics_listen +
        "'; accepted: ADDRESS:PORT, as 0.0.0.0:8443");
    return 2;
  }
  if (!file.self_signed && (flags.certificate.empty() || flags.key.empty())) {
    Say("no certificate; accepted: --cert and --key, or selfSigned in the configuration");
    return 2;
  }
  https.workers = flags.workers;

  // Signals are taken by this thread alone, so that ending is ordinary code.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  // A connection is a descriptor, and some container runtimes give 1024 of them.
  if (rlimit files{}; getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < kDescriptors) {
    files.rlim_cur = std::min(files.rlim_max, kDescriptors);
    setrlimit(RLIMIT_NOFILE, &files);
  }

  Service service(file.decision, https, metrics, Say);
  Process process(flags, file, service);
  if (!process.Begin()) return 2;
  if (const std::string error = service.Start(); !error.empty()) {
    Say(error);
    return 2;
  }
  if (!flags.port_file.empty()) {
    const std::string temporary = flags.port_file + ".new";
    std::ofstream(temporary) << service.port() << " " << service.metrics_port() << "\n";
    std::rename(temporary.c_str(), flags.port_file.c_str());
  }
  Say("version " SLUICE_VERSION ", listening on " + flags.listen + ", metrics on " + flags.metrics_listen);
  const timespec second{1, 0};
  for (process.Tick(); sigtimedwait(&signals, nullptr, &second) < 0;) process.Tick();

  // Readiness falls first. Requests still come for a while: kube-proxy learns of it later than we do.
  Say("ending: not ready from now on");
  service.Retire();
  const timespec rest{static_cast<time_t>(flags.drain_seconds), 0};
  sigtimedwait(&signals, nullptr, &rest);  // a second signal ends the wait
  service.Drain(milliseconds(8000));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("sluice-webhook: gives annotated pods their share of a GPU, and denies what cannot be meant");
  app.add_option("--config", flags.config, "Configuration (YAML); changes are taken live");
  app.add_option("--listen", flags.listen, "Address and port of HTTPS")->capture_default_str();
  app.add_option("--metrics-listen", flags.metrics_listen, "Address and port of /metrics, plain HTTP")
      ->capture_default_str();
  app.add_option("--cert", flags.certificate, "Certificate chain (PEM); changes are taken live");
  app.add_option("--key", flags.key, "Private key (PEM)");
  app.add_option("--kubeconfig", flags.kubeconfig, "Outside a pod: how to reach the API server");
  app.add_option("--workers", flags.workers, "Threads that decide")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--drain", flags.drain_seconds, "Seconds between not being ready and taking no more requests")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str();
  app.add_option("--port-file", flags.port_file, "Write the ports in use here, once listening (for port 0)");
  app.add_option("--print-policy", flags.print_policy, "Print what the API server needs, and end")
      ->check(CLI::IsMember({"manifests", "conditions"}));
  app.add_option("--service", flags.service, "--print-policy: NAMESPACE/NAME of the Service")->capture_default_str();
  app.add_option("--url", flags.url, "--print-policy: the webhook's URL instead of a Service");
  app.add_option("--ca", flags.ca_file, "--print-policy: file of the caBundle");
  app.add_flag("--without-policy", flags.without_policy,
               "--print-policy: for servers before 1.30, a webhook instead of the ValidatingAdmissionPolicy");
  app.add_flag("--print-annotations", flags.print_annotations, "Print the reference of the annotations, and end");
  app.add_flag("--check-config", flags.check, "Say whether the configuration is good, and end");
  app.add_flag("--version", flags.version, "Print the version, and end");
  if (const auto ended = sluice::ReadCommandLine(app, "sluice-webhook", argc, argv)) return *ended;
  if (flags.version) {
    std::cout << "sluice-webhook " SLUICE_VERSION "\n";
    return 0;
  }
  if (flags.print_annotations) {
    std::cout << AnnotationsPage();
    return 0;
  }
  const auto file = LoadConfig(flags.config);
  if (!file) return 2;
  if (flags.check) {
    Say("the configuration is good");
    return 0;
  }
  if (!flags.print_policy.empty()) return PrintPolicy(flags, *file);
  return Serve(flags, *file);
}
