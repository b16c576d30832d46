#include "absl/status/status.h"
#include "common/http/get_server.h"
#include "deviceplugin/metrics.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {
namespace {

constexpr int kThreads = 2;  // a slow scraper must not fail kubelet's probe

class PlainServer final : public HttpServer {
 public:
  PlainServer(std::shared_ptr<Metrics> metrics, const Probe& healthy, const Probe& ready) : server_(kThreads) {
    server_.Get("/metrics", [metrics = std::move(metrics)](const GetRequest&) {
      return GetReply{200, metrics->Text(), "text/plain; version=0.0.4"};
    });
    server_.Get("/healthz", [healthy](const GetRequest&) { return Answer(healthy()); });
    server_.Get("/readyz", [ready](const GetRequest&) { return Answer(ready()); });
  }

  bool Start(const std::string& address, std::string* error) { return server_.Start(address, error); }
  int port() const override { return server_.port(); }

 private:
  static GetReply Answer(const std::string& why) {
    return {why.empty() ? 200 : 503, why.empty() ? "ok\n" : why + "\n"};
  }

  GetServer server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              std::shared_ptr<Metrics> metrics, Probe healthy,
                                                              Probe ready) {
  auto server = std::make_unique<PlainServer>(std::move(metrics), healthy, ready);
  if (std::string error; !server->Start(address, &error)) {
    return absl::UnavailableError(StrCat("metricsAddress: ", error, " (for /metrics, /healthz and /readyz)"));
  }
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace sluice::deviceplugin
