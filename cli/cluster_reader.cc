#include "cli/cluster_reader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "kube/client.h"

namespace sluice::cli {
namespace {

using Json = nlohmann::json;

// The API server's proxy waits for each pod, so that many requests at once cost it little.
constexpr size_t kRequestsAtOnce = 64;
// kubectl uses 50 ms of CPU a call.
constexpr size_t kProcessesAtOnce = 16;
constexpr std::chrono::seconds kAnswerLimit{5};
constexpr std::chrono::seconds kListLimit{60};  // for the next bytes of a list

kube::ClientConfig ConfigOf(const KubectlProxy& proxy) {
  kube::ClientConfig config;
  config.server = proxy.server();
  return config;
}

kube::ClientOptions Options(std::chrono::milliseconds timeout) {
  kube::ClientOptions options;
  options.user_agent = "kubectl-sluice";
  options.timeout = timeout;
  options.retries_unavailable = false;  // a node that is down stays down
  return options;
}

// Runs work(0) to work(count - 1) on up to `threads` threads. `make` gives each thread its work.
void RunAll(size_t count, size_t threads, const std::function<std::function<void(size_t)>()>& make) {
  std::atomic<size_t> next = 0;
  std::vector<std::thread> pool;
  pool.reserve(std::min(count, threads));
  for (size_t i = 0; i < std::min(count, threads); ++i) {
    pool.emplace_back([&] {
      const std::function<void(size_t)> work = make();
      for (size_t at; (at = next++) < count;) work(at);
    });
  }
  for (std::thread& thread : pool) thread.join();
}

}  // namespace

ClusterList PodList(std::string selector) {
  return {"/api/v1/pods", {"pods", "--all-namespaces"}, std::move(selector)};
}
ClusterList NodeList() { return {"/api/v1/nodes", {"nodes"}}; }
ClusterList WebhookList() {
  return {"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", {"mutatingwebhookconfigurations"}};
}

ClusterList SliceList() { return {"/apis/resource.k8s.io/v1/resourceslices", {"resourceslices"}}; }
ClusterList ClaimList() { return {"/apis/resource.k8s.io/v1/resourceclaims", {"resourceclaims", "--all-namespaces"}}; }

void ClusterReader::Open() {
  if (!is_open_) proxy_ = KubectlProxy::Start(kubectl_);
  is_open_ = true;
}

absl::Status ClusterReader::Read(const ClusterList& list, const kube::ListSink& sink) const {
  if (proxy_ != nullptr) {
    kube::Client client(ConfigOf(*proxy_), Options(kListLimit));
    kube::ListOptions options;
    options.label_selector = list.selector;
    if (client.ReadList(list.path, options, sink).ok()) return absl::OkStatus();
  }
  // Also after an error of the proxy: kubectl names the fault of a kubeconfig, a login or a right best.
  std::vector<std::string> arguments = {"get"};
  arguments.insert(arguments.end(), list.kubectl.begin(), list.kubectl.end());
  if (!list.selector.empty()) arguments.insert(arguments.end(), {"-l", list.selector});
  arguments.insert(arguments.end(), {"-o", "json"});
  const Kubectl::Answer answer = kubectl_.Run(std::move(arguments));
  if (!answer.ok()) return absl::UnavailableError(answer.Reason());
  const Json json = Json::parse(answer.out, nullptr, /*allow_exceptions=*/false);
  const auto items = json.is_object() ? json.find("items") : json.end();
  if (!json.is_object() || items == json.end()) return absl::UnavailableError("kubectl: its answer is no list in JSON");
  sink.begin();
  for (const Json& item : *items) {
    if (item.is_object()) sink.item(item);
  }
  return absl::OkStatus();
}

std::vector<absl::StatusOr<std::string>> ClusterReader::ReadTexts(const std::vector<std::string>& paths) const {
  std::vector<absl::StatusOr<std::string>> texts(paths.size(), absl::UnknownError("not read"));
  if (proxy_ != nullptr) {
    RunAll(paths.size(), kRequestsAtOnce, [&]() -> std::function<void(size_t)> {
      auto client = std::make_shared<kube::Client>(ConfigOf(*proxy_), Options(kAnswerLimit));
      return [&, client](size_t at) {
        const auto start = std::chrono::steady_clock::now();
        texts[at] = client->GetText(paths[at]);
        if (!texts[at].ok() && std::chrono::steady_clock::now() - start >= kAnswerLimit)
          texts[at] = absl::DeadlineExceededError("no answer within 5 s");
      };
    });
    return texts;
  }
  RunAll(paths.size(), kProcessesAtOnce, [&]() -> std::function<void(size_t)> {
    return [&](size_t at) {
      const Kubectl::Answer answer = kubectl_.Run({"get", "--raw", paths[at]});
      if (answer.ok()) {
        texts[at] = answer.out;
      } else {
        texts[at] = absl::UnavailableError(answer.Reason());
      }
    };
  });
  return texts;
}

}  // namespace sluice::cli
