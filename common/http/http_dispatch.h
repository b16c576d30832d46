// Turns a whole request in memory into a whole reply, with cpp-httplib's parser and router but without its sockets and
// threads.
#ifndef SLUICE_COMMON_HTTP_HTTP_DISPATCH_H_
#define SLUICE_COMMON_HTTP_HTTP_DISPATCH_H_

#include <chrono>
#include <memory>
#include <string>
#include <string_view>

#include "common/http/http_server.h"

namespace sluice::http {

class HttpDispatch {
 public:
  explicit HttpDispatch(std::chrono::milliseconds idle_timeout);  // for the Keep-Alive header
  ~HttpDispatch();
  HttpDispatch(const HttpDispatch&) = delete;
  HttpDispatch& operator=(const HttpDispatch&) = delete;

  // Before the first request.
  void Get(const std::string& path, HttpHandler handler);
  void Post(const std::string& path, HttpHandler handler);

  // Thread-safe. `is_cut`: the body is without its end; `close`: this is the client's last request; `closed`: the
  // connection must end after the reply.
  std::string Answer(std::string_view request, bool is_cut, bool close, bool& closed);

 private:
  class Router;
  std::unique_ptr<Router> router_;
};

// A reply without a parsed request.
std::string ErrorReply(int status, std::string_view reason, bool close);

}  // namespace sluice::http

#endif  // SLUICE_COMMON_HTTP_HTTP_DISPATCH_H_
