// sluice-extender: the scheduler extender. A container beside kube-scheduler in one pod.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <string>

#include "common/command_line.h"
#include "common/http/listen_address.h"
#include "common/log/log.h"
#include "kube/config.h"
#include "scheduler/extender/extender.h"
#include "scheduler/extender/extender_config.h"
#include "scheduler/extender/extender_server.h"
#include "scheduler/extender/kube_link.h"
#include "sluice/version.h"

namespace {

using sluice::scheduler::ExtenderConfig;

using sluice::Log;
using sluice::LogLevel;

int Fail(const absl::Status& status, int exit_status = 1) {
  sluice::LogAnswer(LogLevel::kError, std::string(status.message()));
  return exit_status;
}

void SetUpLog(const ExtenderConfig& config) {
  sluice::SetUpLog("sluice-extender", config.log_format, config.log_level);
}

int Run(const ExtenderConfig& config, const std::string& config_file) {
  // Blocked before any thread starts, so that only sigtimedwait below receives them.
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  signal(SIGPIPE, SIG_IGN);

  const auto link =
      config.kubeconfig.empty() ? sluice::kube::InCluster() : sluice::kube::FromKubeconfig(config.kubeconfig);
  if (!link.ok()) return Fail(link.status());
  auto policies = sluice::scheduler::PolicyRefresher::Make(config.policy);
  if (!policies.ok()) return Fail(policies.status());
  sluice::scheduler::ClusterState cluster(**policies);
  sluice::scheduler::KubeBinder binder(*link);
  sluice::scheduler::ClaimState claims(**policies, cluster);
  sluice::scheduler::ClaimState* const used_claims = config.claims ? &claims : nullptr;
  sluice::scheduler::Extender extender(cluster, binder, used_claims, config.other_pods);
  const auto calls = sluice::ParseListenAddress(config.listen);
  if (!calls) return Fail(absl::InvalidArgumentError("listen: '" + config.listen + "'"));  // checked by main
  const auto server =
      sluice::scheduler::ExtenderServer::Start(*calls, sluice::ParseListenAddress(config.metrics_listen), extender,
                                               cluster, sluice::ParseListenAddress(config.volcano_listen));
  if (!server.ok()) return Fail(server.status());
  sluice::scheduler::KubeFeed feed(*link, cluster, used_claims);
  Log(LogLevel::kInfo, "listening",
      {{"version", SLUICE_VERSION},
       {"address", config.listen},
       {"port", std::to_string((*server)->port())},
       {"policy", config.policy}});

  // The configuration is read again every few seconds (a ConfigMap's file changes without a signal) and on SIGHUP.
  std::string policy = config.policy;
  while (true) {
    const timespec timeout{.tv_sec = 5, .tv_nsec = 0};
    const int signal = sigtimedwait(&signals, nullptr, &timeout);
    if (signal == SIGINT || signal == SIGTERM) return 0;
    if (config_file.empty()) continue;
    const auto again = sluice::scheduler::ReadExtenderConfig(config_file);
    if (!again.ok()) {
      if (signal == SIGHUP) Log(LogLevel::kError, std::string(again.status().message()));
      continue;
    }
    SetUpLog(*again);
    if (again->policy != policy && (*policies)->SetName(again->policy).ok()) {
      policy = again->policy;
      Log(LogLevel::kInfo, "policy", {{"policy", policy}});
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("sluice-extender: places pods with fractions of GPUs where a card can hold them");
  app.set_version_flag("--version", std::string("sluice-extender " SLUICE_VERSION));
  std::string config_file, listen, kubeconfig;
  bool check = false;
  app.add_option("--config", config_file,
                 "YAML: listen, metricsListen, volcanoListen, policy, claims, otherPods, kubeconfig, log");
  app.add_option("--listen", listen, "ADDRESS:PORT, [IPV6]:PORT or :PORT, instead of the file's");
  app.add_option("--kubeconfig", kubeconfig, "instead of the file's; without one, the pod's service account");
  app.add_flag("--check-config", check, "check the configuration and exit");
  if (const auto ended = sluice::ReadCommandLine(app, "sluice-extender", argc, argv)) return *ended;
  ExtenderConfig config;
  SetUpLog(config);
  if (!config_file.empty()) {
    auto read = sluice::scheduler::ReadExtenderConfig(config_file);
    if (!read.ok()) return Fail(read.status(), 2);
    config = *read;
  }
  if (!listen.empty()) config.listen = listen;
  if (!kubeconfig.empty()) config.kubeconfig = kubeconfig;
  if (!sluice::ParseListenAddress(config.listen)) {
    return Fail(absl::InvalidArgumentError("--listen: '" + config.listen +
                                           "' is not accepted; accepted: " + sluice::kListenAddressForms),
                2);
  }
  if (check) {
    sluice::LogAnswer(LogLevel::kInfo, "the configuration is valid");
    return 0;
  }
  SetUpLog(config);
  return Run(config, config_file);
}
