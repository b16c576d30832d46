#include "scheduler/extender_server.h"

#include <httplib.h>

#include <thread>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sluice::scheduler {

class ExtenderServer::Impl {
 public:
  httplib::Server server;
  std::thread thread;
  int port = 0;
};

ExtenderServer::ExtenderServer() : impl_(std::make_unique<Impl>()) {}

ExtenderServer::~ExtenderServer() {
  impl_->server.stop();
  if (impl_->thread.joinable()) impl_->thread.join();
}

int ExtenderServer::port() const { return impl_->port; }

absl::StatusOr<std::unique_ptr<ExtenderServer>> ExtenderServer::Start(const std::string& address, int port,
                                                                      Extender& extender, const ClusterState& cluster) {
  std::unique_ptr<ExtenderServer> started(new ExtenderServer);
  httplib::Server& server = started->impl_->server;
  const auto post = [&](const char* path, Reply (Extender::*call)(const std::string&)) {
    server.Post(path, [&extender, call](const httplib::Request& request, httplib::Response& response) {
      const Reply reply = (extender.*call)(request.body);
      response.status = reply.status;
      response.set_content(reply.body, "application/json");
    });
  };
  post("/filter", &Extender::Filter);
  post("/prioritize", &Extender::Prioritize);
  post("/bind", &Extender::Bind);
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
  server.set_payload_max_length(std::size_t{16} << 20);
  // The scheduler keeps its connections; a thread is held by each, and binds wait for the API server.
  server.new_task_queue = [] { return new httplib::ThreadPool(16); };
  server.set_keep_alive_max_count(1'000'000);
  server.set_keep_alive_timeout(60);
  server.set_tcp_nodelay(true);
  // Not the library's SO_REUSEPORT, with which a second extender would silently share the port.
  server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });

  const bool bound = port == 0 ? (started->impl_->port = server.bind_to_any_port(address.c_str())) > 0
                               : server.bind_to_port(address.c_str(), started->impl_->port = port);
  if (!bound) return absl::UnavailableError(absl::StrCat("cannot listen on ", address, ":", port));
  started->impl_->thread = std::thread([&server] { server.listen_after_bind(); });
  return started;
}

}  // namespace sluice::scheduler
