// The HTTP(S) server under the webhook. One thread moves bytes (TLS, framing, deadlines) for all connections; a few
// workers parse and answer whole requests with cpp-httplib. So a slow or hostile client costs one buffer, never a
// thread.
#ifndef SLUICE_WEBHOOK_SERVER_HTTP_SERVER_H_
#define SLUICE_WEBHOOK_SERVER_HTTP_SERVER_H_

#include <openssl/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace sluice::webhook {

struct HttpReply {
  int status = 200;
  std::string body;
  const char* type = "text/plain; charset=utf-8";
};

// `body` lives as long as the call. Called by several workers at once.
using HttpHandler = std::function<HttpReply(std::string_view body)>;

struct HttpOptions {
  std::string address = "0.0.0.0";
  uint16_t port = 0;       // 0: any free one, see port()
  SSL_CTX* tls = nullptr;  // nullptr: plain HTTP
  int workers = 2;
  size_t queue = 128;         // whole requests that wait for a worker; more are refused with 503
  size_t connections = 1024;  // more push out the one that has waited longest for its client
  size_t header_bytes = 16 << 10;
  size_t body_bytes = 3 << 20;       // what the API server may send at most
  size_t buffered_bytes = 24 << 20;  // of all connections together
  std::chrono::milliseconds handshake{5000};
  std::chrono::milliseconds request{5000};  // first byte to last byte
  std::chrono::milliseconds waiting{800};   // in the queue; older ones are refused, the client has gone by then
  std::chrono::milliseconds reply{5000};    // until the client has taken the answer
  std::chrono::milliseconds idle{120000};   // longer than Go's 90 s, so that the client closes first
  std::function<void(const char* reason)> on_refused;  // for metrics; called by any thread
};

class HttpServer {
 public:
  explicit HttpServer(const HttpOptions& options);
  ~HttpServer();  // stops at once
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Before Start.
  void Get(const std::string& path, HttpHandler handler);
  void Post(const std::string& path, HttpHandler handler);

  std::string Start();  // empty, or why it cannot listen
  uint16_t port() const;
  size_t connections() const;

  // Takes no new connection, answers what is in flight, closes the rest; returns when all is closed or `grace` is over.
  void Drain(std::chrono::milliseconds grace);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_SERVER_HTTP_SERVER_H_
