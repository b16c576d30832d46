#include "webhook/server/service.h"

namespace sluice::webhook {
namespace {

// Above every review that an API server sends: two objects of its 3 MiB, whose letters JSON writes with six bytes at
// most.
constexpr size_t kMaxCutBodyBytes = size_t{64} << 20;

}  // namespace

Service::Service(Config config, HttpOptions https, const HttpOptions& metrics,
                 std::function<void(const std::string&)> log)
    : log_(std::move(log)),
      context_(MakeServerContext(certificates_)),
      max_body_bytes_(https.max_body_bytes),
      config_(std::make_shared<const Config>(std::move(config))),
      nodes_(std::make_shared<const Nodes>()) {
  https.tls = context_.get();
  https.probe_paths = {"/healthz", "/readyz"};  // kubelet probes this port
  https.on_refused = [this](const char* reason) { metrics_.CountRefusal(reason); };
  https.max_cut_body_bytes = kMaxCutBodyBytes;
  https_ = std::make_unique<HttpServer>(std::move(https));
  plain_ = std::make_unique<HttpServer>(metrics);

  https_->Post("/mutate", [this](const HttpRequest& r) { return Handle(Path::kMutate, r); });
  https_->Post("/validate", [this](const HttpRequest& r) { return Handle(Path::kValidate, r); });
  for (HttpServer* server : {https_.get(), plain_.get()}) {
    server->Get("/healthz", [](const HttpRequest&) { return HttpReply{200, "ok\n"}; });
    server->Get("/readyz", [this](const HttpRequest&) { return Ready(); });
  }
  plain_->Get("/metrics", [this](const HttpRequest&) {
    metrics_.SetConnections(https_->connections());
    return HttpReply{200, metrics_.Text(), "text/plain; version=0.0.4; charset=utf-8"};
  });
}

Service::~Service() = default;

std::string Service::Start() {
  if (std::string error = plain_->Start(); !error.empty()) return error;
  return https_->Start();
}

void Service::SetConfig(Config config) {
  auto fresh = std::make_shared<const Config>(std::move(config));
  const MutexLock lock(mutex_);
  config_.swap(fresh);
}

void Service::SetNodes(Nodes nodes) {
  auto fresh = std::make_shared<const Nodes>(std::move(nodes));
  const MutexLock lock(mutex_);
  nodes_.swap(fresh);
}

void Service::FailReadiness() {
  const MutexLock lock(mutex_);
  is_shutting_down_ = true;
}

HttpReply Service::Handle(Path path, const HttpRequest& request) {
  const auto start = std::chrono::steady_clock::now();
  std::shared_ptr<const Config> config;
  std::shared_ptr<const Nodes> nodes;
  {
    const MutexLock lock(mutex_);
    config = config_;
    nodes = nodes_;
  }
  Answer answer = request.is_cut ? ReviewBeginning(request.body, max_body_bytes_)
                                 : Review(path, request.body, *config, *nodes, make_claims_);
  metrics_.CountReview(path, answer, std::chrono::steady_clock::now() - start);
  if (!answer.log.empty()) log_(answer.log);
  return {answer.status, std::move(answer.body),
          answer.status == 200 ? "application/json" : "text/plain; charset=utf-8"};
}

HttpReply Service::Ready() const {
  {
    const MutexLock lock(mutex_);
    if (is_shutting_down_) return {503, "shutting down\n"};
  }
  const auto pair = certificates_.Current();
  if (pair == nullptr) return {503, "no certificate yet\n"};
  if (pair->not_after() < std::chrono::system_clock::now()) return {503, "the certificate has expired\n"};
  return {200, "ok\n"};
}

}  // namespace sluice::webhook
