#include "agent/metrics_server.h"

#include <chrono>
#include <utility>

#include "agent/metrics.h"
#include "agent/status_json.h"
#include "common/http/http_server.h"
#include "common/http/listen_address.h"
#include "common/mutex.h"
#include "common/tls/file_reloader.h"
#include "common/tls/rotation.h"
#include "common/tls/tls_context.h"

namespace sluice::agent {
namespace {

using Clock = std::chrono::system_clock;

constexpr const char* kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
constexpr std::string_view kBearer = "Bearer ";
// Any pod may be a client. Its requests must not take the processor from the loop, nor much of it from the node.
constexpr int kNice = 10;
// Two may wait for reviews of unknown tokens by the API server (authorizer.cc), and the others serve meanwhile.
constexpr int kWorkers = 4;

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
      files_ = std::make_unique<FileReloader>(options_.certificate, options_.key, certificates_);
    }
  }

  bool Start(std::string* error) {
    HttpOptions http = HttpOptions::ForMetrics();
    const std::optional<ListenAddress> address = ParseListenAddress(options_.listen);
    if (!address) {
      *error = "metrics.listen: '" + options_.listen + "' is no address; accepted: " + kListenAddressForms;
      return false;
    }
    http.address = *address;
    http.nice = kNice;
    if (options_.authorize) http.workers = kWorkers;
    if (options_.authorize) {
      Refresh();
      tls_ = MakeServerContext(certificates_);
      http.tls = tls_.get();
    }
    server_ = std::make_unique<HttpServer>(http);
    Serve("/metrics",
          [this](const NodeStatus& s) { return HttpReply{200, MetricsText(s, options_.node), kMetricsType}; });
    Serve("/status.json", [](const NodeStatus& s) { return HttpReply{200, StatusJson(s), "application/json"}; });
    // For kubelet, which sends no token. It says nothing of the node.
    server_->Get("/healthz", [this](const HttpRequest&) {
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
    RotationOptions options;
    options.names = {"sluice-agent", "localhost"};
    const auto made = Rotate({}, now, std::chrono::seconds(0), options);
    auto pair = KeyPair::Parse(made.data.at("tls.crt"), made.data.at("tls.key"), message);
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
    const auto answer = [this, write, page = std::make_shared<Page>()] {
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
    server_->Get(path, [this, path, answer](const HttpRequest& request) {
      if (!options_.authorize) return answer();
      const std::string text = request.header("Authorization");
      const std::string_view authorization = text;
      if (!authorization.starts_with(kBearer)) {
        return Refusal({Access::Verdict::kUnknown, "a bearer token of the cluster is needed here"});
      }
      const Access access = options_.authorize(authorization.substr(kBearer.size()), path);
      return access.verdict == Access::Verdict::kAllowed ? answer() : Refusal(access);
    });
  }

  const MetricsOptions options_;
  CertificateStore certificates_;
  std::unique_ptr<FileReloader> files_;
  TlsContext tls_;
  std::unique_ptr<HttpServer> server_;  // last: it uses the members above
};

MetricsServer::MetricsServer(MetricsOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
MetricsServer::~MetricsServer() = default;
bool MetricsServer::Start(std::string* error) { return impl_->Start(error); }
int MetricsServer::port() const { return impl_->port(); }
std::string MetricsServer::Refresh() { return impl_->Refresh(); }

}  // namespace sluice::agent
