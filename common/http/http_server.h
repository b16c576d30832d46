// The HTTP(S) server of all daemons. One thread moves the bytes of all connections (TLS, framing, deadlines); a few
// workers parse and answer whole requests with cpp-httplib. A slow or hostile client costs one buffer, never a thread.
#ifndef SLUICE_COMMON_HTTP_HTTP_SERVER_H_
#define SLUICE_COMMON_HTTP_HTTP_SERVER_H_

#include <openssl/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/http/listen_address.h"

namespace sluice {

// Valid during the handler's call.
struct HttpRequest {
  const std::string& body;
  bool is_cut;  // the body was longer than `max_body_bytes`, and this is its beginning
  // The first value of a header, whatever its case; empty: it was not sent.
  std::function<std::string(const std::string& name)> header;
};

struct HttpReply {
  int status = 200;
  std::string body;
  const char* type = "text/plain; charset=utf-8";
};

// Several workers call it at once.
using HttpHandler = std::function<HttpReply(const HttpRequest&)>;

struct HttpOptions {
  ListenAddress address{"::", 0};  // port 0: any free one, see port()
  SSL_CTX* tls = nullptr;          // nullptr: plain HTTP
  int workers = 2;
  int nice = 0;               // of its threads, added to the process's
  double requests_per_s = 0;  // of one client's address, and twice as many at once: more wait. 0: any
  // Answered before others, and paced on their own: a client's other requests do not hold up kubelet's, which may have
  // the same address.
  std::vector<std::string> probe_paths;
  size_t max_queued = 128;                // whole requests that wait for a worker; a request above gets 503
  size_t max_connections = 1024;          // one above closes the oldest of the client that has most of them
  size_t max_connections_per_client = 0;  // of one address; one above closes its oldest. 0: any
  size_t max_work_per_client = 0;         // requests of one address that are answered at once; more wait. 0: any
  size_t max_header_bytes = 16 << 10;
  size_t max_body_bytes = 3 << 20;       // the API server's own limit
  size_t max_cut_body_bytes = 0;         // a longer body, up to this, is cut; any other gets 413
  size_t max_buffered_bytes = 24 << 20;  // of all requests together
  size_t max_unread_bytes = 32 << 20;    // of all replies together; more closes one of the client with most of them
  std::chrono::milliseconds handshake_timeout{5000};
  std::chrono::milliseconds request_timeout{5000};     // from the first byte to the last one
  std::chrono::milliseconds queue_timeout{800};        // a request that waits longer gets 503: its client has gone
  std::chrono::milliseconds reply_timeout{5000};       // until the client has read the reply
  std::chrono::milliseconds idle_timeout{120000};      // longer than Go's 90 s, so that the client closes first
  std::function<void(const char* reason)> on_refused;  // for metrics; called by any thread

  // For probes, metrics and read-only JSON, which any pod may ask for.
  static HttpOptions ForMetrics();
};

class HttpServer {
 public:
  explicit HttpServer(const HttpOptions& options);
  ~HttpServer();  // stops at once; returns when the last handler has
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Before Start. Other paths get 404.
  void Get(const std::string& path, HttpHandler handler);
  void Post(const std::string& path, HttpHandler handler);

  std::string Start();  // empty, or a sentence with the address
  uint16_t port() const;
  size_t connections() const;  // any thread

  // Accepts no new connection, answers the requests in flight and closes the rest. Returns when all connections are
  // closed, or after `grace`.
  void Drain(std::chrono::milliseconds grace);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice

#endif  // SLUICE_COMMON_HTTP_HTTP_SERVER_H_
