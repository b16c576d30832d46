// A whole request in memory becomes a whole reply: cpp-httplib's parser and router, without its sockets and threads.
#ifndef SLUICE_WEBHOOK_SERVER_HTTP_DISPATCH_H_
#define SLUICE_WEBHOOK_SERVER_HTTP_DISPATCH_H_

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "webhook/server/http_server.h"

namespace sluice::webhook {

class HttpDispatch {
 public:
  explicit HttpDispatch(std::chrono::milliseconds idle);  // what clients are told of how long a connection is kept
  ~HttpDispatch();
  HttpDispatch(const HttpDispatch&) = delete;
  HttpDispatch& operator=(const HttpDispatch&) = delete;

  // Before the first request.
  void Get(const std::string& path, HttpHandler handler);
  void Post(const std::string& path, HttpHandler handler);

  // Called by several workers at once. `close`: the client's last request; `closed`: the connection ends after the
  // reply.
  std::string Handle(std::string_view request, bool close, bool& closed);

 private:
  class Router;
  std::unique_ptr<Router> router_;
};

// A reply that needs no request.
std::string ErrorReply(int status, std::string_view reason, bool close);

}  // namespace sluice::webhook

#endif  // SLUICE_WEBHOOK_SERVER_HTTP_DISPATCH_H_
