// sluice-webhook: the program. Flags, signals, and the process around Service.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "common/command_line.h"
#include "common/http/listen_address.h"
#include "common/log/log.h"
#include "common/read_file.h"
#include "sluice/version.h"
#include "webhook/decision/base64.h"
#include "webhook/decision/manifest.h"
#include "webhook/decision/policy.h"
#include "webhook/process.h"
#include "webhook/server/service.h"

namespace {

using namespace sluice;           // NOLINT(google-build-using-namespace): the program itself
using namespace sluice::webhook;  // NOLINT(google-build-using-namespace)
using std::chrono::milliseconds;

constexpr rlim_t kWantedDescriptors = 8192;
constexpr milliseconds kDrainGrace{8000};

struct Flags {
  ProcessOptions process;
  std::string listen = ":8443";
  std::string metrics_listen = ":9443";
  std::string port_file;
  std::string print_policy;
  std::string service = "sluice-system/sluice-webhook";
  std::string url, ca_file;
  unsigned drain_seconds = 3;
  int workers = 2;
  bool check_config = false, version = false, print_annotations = false, without_policy = false;
};

// nullopt: the log says why.
std::optional<File> LoadConfig(const std::string& path) {
  if (path.empty()) return File{};
  std::string error;
  const auto yaml = ReadWholeFile(path, error);
  auto file = yaml ? ParseConfig(*yaml, path, error) : std::nullopt;
  if (!file) LogAnswer(LogLevel::kError, error);
  return file;
}

bool ReadAddress(const std::string& flag, const std::string& text, HttpOptions& options) {
  const auto address = ParseListenAddress(text);
  if (!address) {
    LogAnswer(LogLevel::kError, flag + ": '" + text + "' is not accepted; accepted: " + kListenAddressForms);
    return false;
  }
  options.address = *address;
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
  options.workloads = file.decision.workloads;
  options.queued = file.decision.queued;
  options.by_claims = file.decision.share_by == ShareBy::kClaims;
  options.url = flags.url;
  options.without_policy = flags.without_policy;
  if (!flags.ca_file.empty()) {
    std::string error;
    const auto ca = ReadWholeFile(flags.ca_file, error);
    if (!ca) {
      LogAnswer(LogLevel::kError, "--ca: " + error);
      return 2;
    }
    options.ca_bundle = Base64(*ca);
  }
  const size_t slash = flags.service.find('/');
  options.service_namespace = flags.service.substr(0, slash);
  if (slash != std::string::npos) options.service_name = flags.service.substr(slash + 1);
  bool is_first = true;
  for (const auto& manifest : PolicyManifests(options)) {
    std::cout << (is_first ? "" : "---\n") << WriteManifest(manifest);
    is_first = false;
  }
  return 0;
}

int Serve(const Flags& flags, const File& file) {
  HttpOptions https, metrics = HttpOptions::ForMetrics();
  if (!ReadAddress("--listen", flags.listen, https) ||
      !ReadAddress("--metrics-listen", flags.metrics_listen, metrics)) {
    return 2;
  }
  if (!file.self_signed && (flags.process.certificate_path.empty() || flags.process.key_path.empty())) {
    LogAnswer(LogLevel::kError,
              "the webhook has no certificate; accepted: --cert and --key, or selfSigned in the configuration");
    return 2;
  }
  https.workers = flags.workers;

  // Only this thread takes signals, so that the shutdown is ordinary code.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  // Each connection needs a descriptor, and some container runtimes allow only 1024.
  if (rlimit files{}; getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < kWantedDescriptors) {
    files.rlim_cur = std::min(files.rlim_max, kWantedDescriptors);
    setrlimit(RLIMIT_NOFILE, &files);
  }

  Service service(file.decision, https, metrics, [](const std::string& line) { Log(LogLevel::kInfo, line); });
  Process process(flags.process, file, service);
  if (!process.Start()) return 2;
  if (const std::string error = service.Start(); !error.empty()) {
    LogAnswer(LogLevel::kError, error);
    return 2;
  }
  if (!flags.port_file.empty()) {
    const std::string temporary = flags.port_file + ".new";
    std::ofstream(temporary) << service.port() << " " << service.metrics_port() << "\n";
    std::rename(temporary.c_str(), flags.port_file.c_str());
  }
  Log(LogLevel::kInfo, "version " SLUICE_VERSION ", HTTPS on " + flags.listen + ", metrics on " + flags.metrics_listen);
  const timespec second{1, 0};
  for (process.Tick(); sigtimedwait(&signals, nullptr, &second) < 0;) process.Tick();

  // Readiness fails first. Requests still arrive for a while, because kube-proxy notices it later.
  Log(LogLevel::kInfo, "shutting down: /readyz fails from now on");
  service.FailReadiness();
  const timespec delay{static_cast<time_t>(flags.drain_seconds), 0};
  sigtimedwait(&signals, nullptr, &delay);  // a second signal ends the wait
  service.Drain(kDrainGrace);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("sluice-webhook: gives annotated pods their share of a GPU, and denies invalid requests");
  app.add_option("--config", flags.process.config_path, "Configuration (YAML); the webhook reloads a changed file");
  app.add_option("--listen", flags.listen, "HTTPS: ADDRESS:PORT, [IPV6]:PORT, or :PORT for every address")
      ->capture_default_str();
  app.add_option("--metrics-listen", flags.metrics_listen, "/metrics, plain HTTP: as --listen")->capture_default_str();
  app.add_option("--cert", flags.process.certificate_path,
                 "Certificate chain (PEM); the webhook reloads a changed file");
  app.add_option("--key", flags.process.key_path, "Private key (PEM)");
  app.add_option("--kubeconfig", flags.process.kubeconfig_path, "Access to the API server from outside a pod");
  app.add_option("--workers", flags.workers, "Threads that decide")->check(CLI::Range(1, 64))->capture_default_str();
  app.add_option("--drain", flags.drain_seconds, "Seconds between the failure of /readyz and the last request")
      ->check(CLI::Range(0, 3600))
      ->capture_default_str();
  app.add_option("--port-file", flags.port_file, "Write the ports in use to this file once listening (for port 0)");
  app.add_option("--print-policy", flags.print_policy, "Print the objects for the API server, and exit")
      ->check(CLI::IsMember({"manifests", "conditions"}));
  app.add_option("--service", flags.service, "--print-policy: NAMESPACE/NAME of the Service")->capture_default_str();
  app.add_option("--url", flags.url, "--print-policy: the webhook's URL instead of a Service");
  app.add_option("--ca", flags.ca_file, "--print-policy: file of the caBundle");
  app.add_flag("--without-policy", flags.without_policy,
               "--print-policy: for API servers before 1.30, a webhook instead of the ValidatingAdmissionPolicy");
  app.add_flag("--print-annotations", flags.print_annotations, "Print the reference of the annotations, and exit");
  app.add_flag("--check-config", flags.check_config, "Check the configuration, and exit");
  app.add_flag("--version", flags.version, "Print the version, and exit");
  if (const auto status = sluice::ReadCommandLine(app, "sluice-webhook", argc, argv)) return *status;
  if (flags.version) {
    std::cout << "sluice-webhook " SLUICE_VERSION "\n";
    return 0;
  }
  if (flags.print_annotations) {
    std::cout << AnnotationsPage();
    return 0;
  }
  SetUpLog("sluice-webhook", LogFormat::kText, LogLevel::kInfo);
  const auto file = LoadConfig(flags.process.config_path);
  if (!file) return 2;
  if (flags.check_config) {
    LogAnswer(LogLevel::kInfo, "the configuration is valid");
    return 0;
  }
  if (!flags.print_policy.empty()) return PrintPolicy(flags, *file);
  SetUpLog("sluice-webhook", file->log_format, file->log_level);
  return Serve(flags, *file);
}
