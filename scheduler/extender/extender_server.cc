#include "scheduler/extender/extender_server.h"

#include <string>

#include "absl/status/status.h"
#include "common/http/http_server.h"
#include "scheduler/extender/volcano.h"

namespace sluice::scheduler {

namespace {

// A list of 5,000 nodes with their names alone has less than one MiB; kube-scheduler's own limit is none.
constexpr size_t kMaxBodyBytes = size_t{16} << 20;
constexpr size_t kMaxBufferedBytes = size_t{48} << 20;
// Binds wait for the API server.
constexpr int kWorkers = 16;
// The scheduler has gone by then: its httpTimeout is 10 s in the chart.
constexpr std::chrono::seconds kQueueTimeout{8};
constexpr std::chrono::seconds kDrainGrace{10};

HttpOptions ForCalls(const ListenAddress& address) {
  HttpOptions options;
  options.address = address;
  options.workers = kWorkers;
  options.max_body_bytes = kMaxBodyBytes;
  options.max_buffered_bytes = kMaxBufferedBytes;
  options.queue_timeout = kQueueTimeout;
  options.probe_paths = {"/healthz", "/readyz"};
  return options;
}

HttpOptions ForMetrics(const ListenAddress& address) {
  HttpOptions options = HttpOptions::ForMetrics();
  options.address = address;
  return options;
}

void ServeProbesAndMetrics(HttpServer& server, const Extender& extender, const ClusterState& cluster) {
  server.Get("/healthz", [](const HttpRequest&) { return HttpReply{200, "ok\n"}; });
  server.Get("/readyz", [&cluster](const HttpRequest&) {
    return cluster.Synced() ? HttpReply{200, "ok\n"} : HttpReply{503, "the cluster has not been read yet\n"};
  });
  server.Get("/metrics", [&extender](const HttpRequest&) {
    return HttpReply{200, extender.Metrics(), "text/plain; version=0.0.4"};
  });
}

void ServeCalls(HttpServer& server, Extender& extender) {
  const auto post = [&](const char* path, Reply (Extender::*call)(const std::string&)) {
    server.Post(path, [&extender, call](const HttpRequest& request) {
      Reply reply = (extender.*call)(request.body);
      return HttpReply{reply.status, std::move(reply.body), "application/json"};
    });
  };
  post("/filter", &Extender::Filter);
  post("/prioritize", &Extender::Prioritize);
  post("/prioritize-any", &Extender::PrioritizeAny);
  post("/bind", &Extender::Bind);
}

void ServeVolcano(HttpServer& server, VolcanoCalls& volcano) {
  const auto post = [&](const char* path, Reply (VolcanoCalls::*call)(const std::string&)) {
    server.Post(path, [&volcano, call](const HttpRequest& request) {
      Reply reply = (volcano.*call)(request.body);
      return HttpReply{reply.status, std::move(reply.body), "application/json"};
    });
  };
  post("/predicate", &VolcanoCalls::Predicate);
  post("/allocate", &VolcanoCalls::Allocate);
  post("/deallocate", &VolcanoCalls::Deallocate);
  post("/session-close", &VolcanoCalls::SessionClose);
}

}  // namespace

class ExtenderServer::Impl {
 public:
  Impl(Extender& extender, const ListenAddress& calls_address, const std::optional<ListenAddress>& metrics_address,
       const std::optional<ListenAddress>& volcano_address)
      : volcano_calls(extender), calls(ForCalls(calls_address)) {
    if (metrics_address) metrics.emplace(ForMetrics(*metrics_address));
    if (volcano_address) volcano.emplace(ForCalls(*volcano_address));
  }

  VolcanoCalls volcano_calls;
  HttpServer calls;
  std::optional<HttpServer> metrics, volcano;
};

ExtenderServer::ExtenderServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ExtenderServer::~ExtenderServer() {
  impl_->calls.Drain(kDrainGrace);
  if (impl_->volcano) impl_->volcano->Drain(kDrainGrace);
}

int ExtenderServer::port() const { return impl_->calls.port(); }
int ExtenderServer::metrics_port() const { return impl_->metrics ? impl_->metrics->port() : 0; }
int ExtenderServer::volcano_port() const { return impl_->volcano ? impl_->volcano->port() : 0; }

absl::StatusOr<std::unique_ptr<ExtenderServer>> ExtenderServer::Start(const ListenAddress& calls,
                                                                      const std::optional<ListenAddress>& metrics,
                                                                      Extender& extender, const ClusterState& cluster,
                                                                      const std::optional<ListenAddress>& volcano) {
  auto impl = std::make_unique<Impl>(extender, calls, metrics, volcano);
  ServeCalls(impl->calls, extender);
  ServeProbesAndMetrics(impl->calls, extender, cluster);
  if (const std::string why = impl->calls.Start(); !why.empty()) return absl::UnavailableError("listen: " + why);
  if (impl->metrics) {
    ServeProbesAndMetrics(*impl->metrics, extender, cluster);
    if (const std::string why = impl->metrics->Start(); !why.empty()) {
      return absl::UnavailableError("metricsListen: " + why);
    }
  }
  if (impl->volcano) {
    ServeVolcano(*impl->volcano, impl->volcano_calls);
    if (const std::string why = impl->volcano->Start(); !why.empty()) {
      return absl::UnavailableError("volcanoListen: " + why);
    }
  }
  return std::unique_ptr<ExtenderServer>(new ExtenderServer(std::move(impl)));
}

}  // namespace sluice::scheduler
