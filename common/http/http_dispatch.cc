#include "common/http/http_dispatch.h"

#include <httplib.h>

#include <cstring>
#include <functional>

namespace sluice::http {
namespace {

// Set by the router alone: the library's request has no other place for it.
constexpr char kIsCut[] = "Sluice-Body-Is-Cut";

// Reads from a whole request and writes into a string.
class MemoryStream final : public httplib::Stream {
 public:
  explicit MemoryStream(std::string_view in) : in_(in) {}
  std::string TakeReply() {
    // The server has answered "Expect: 100-continue" after the header already; cpp-httplib answers it again.
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    if (out_.starts_with(kContinue)) out_.erase(0, kContinue.size());
    return std::move(out_);
  }
  bool is_readable() const override { return true; }
  bool is_writable() const override { return true; }
  ssize_t read(char* to, size_t size) override {
    const size_t n = std::min(size, in_.size());
    std::memcpy(to, in_.data(), n);
    in_.remove_prefix(n);
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* from, size_t size) override {
    out_.append(from, size);
    return static_cast<ssize_t>(size);
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return INVALID_SOCKET; }

 private:
  std::string_view in_;
  std::string out_;
};

httplib::Server::Handler Route(HttpHandler handler) {
  return [handler = std::move(handler)](const httplib::Request& request, httplib::Response& response) {
    const HttpReply reply = handler({request.body, request.has_header(kIsCut),
                                     [&request](const std::string& name) { return request.get_header_value(name); }});
    response.status = reply.status;
    response.set_content(reply.body, reply.type);
  };
}

}  // namespace

class HttpDispatch::Router final : public httplib::Server {
 public:
  std::string Answer(std::string_view request, bool is_cut, bool close, bool& closed) {
    MemoryStream stream(request);
    closed = close;
    process_request(stream, close, closed, [is_cut](httplib::Request& r) {
      r.headers.erase(kIsCut);
      if (is_cut) r.headers.emplace(kIsCut, "");
    });
    return stream.TakeReply();
  }
};

HttpDispatch::HttpDispatch(std::chrono::milliseconds idle_timeout) : router_(std::make_unique<Router>()) {
  router_->set_keep_alive_max_count(1 << 30);
  router_->set_keep_alive_timeout(std::chrono::duration_cast<std::chrono::seconds>(idle_timeout).count());
}
HttpDispatch::~HttpDispatch() = default;

void HttpDispatch::Get(const std::string& path, HttpHandler handler) { router_->Get(path, Route(std::move(handler))); }

void HttpDispatch::Post(const std::string& path, HttpHandler handler) {
  router_->Post(path, Route(std::move(handler)));
}

std::string HttpDispatch::Answer(std::string_view request, bool is_cut, bool close, bool& closed) {
  return router_->Answer(request, is_cut, close, closed);
}

std::string ErrorReply(int status, std::string_view reason, bool close) {
  const char* name = status == 503   ? "Service Unavailable"
                     : status == 413 ? "Payload Too Large"
                     : status == 415 ? "Unsupported Media Type"
                     : status == 408 ? "Request Timeout"
                                     : "Bad Request";
  return "HTTP/1.1 " + std::to_string(status) + " " + name +
         "\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: " + std::to_string(reason.size() + 1) +
         (close ? "\r\nConnection: close" : "") + "\r\n\r\n" + std::string(reason) + "\n";
}

}  // namespace sluice::http
