// The webhook's HTTP(S) server. One thread moves the bytes of all connections (TLS, framing, deadlines); a few workers
// parse and answer whole requests with cpp-httplib. A slow or hostile client costs one buffer, never a thread.
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

// `body` is valid during the call. Several workers call it at once.
using HttpHandler = std::function<HttpReply(std::string_view body)>;
// The same, with the request's header Authorization; empty: it has none.
using AuthorizedHandler = std::function<HttpReply(std::string_view authorization)>;

struct HttpOptions {
  std::string address = "::";  // numeric; "::": every address of both families
  uint16_t port = 0;           // 0: any free one, see port()
  SSL_CTX* tls = nullptr;      // nullptr: plain HTTP
  int workers = 2;
  int nice = 0;                   // of its threads, added to the process's
  double requests_per_s = 0;      // of one client's address, and twice as many at once: more wait. 0: any
  size_t max_queued = 128;        // whole requests that wait for a worker; a request above gets 503
  size_t max_connections = 1024;  // a connection above closes the one that has waited longest for its client
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 3 << 20;       // the API server's own limit
  size_t max_buffered_bytes = 24 << 20;  // of all connections together
  std::chrono::milliseconds handshake_timeout{5000};
  std::chrono::milliseconds request_timeout{5000};     // from the first byte to the last one
  std::chrono::milliseconds queue_timeout{800};        // a request that waits longer gets 503: its client has gone
  std::chrono::milliseconds reply_timeout{5000};       // until the client has read the reply
  std::chrono::milliseconds idle_timeout{120000};      // longer than Go's 90 s, so that the client closes first
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
  void GetAuthorized(const std::string& path, AuthorizedHandler handler);
  void Post(const std::string& path, HttpHandler handler);

  std::string Start();  // empty, or the error
  uint16_t port() const;
  size_t connections() const;  // any thread

  // Accepts no new connection, answers the requests in flight and closes the rest. Returns when all connections are
  // closed, or after `grace`.
  void Drain(std::chrono::milliseconds grace);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_SERVER_HTTP_SERVER_H_
