#include "webhook/server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "sluice/version.h"

namespace sluice::webhook {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;

struct Metrics::Families {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      BuildCounter().Name("sluice_webhook_requests_total").Help("Reviews answered").Register(registry);
  prometheus::Family<prometheus::Counter>& denials =
      BuildCounter().Name("sluice_webhook_denials_total").Help("Denials by rule").Register(registry);
  prometheus::Family<prometheus::Histogram>& seconds = BuildHistogram()
                                                           .Name("sluice_webhook_request_seconds")
                                                           .Help("Time to parse, decide and answer one review")
                                                           .Register(registry);
  prometheus::Family<prometheus::Counter>& refused =
      BuildCounter()
          .Name("sluice_webhook_refused_total")
          .Help("Requests and connections refused before they were read as a review")
          .Register(registry);
  prometheus::Gauge& connections =
      BuildGauge().Name("sluice_webhook_connections").Help("Open connections").Register(registry).Add({});
  prometheus::Gauge& expiry = BuildGauge()
                                  .Name("sluice_webhook_certificate_expiry_seconds")
                                  .Help("When the certificate in use ends, as Unix time")
                                  .Register(registry)
                                  .Add({});
  prometheus::Family<prometheus::Counter>& reloads = BuildCounter()
                                                         .Name("sluice_webhook_reloads_total")
                                                         .Help("Reloads of the certificate and of the configuration")
                                                         .Register(registry);
  prometheus::Gauge& nodes =
      BuildGauge().Name("sluice_webhook_gpu_nodes").Help("Nodes whose GPUs are known").Register(registry).Add({});
  prometheus::Gauge& synced = BuildGauge()
                                  .Name("sluice_webhook_nodes_synced")
                                  .Help("1 while the watch of the nodes is up")
                                  .Register(registry)
                                  .Add({});
  prometheus::Counter& removed = BuildCounter()
                                     .Name("sluice_webhook_refused_pods_removed_total")
                                     .Help("Refused pods that this replica removed")
                                     .Register(registry)
                                     .Add({});
  prometheus::Gauge& leader = BuildGauge()
                                  .Name("sluice_webhook_leader")
                                  .Help("1 on the replica that removes refused pods")
                                  .Register(registry)
                                  .Add({});
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {
  BuildGauge()
      .Name("sluice_webhook_info")
      .Help("The webhook's version")
      .Register(families_->registry)
      .Add({{"version", SLUICE_VERSION}})
      .Set(1);
}
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
           prometheus::Histogram::BucketBoundaries{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 1})
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

std::string Metrics::Text() const { return prometheus::TextSerializer().Serialize(families_->registry.Collect()); }

}  // namespace sluice::webhook
