#include "absl/status/status.h"
#include "common/http/http_server.h"
#include "deviceplugin/metrics.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {
namespace {

HttpReply Answer(const std::string& why) { return {why.empty() ? 200 : 503, why.empty() ? "ok\n" : why + "\n"}; }

class PlainServer final : public ProbeServer {
 public:
  PlainServer(const HttpOptions& options, std::shared_ptr<Metrics> metrics, const Probe& healthy, const Probe& ready)
      : server_(options) {
    server_.Get("/metrics", [metrics = std::move(metrics)](const HttpRequest&) {
      return HttpReply{200, metrics->Text(), "text/plain; version=0.0.4"};
    });
    server_.Get("/healthz", [healthy](const HttpRequest&) { return Answer(healthy()); });
    server_.Get("/readyz", [ready](const HttpRequest&) { return Answer(ready()); });
  }

  std::string Start() { return server_.Start(); }
  int port() const override { return server_.port(); }

 private:
  HttpServer server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProbeServer>> ProbeServer::Start(const std::string& text,
                                                                std::shared_ptr<Metrics> metrics, const Probe& healthy,
                                                                const Probe& ready) {
  HttpOptions options = HttpOptions::ForMetrics();
  const auto address = ParseListenAddress(text);
  if (!address) {
    return absl::InvalidArgumentError(
        StrCat("metricsAddress: '", text, "' is not accepted; accepted: ", kListenAddressForms));
  }
  options.address = *address;
  auto server = std::make_unique<PlainServer>(options, std::move(metrics), healthy, ready);
  if (const std::string why = server->Start(); !why.empty()) {
    return absl::UnavailableError(StrCat("metricsAddress: ", why, " (for /metrics, /healthz and /readyz)"));
  }
  return std::unique_ptr<ProbeServer>(std::move(server));
}

}  // namespace sluice::deviceplugin
