#include "agent/metrics_server.h"

#include <chrono>
#include <utility>

#include "agent/metrics.h"
#include "agent/status_json.h"
#include "common/http/listen_address.h"
#include "common/mutex.h"
#include "webhook/certificates/file_reloader.h"
#include "webhook/certificates/rotation.h"
#include "webhook/server/http_server.h"
#include "webhook/server/tls_context.h"

namespace sluice::agent {
namespace {

using webhook::HttpReply;
using Clock = std::chrono::system_clock;

constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
constexpr std::string_view kBearer = "Bearer ";
// Any pod may be a client. Its requests must not take the processor from the loop, nor much of it from the node.
constexpr int kNice = 10;
constexpr double kRequestsPerSecond = 50;  // of one client

HttpReply Refusal(const Access& access) {
  switch (access.verdict) {
    case Access::Verdict::kForbidden:
      return {403, access.reason + "\n"};
    case Access::Verdict::kBusy:
      return {503, access.reason + "\n"};
    default:
      return {401, access.reason + "\n"};
  }
}

}  // namespace

class MetricsServer::Impl {
 public:
  explicit Impl(MetricsOptions options) : options_(std::move(options)) {
    if (!options_.certificate.empty()) {
      files_ = std::make_unique<webhook::FileReloader>(options_.certificate, options_.key, certificates_);
    }
  }

  bool Start(std::string* error) {
    webhook::HttpOptions http;
    const std::optional<ListenAddress> address = ParseListenAddress(options_.listen);
    if (!address) {
      *error = "metrics.listen: '" + options_.listen + "' is no address; accepted: " + kListenAddressForms;
      return false;
    }
    http.address = address->host;
    http.port = address->port;
    http.workers = 2;
    http.nice = kNice;
    http.requests_per_s = kRequestsPerSecond;
    http.max_connections = 64;
    http.max_body_bytes = 1 << 10;
    http.max_buffered_bytes = 1 << 20;
    if (options_.authorize) {
      Refresh();
      tls_ = webhook::MakeServerContext(certificates_);
      http.tls = tls_.get();
    }
    server_ = std::make_unique<webhook::HttpServer>(http);
    Serve("/metrics",
          [this](const NodeStatus& s) { return HttpReply{200, MetricsText(s, options_.node), kMetricsType}; });
    Serve("/status.json", [](const NodeStatus& s) { return HttpReply{200, StatusJson(s), "application/json"}; });
    // For kubelet, which sends no token. It says nothing of the node.
    server_->Get("/healthz", [this](std::string_view) {
      return options_.alive() ? HttpReply{200, "ok\n"} : HttpReply{503, "the agent's loop does not answer\n"};
    });
    const std::string why = server_->Start();
    if (why.empty()) return true;
    *error = "metrics.listen: " + why;
    return false;
  }

  int port() const { return server_->port(); }

  std::string Refresh() {
    const auto now = Clock::now();
    std::string message;
    if (!options_.authorize) return message;
    if (files_) {
      files_->Poll(now, message);
      return message;
    }
    const auto current = certificates_.Current();
    // In the last third of its life.
    if (current && (current->not_after() - now) * 3 > current->not_after() - current->not_before()) return message;
    webhook::RotationOptions options;
    options.names = {"sluice-agent", "localhost"};
    const auto made = webhook::Rotate({}, now, std::chrono::seconds(0), options);
    auto pair = webhook::KeyPair::Parse(made.data.at("tls.crt"), made.data.at("tls.key"), message);
    if (pair) certificates_.Set(std::move(pair));
    return message;
  }

 private:
  struct Page {  // the last one, for all who ask before the next status
    Mutex mutex;
    std::shared_ptr<const NodeStatus> of SLUICE_GUARDED_BY(mutex);
    HttpReply reply SLUICE_GUARDED_BY(mutex);
  };

  template <typename Write>
  void Serve(const std::string& path, Write write) {
    const auto answer = [this, write, page = std::make_shared<Page>()](std::string_view) {
      const std::shared_ptr<const NodeStatus> status = options_.now();
      if (!status) return HttpReply{503, "the agent's loop does not answer\n"};
      const MutexLock lock(page->mutex);
      if (page->of != status) {
        NodeStatus shown = *status;
        if (!options_.authorize) options_.hide(&shown);
        page->reply = write(shown);
        page->of = status;
      }
      return page->reply;
    };
    if (!options_.authorize) return server_->Get(path, answer);
    server_->GetAuthorized(path, [this, path, answer](std::string_view authorization) {
      if (!authorization.starts_with(kBearer)) {
        return Refusal({Access::Verdict::kUnknown, "a bearer token of the cluster is needed here"});
      }
      const Access access = options_.authorize(authorization.substr(kBearer.size()), path);
      return access.verdict == Access::Verdict::kAllowed ? answer({}) : Refusal(access);
    });
  }

  const MetricsOptions options_;
  webhook::CertificateStore certificates_;
  std::unique_ptr<webhook::FileReloader> files_;
  webhook::TlsContext tls_;
  std::unique_ptr<webhook::HttpServer> server_;  // last: it uses the members above
};

MetricsServer::MetricsServer(MetricsOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
MetricsServer::~MetricsServer() = default;
bool MetricsServer::Start(std::string* error) { return impl_->Start(error); }
int MetricsServer::port() const { return impl_->port(); }
std::string MetricsServer::Refresh() { return impl_->Refresh(); }

}  // namespace sluice::agent
