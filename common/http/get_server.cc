#include "common/http/get_server.h"

#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "common/http/listen_address.h"

namespace sluice {
namespace {

constexpr int kSilenceSeconds = 5;
constexpr size_t kMaxBodyBytes = 4096;

void SetSocketOptions(socket_t socket) {
  const int on = 1, off = 0;
  // Replaces httplib's SO_REUSEPORT, with which a second daemon would silently share the port.
  setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);  // has no effect on a socket of IPv4
}

}  // namespace

class GetServer::Impl {
 public:
  explicit Impl(int threads) {
    server_.new_task_queue = [threads] { return new httplib::ThreadPool(static_cast<size_t>(threads)); };
    server_.set_keep_alive_max_count(1);
    server_.set_read_timeout(kSilenceSeconds);
    server_.set_write_timeout(kSilenceSeconds);
    server_.set_payload_max_length(kMaxBodyBytes);
    server_.set_socket_options(SetSocketOptions);
  }
  ~Impl() {
    server_.stop();
    if (thread_.joinable()) thread_.join();
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void Get(const std::string& path, Handler handler) {
    server_.Get(path, [handler = std::move(handler)](const httplib::Request& request, httplib::Response& response) {
      const GetReply reply = handler({[&request](const std::string& name) { return request.get_header_value(name); }});
      response.status = reply.status;
      response.set_content(reply.body, reply.type);
    });
  }

  bool Start(const std::string& text, std::string* error) {
    const auto address = ParseListenAddress(text);
    if (!address) {
      *error = "'" + text + "' is not accepted; accepted: " + kListenAddressForms;
      return false;
    }
    const std::string host = BindHost(*address);
    port_ = address->port;
    errno = 0;
    const bool bound = port_ == 0 ? (port_ = server_.bind_to_any_port(host)) > 0 : server_.bind_to_port(host, port_);
    if (!bound) {
      const int why = errno;
      *error = FormatHostPort(host, address->port) + " cannot be listened at" +
               (why != 0 ? std::string(": ") + std::strerror(why) : "");
      return false;
    }
    thread_ = std::thread([this] { server_.listen_after_bind(); });
    // A stop() before the loop runs would have no effect.
    while (!server_.is_running()) std::this_thread::yield();
    return true;
  }

  int port() const { return port_; }

 private:
  httplib::Server server_;
  std::thread thread_;
  int port_ = 0;
};

GetServer::GetServer(int threads) : impl_(std::make_unique<Impl>(threads)) {}
GetServer::~GetServer() = default;
void GetServer::Get(const std::string& path, Handler handler) { impl_->Get(path, std::move(handler)); }
bool GetServer::Start(const std::string& address, std::string* error) { return impl_->Start(address, error); }
int GetServer::port() const { return impl_->port(); }

}  // namespace sluice
