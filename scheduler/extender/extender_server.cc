#include "scheduler/extender/extender_server.h"

#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <thread>
#include <utility>

#include "absl/status/status.h"

namespace sluice::scheduler {

namespace {

// One listening address.
class Listener {
 public:
  ~Listener() {
    server.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Start(const ListenAddress& address, int threads) {
    server.set_payload_max_length(std::size_t{16} << 20);
    // Each kept-alive connection holds a thread, and binds wait for the API server.
    server.new_task_queue = [threads] { return new httplib::ThreadPool(threads); };
    server.set_keep_alive_max_count(1'000'000);
    server.set_keep_alive_timeout(60);
    server.set_tcp_nodelay(true);
    // Replaces httplib's SO_REUSEPORT, with which a second extender would silently share the port.
    server.set_socket_options([](socket_t socket) {
      const int yes = 1, no = 0;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
      setsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof(no));  // has no effect on a socket of IPv4
    });
    const std::string host = BindHost(address);
    port = address.port;
    const bool bound = port == 0 ? (port = server.bind_to_any_port(host)) > 0 : server.bind_to_port(host, port);
    if (!bound) return absl::UnavailableError("cannot listen on " + FormatHostPort(host, address.port));
    thread_ = std::thread([this] { server.listen_after_bind(); });
    // A stop() before the loop runs would have no effect.
    while (!server.is_running()) std::this_thread::yield();
    return absl::OkStatus();
  }

  httplib::Server server;
  int port = 0;

 private:
  std::thread thread_;
};

void ServeProbesAndMetrics(httplib::Server& server, const Extender& extender, const ClusterState& cluster) {
  server.Get("/healthz",
             [](const httplib::Request&, httplib::Response& response) { response.set_content("ok\n", "text/plain"); });
  server.Get("/readyz", [&cluster](const httplib::Request&, httplib::Response& response) {
    const bool ready = cluster.Synced();
    response.status = ready ? 200 : 503;
    response.set_content(ready ? "ok\n" : "the cluster has not been read yet\n", "text/plain");
  });
  server.Get("/metrics", [&extender](const httplib::Request&, httplib::Response& response) {
    response.set_content(extender.Metrics(), "text/plain; version=0.0.4");
  });
}

void ServeCalls(httplib::Server& server, Extender& extender) {
  const auto post = [&](const char* path, Reply (Extender::*call)(const std::string&)) {
    server.Post(path, [&extender, call](const httplib::Request& request, httplib::Response& response) {
      const Reply reply = (extender.*call)(request.body);
      response.status = reply.status;
      response.set_content(reply.body, "application/json");
    });
  };
  post("/filter", &Extender::Filter);
  post("/prioritize", &Extender::Prioritize);
  post("/prioritize-any", &Extender::PrioritizeAny);
  post("/bind", &Extender::Bind);
}

}  // namespace

class ExtenderServer::Impl {
 public:
  Listener calls, metrics;
};

ExtenderServer::ExtenderServer() : impl_(std::make_unique<Impl>()) {}
ExtenderServer::~ExtenderServer() = default;

int ExtenderServer::port() const { return impl_->calls.port; }
int ExtenderServer::metrics_port() const { return impl_->metrics.port; }

absl::StatusOr<std::unique_ptr<ExtenderServer>> ExtenderServer::Start(const ListenAddress& calls,
                                                                      const std::optional<ListenAddress>& metrics,
                                                                      Extender& extender, const ClusterState& cluster) {
  std::unique_ptr<ExtenderServer> started(new ExtenderServer);
  Impl& impl = *started->impl_;
  ServeCalls(impl.calls.server, extender);
  ServeProbesAndMetrics(impl.calls.server, extender, cluster);
  if (absl::Status status = impl.calls.Start(calls, 16); !status.ok()) return status;
  if (metrics) {
    ServeProbesAndMetrics(impl.metrics.server, extender, cluster);
    if (absl::Status status = impl.metrics.Start(*metrics, 2); !status.ok()) return status;
  }
  return started;
}

}  // namespace sluice::scheduler
