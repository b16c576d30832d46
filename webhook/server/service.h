// The webhook without its process: endpoints, live configuration, readiness. Tests run it in their own process.
#ifndef SLUICE_WEBHOOK_SERVER_SERVICE_H_
#define SLUICE_WEBHOOK_SERVER_SERVICE_H_

#include <functional>
#include <memory>
#include <string>

#include "common/http/http_server.h"
#include "common/mutex.h"
#include "common/tls/key_pair.h"
#include "common/tls/tls_context.h"
#include "webhook/decision/nodes.h"
#include "webhook/decision/review.h"
#include "webhook/server/metrics.h"

namespace sluice::webhook {

// Thread-safe after Start.
class Service {
 public:
  // `log` gets one line at a time, from any thread. The constructor sets `https.tls`.
  Service(Config config, HttpOptions https, const HttpOptions& metrics, std::function<void(const std::string&)> log);
  ~Service();

  std::string Start();  // empty, or the error

  CertificateStore& certificates() { return certificates_; }
  Metrics& metrics() { return metrics_; }
  uint16_t port() const { return https_->port(); }
  uint16_t metrics_port() const { return plain_->port(); }

  // For pods whose shares are claims. Call it before Start.
  void SetClaimMaker(MakeClaims make) { make_claims_ = std::move(make); }

  // Later requests use the new value.
  void SetConfig(Config config);
  void SetNodes(Nodes nodes);

  // Makes /readyz fail. Requests are still answered.
  void FailReadiness();
  // Answers the requests in flight, then closes all HTTPS connections; returns after `grace` at the latest.
  void Drain(std::chrono::milliseconds grace) { https_->Drain(grace); }

 private:
  HttpReply Handle(Path path, const HttpRequest& request);
  HttpReply Ready() const;

  std::function<void(const std::string&)> log_;
  MakeClaims make_claims_;
  CertificateStore certificates_;
  TlsContext context_;
  const size_t max_body_bytes_;
  Metrics metrics_;
  mutable Mutex mutex_;
  std::shared_ptr<const Config> config_ SLUICE_GUARDED_BY(mutex_);  // replaced, never changed
  std::shared_ptr<const Nodes> nodes_ SLUICE_GUARDED_BY(mutex_);    // replaced, never changed
  bool is_shutting_down_ SLUICE_GUARDED_BY(mutex_) = false;
  std::unique_ptr<HttpServer> https_, plain_;
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_SERVER_SERVICE_H_
