#include "webhook/process.h"

#include <unistd.h>

#include <cstdio>
#include <random>

#include "common/log/log.h"
#include "common/read_file.h"

namespace sluice::webhook {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::chrono::seconds kReconcileInterval{30};
constexpr milliseconds kConflictRetryDelay{200};
constexpr milliseconds kRequestTimeout{5000};

bool IsByClaims(const File& file) { return file.decision.share_by == ShareBy::kClaims; }

// This replica's name in the Lease. The host name alone is not unique: replicas with hostNetwork can share it.
std::string Identity() {
  char host[256] = "webhook";
  gethostname(host, sizeof(host) - 1);
  std::random_device random;
  char unique[32];
  std::snprintf(unique, sizeof(unique), "_%08x%08x", random(), random());
  return std::string(host) + unique;
}

}  // namespace

Process::Process(ProcessOptions options, const File& file, Service& service)
    : options_(std::move(options)), file_(file), service_(service) {}

bool Process::Start() {
  if (file_.self_signed || file_.watch_nodes || file_.remove_refused || IsByClaims(file_)) Connect();
  if (!file_.self_signed) {
    reloader_ = std::make_unique<FileReloader>(options_.certificate_path, options_.key_path, service_.certificates());
    ReloadCertificate();
  } else if (client_ == nullptr) {
    LogAnswer(LogLevel::kError, "selfSigned needs the API server; accepted: a start in a pod, or with --kubeconfig");
    return false;
  } else {
    reconciler_ = std::make_unique<CertificateReconciler>(*client_, *file_.self_signed, service_.certificates());
  }
  std::string ignored;
  if (!options_.config_path.empty()) config_text_ = ReadWholeFile(options_.config_path, ignored).value_or("");
  return true;
}

void Process::Tick() {
  ReloadConfig();
  if (reloader_ != nullptr) ReloadCertificate();
  const auto now = steady_clock::now();
  if (reconciler_ != nullptr && now >= next_reconcile_) ReconcileCertificate();
  if (remover_ != nullptr && now >= next_remover_poll_) PollRefusedPods();
}

void Process::Connect() {
  auto config = options_.kubeconfig_path.empty() ? kube::InCluster() : kube::FromKubeconfig(options_.kubeconfig_path);
  if (!config.ok()) {
    Log(LogLevel::kWarn, std::string(config.status().message()) + "; gpu-memory uses assumedGpuMemory alone" +
                             (file_.remove_refused ? ", and refused pods are not removed" : "") +
                             (IsByClaims(file_) ? ", and pods with a share are denied" : ""));
    return;
  }
  // This thread also takes signals, so it must not wait for an unreachable API server. Tick repeats by its own clock.
  kube::ClientOptions options;
  options.user_agent = "sluice-webhook";
  options.attempts = 1;
  options.timeout = kRequestTimeout;
  client_ = std::make_unique<kube::Client>(*config, options);
  if (file_.watch_nodes) nodes_ = std::make_unique<NodeWatch>(*config, service_);
  if (nodes_ != nullptr && IsByClaims(file_)) nodes_->FollowSlices();
  // Made at first use: few clusters have claims, and a changed configuration may begin with them.
  service_.SetClaimMaker(
      [this, api = *config](std::string_view name_space, const std::vector<ClaimTemplate>& templates) {
        std::call_once(claims_once_, [&] { claims_ = std::make_unique<ClaimTemplates>(api); });
        return claims_->Ensure(name_space, templates);
      });
  if (file_.remove_refused) {
    const auto on_removed = [this](const std::string& pod) {
      Log(LogLevel::kInfo, "removed " + pod);
      service_.metrics().CountRemovedPod();
    };
    remover_ = std::make_unique<RefusedPodRemover>(*config, *client_, *file_.remove_refused, Identity(), on_removed);
  }
}

void Process::PollRefusedPods() {
  const absl::Status status = remover_->Poll(steady_clock::now());
  service_.metrics().SetLeader(remover_->is_leader());
  next_remover_poll_ = {};
  if (status.ok()) return remover_backoff_.Reset();
  Log(LogLevel::kWarn, "refused pods: " + std::string(status.message()));
  next_remover_poll_ = steady_clock::now() + remover_backoff_.Next();
}

void Process::ReconcileCertificate() {
  std::string actions;
  const absl::Status status = reconciler_->Reconcile(std::chrono::system_clock::now(), steady_clock::now(), actions);
  if (!actions.empty()) Log(LogLevel::kInfo, "certificate: " + actions);
  if (status.ok()) {
    reconcile_backoff_.Reset();
    next_reconcile_ = steady_clock::now() + kReconcileInterval;
    if (const auto pair = service_.certificates().Current()) {
      service_.metrics().CountCertificateReload(true, pair->not_after());
    }
    return;
  }
  Log(LogLevel::kWarn, "certificate: " + std::string(status.message()));
  next_reconcile_ = steady_clock::now() + (absl::IsAborted(status) ? kConflictRetryDelay : reconcile_backoff_.Next());
}

void Process::ReloadCertificate() {
  std::string message;
  const auto result = reloader_->Poll(std::chrono::system_clock::now(), message);
  if (!message.empty()) Log(LogLevel::kInfo, "certificate: " + message);
  if (result == FileReloader::Result::kLoaded) {
    service_.metrics().CountCertificateReload(true, service_.certificates().Current()->not_after());
  } else if (!message.empty()) {
    service_.metrics().CountCertificateReload(false, {});
  }
}

void Process::ReloadConfig() {
  if (options_.config_path.empty()) return;
  std::string error;
  // An unreadable or empty file is being replaced.
  std::string text = ReadReloadedFile(options_.config_path, error).value_or("");
  if (text == config_text_ || text.empty()) return;
  config_text_ = std::move(text);
  auto file = ParseConfig(config_text_, options_.config_path, error);
  service_.metrics().CountConfigReload(file.has_value());
  if (!file) {
    Log(LogLevel::kWarn, error + "; the previous configuration stays in use");
    return;
  }
  SetUpLog("sluice-webhook", file->log_format, file->log_level);
  if (nodes_ != nullptr && IsByClaims(*file)) nodes_->FollowSlices();
  service_.SetConfig(std::move(file->decision));
  Log(LogLevel::kInfo,
      options_.config_path + ": loaded (a change of watchNodes, selfSigned or removeRefused needs a restart)");
}

}  // namespace sluice::webhook
