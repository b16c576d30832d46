#include "webhook/server/metrics.h"

#include "common/metrics/registry.h"

namespace sluice::webhook {

using metrics::Counter;
using metrics::Family;
using metrics::Gauge;
using metrics::Histogram;
using metrics::Registry;

struct Metrics::Families {
  Registry registry{"sluice_webhook_info"};
  Family<Counter>& requests = registry.Counters("sluice_webhook_requests_total", "Reviews answered");
  Family<Counter>& denials = registry.Counters("sluice_webhook_denials_total", "Denials by rule");
  Family<Histogram>& seconds =
      registry.Histograms("sluice_webhook_request_seconds", "Time to parse, decide and answer one review");
  Family<Counter>& refused = registry.Counters("sluice_webhook_refused_total",
                                               "Requests and connections refused before they were read as a review");
  Gauge& connections = registry.OneGauge("sluice_webhook_connections", "Open connections");
  Gauge& expiry =
      registry.OneGauge("sluice_webhook_certificate_expiry_seconds", "When the certificate in use ends, as Unix time");
  Family<Counter>& reloads =
      registry.Counters("sluice_webhook_reloads_total", "Reloads of the certificate and of the configuration");
  Gauge& nodes = registry.OneGauge("sluice_webhook_gpu_nodes", "Nodes whose GPUs are known");
  Gauge& synced = registry.OneGauge("sluice_webhook_nodes_synced", "1 while the watch of the nodes is up");
  Counter& removed =
      registry.OneCounter("sluice_webhook_refused_pods_removed_total", "Refused pods that this replica removed");
  Gauge& leader = registry.OneGauge("sluice_webhook_leader", "1 on the replica that removes refused pods");
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {}
Metrics::~Metrics() = default;

void Metrics::CountReview(Path path, const Answer& answer, std::chrono::nanoseconds duration) {
  static constexpr const char* kOutcomes[] = {"nothing", "patched", "allowed", "denied", "bad"};
  const std::string name = path == Path::kMutate ? "/mutate" : "/validate";
  families_->requests.Add({{"path", name}, {"outcome", kOutcomes[static_cast<size_t>(answer.outcome)]}}).Increment();
  for (const Rule rule : answer.rules) {
    families_->denials.Add({{"path", name}, {"rule", std::string(RuleName(rule))}}).Increment();
  }
  families_->seconds
      .Add({{"path", name}},
           Histogram::BucketBoundaries{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1})
      .Observe(std::chrono::duration<double>(duration).count());
}

void Metrics::CountRefusal(const char* reason) { families_->refused.Add({{"reason", reason}}).Increment(); }
void Metrics::SetConnections(size_t count) { families_->connections.Set(static_cast<double>(count)); }

void Metrics::CountCertificateReload(bool is_valid, std::chrono::system_clock::time_point not_after) {
  families_->reloads.Add({{"what", "certificate"}, {"result", is_valid ? "loaded" : "bad"}}).Increment();
  if (is_valid) families_->expiry.Set(static_cast<double>(std::chrono::system_clock::to_time_t(not_after)));
}

void Metrics::CountConfigReload(bool is_valid) {
  families_->reloads.Add({{"what", "config"}, {"result", is_valid ? "loaded" : "bad"}}).Increment();
}

void Metrics::SetNodes(size_t known, bool is_synced) {
  families_->nodes.Set(static_cast<double>(known));
  families_->synced.Set(is_synced ? 1 : 0);
}

void Metrics::CountRemovedPod() { families_->removed.Increment(); }
void Metrics::SetLeader(bool is_leader) { families_->leader.Set(is_leader ? 1 : 0); }

std::string Metrics::Text() const { return families_->registry.Text(); }

}  // namespace sluice::webhook
