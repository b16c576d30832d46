// The webhook as a whole but for the process: endpoints, live configuration, readiness. Tests run it in their own
// process.
#ifndef SLUICE_WEBHOOK_SERVER_SERVICE_H_
#define SLUICE_WEBHOOK_SERVER_SERVICE_H_

#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "webhook/certificates/key_pair.h"
#include "webhook/decision/nodes.h"
#include "webhook/server/http_server.h"
#include "webhook/server/metrics.h"

namespace sluice::webhook {

class Service {
 public:
  // `say` gets one line for stderr. `https.tls` is set here.
  Service(Config config, HttpOptions https, HttpOptions metrics, std::function<void(const std::string&)> say);
  ~Service();

  std::string Start();  // empty, or why it cannot

  CertificateStore& certificates() { return certificates_; }
  Metrics& metrics() { return metrics_; }
  uint16_t port() const { return https_->port(); }
  uint16_t metrics_port() const { return plain_->port(); }

  // Taken by the requests that come after.
  void SetConfig(Config config);
  void SetNodes(Nodes nodes);

  // Readiness falls; requests are answered as before.
  void Retire();
  // In flight is answered, then all is closed.
  void Drain(std::chrono::milliseconds grace) { https_->Drain(grace); }

 private:
  HttpReply Handle(Path path, std::string_view body);
  HttpReply Ready() const;

  std::function<void(const std::string&)> say_;
  CertificateStore certificates_;
  TlsContext context_;
  Metrics metrics_;
  mutable std::mutex mutex_;  // the three below: replaced, never changed
  std::shared_ptr<const Config> config_;
  std::shared_ptr<const Nodes> nodes_;
  bool retired_ = false;
  std::unique_ptr<HttpServer> https_, plain_;
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_SERVER_SERVICE_H_
