#include "agent/metrics_endpoint.h"

#include <utility>

#include "agent/pseudonym.h"
#include "common/log/log.h"

namespace sluice::agent {

std::string MetricsEndpoint::Serve(const Config& config, const std::string& node_name, const kube::ClientConfig* api) {
  std::vector<std::string> settings = {config.metrics_listen, config.metrics_authentication, config.metrics_certificate,
                                       config.metrics_key};
  if (settings == settings_) return {};
  settings_ = std::move(settings);
  http_.reset();  // the new one may have its port
  authorizer_.reset();
  if (config.metrics_listen.empty()) return {};
  MetricsOptions options;
  options.listen = config.metrics_listen;
  options.node = node_name;
  options.now = [this] { return status_.Get(); };
  options.alive = [this] { return alive_.Get() != nullptr; };
  std::string error;
  if (config.metrics_authentication == "kubernetes") {
    if (api == nullptr) return "metrics.authentication: kubernetes.enabled takes effect after a restart of the agent";
    authorizer_ = std::make_unique<Authorizer>(*api, &MonotonicNs);
    options.certificate = config.metrics_certificate;
    options.key = config.metrics_key;
    options.authorize = [this](std::string_view token, const std::string& path) {
      return authorizer_->Check(token, path);
    };
  } else {
    options.hide = [key = PseudonymKey(run_dir_ + "/metrics.key", &error)](NodeStatus* s) { HideIds(key, s); };
    if (!error.empty()) Log(LogLevel::kWarn, error);
  }
  error.clear();
  http_ = std::make_unique<MetricsServer>(std::move(options));
  if (!http_->Start(&error)) {
    http_.reset();
    return error;
  }
  Log(LogLevel::kInfo, "metrics at port " + std::to_string(http_->port()));
  return {};
}

void MetricsEndpoint::Refresh() {
  const std::string text = http_ ? http_->Refresh() : "";
  if (!text.empty()) Log(LogLevel::kWarn, "metrics: " + text);
}

NodeStatus MetricsEndpoint::Now() {
  NodeStatus now = node_->Status();
  now.attach = server_->attach_times();
  server_->AddDelayed(&now);
  return now;
}

}  // namespace sluice::agent
