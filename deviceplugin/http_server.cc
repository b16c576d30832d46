#include <civetweb.h>

#include "absl/status/status.h"
#include "deviceplugin/metrics.h"
#include "deviceplugin/text.h"

namespace sluice::deviceplugin {
namespace {

class CivetServer final : public HttpServer {
 public:
  CivetServer(std::shared_ptr<Metrics> metrics, Probe healthy, Probe ready)
      : metrics_(std::move(metrics)), healthy_(std::move(healthy)), ready_(std::move(ready)) {}
  ~CivetServer() override {
    if (context_ != nullptr) mg_stop(context_);
  }

  bool Start(const std::string& address) {
    // One thread suffices for the kubelet's probes and one scraper.
    const char* options[] = {"listening_ports",
                             address.c_str(),
                             "num_threads",
                             "1",
                             "request_timeout_ms",
                             "5000",
                             "enable_keep_alive",
                             "no",
                             nullptr};
    mg_callbacks callbacks = {};
    context_ = mg_start(&callbacks, this, options);
    if (context_ == nullptr) return false;
    mg_set_request_handler(context_, "/metrics", &OnMetrics, this);
    mg_set_request_handler(context_, "/healthz", &OnHealthz, this);
    mg_set_request_handler(context_, "/readyz", &OnReadyz, this);
    return true;
  }

  int port() const override {
    mg_server_port ports[4];
    return mg_get_server_ports(context_, 4, ports) > 0 ? ports[0].port : 0;
  }

 private:
  static int Answer(mg_connection* connection, int code, const std::string& type, const std::string& body) {
    const std::string head =
        StrCat("HTTP/1.1 ", code, code == 200 ? " OK" : " Service Unavailable", "\r\nContent-Type: ", type,
               "\r\nContent-Length: ", body.size(), "\r\nConnection: close\r\n\r\n");
    mg_write(connection, head.data(), head.size());
    mg_write(connection, body.data(), body.size());
    return code;
  }
  static int Answer(mg_connection* connection, const Probe& probe) {
    const std::string why = probe();
    return Answer(connection, why.empty() ? 200 : 503, "text/plain", why.empty() ? "ok\n" : why + "\n");
  }
  static int OnMetrics(mg_connection* c, void* self) {
    return Answer(c, 200, "text/plain; version=0.0.4", static_cast<CivetServer*>(self)->metrics_->Text());
  }
  static int OnHealthz(mg_connection* c, void* self) { return Answer(c, static_cast<CivetServer*>(self)->healthy_); }
  static int OnReadyz(mg_connection* c, void* self) { return Answer(c, static_cast<CivetServer*>(self)->ready_); }

  std::shared_ptr<Metrics> metrics_;
  Probe healthy_, ready_;
  mg_context* context_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const std::string& address,
                                                              std::shared_ptr<Metrics> metrics, Probe healthy,
                                                              Probe ready) {
  auto server = std::make_unique<CivetServer>(std::move(metrics), std::move(healthy), std::move(ready));
  if (!server->Start(address.starts_with(":") ? address.substr(1) : address)) {
    return absl::UnavailableError(StrCat("cannot listen on ", address, " for /metrics, /healthz and /readyz"));
  }
  return std::unique_ptr<HttpServer>(std::move(server));
}

}  // namespace sluice::deviceplugin
