#include "deviceplugin/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <atomic>
#include <set>

#include "common/mutex.h"
#include "sluice/names.h"
#include "sluice/version.h"

namespace sluice::deviceplugin {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;

const prometheus::Histogram::BucketBoundaries& Buckets() {
  static const auto* buckets = new prometheus::Histogram::BucketBoundaries{0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005,
                                                                           0.01,   0.025,   0.1,    1,     10};
  return *buckets;
}

}  // namespace

struct Metrics::Families {
  std::atomic<uint64_t> total_calls = 0;
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& registrations = BuildCounter()
                                                               .Name("sluice_plugin_registrations_total")
                                                               .Help("Registrations with kubelet by result.")
                                                               .Register(registry);
  prometheus::Family<prometheus::Counter>& calls = BuildCounter()
                                                       .Name("sluice_plugin_calls_total")
                                                       .Help("Calls from kubelet by method and result.")
                                                       .Register(registry);
  prometheus::Family<prometheus::Histogram>& seconds = BuildHistogram()
                                                           .Name("sluice_plugin_call_seconds")
                                                           .Help("Duration of kubelet's calls, measured in the plugin.")
                                                           .Register(registry);
  prometheus::Family<prometheus::Counter>& refusals =
      BuildCounter().Name("sluice_plugin_refusals_total").Help("Refused containers by reason.").Register(registry);
  prometheus::Family<prometheus::Gauge>& units = BuildGauge()
                                                     .Name("sluice_plugin_units")
                                                     .Help("Units (percent of a GPU) by GPU, state and reason.")
                                                     .Register(registry);
  prometheus::Family<prometheus::Gauge>& memory =
      BuildGauge().Name("sluice_plugin_gpu_memory_bytes").Help("Memory of each GPU.").Register(registry);
  prometheus::Family<prometheus::Counter>& collected =
      BuildCounter()
          .Name("sluice_plugin_collected_total")
          .Help("Unreferenced allocations and library versions removed; kind=failure: removals that failed.")
          .Register(registry);
  prometheus::Gauge& lost = BuildGauge()
                                .Name("sluice_plugin_nvml_stuck_calls")
                                .Help("NVML calls that have not returned.")
                                .Register(registry)
                                .Add({});
  prometheus::Gauge& streams = BuildGauge()
                                   .Name("sluice_plugin_watch_streams")
                                   .Help("Open ListAndWatch streams: 1 while kubelet is connected.")
                                   .Register(registry)
                                   .Add({});
  Mutex mutex;
  std::set<prometheus::Gauge*> card_gauges SLUICE_GUARDED_BY(mutex);
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {
  BuildGauge()
      .Name("sluice_plugin_build_info")
      .Help("1, with the version as label.")
      .Register(families_->registry)
      .Add({{"version", SLUICE_VERSION}})
      .Set(1);
  // Exported from the start, so that a rate over them counts the first failure.
  for (const char* result : {"ok", "failed"}) families_->registrations.Add({{"result", result}});
}
Metrics::~Metrics() = default;

void Metrics::CountRegistration(bool ok) {
  families_->registrations.Add({{"result", ok ? "ok" : "failed"}}).Increment();
}

void Metrics::CountCall(std::string_view method, bool ok, double seconds) {
  const std::string name(method);
  ++families_->total_calls;
  families_->calls.Add({{"method", name}, {"result", ok ? "ok" : "refused"}}).Increment();
  families_->seconds.Add({{"method", name}}, Buckets()).Observe(seconds);
}

uint64_t Metrics::calls() const { return families_->total_calls; }

void Metrics::CountRefusal(std::string_view reason) {
  families_->refusals.Add({{"reason", std::string(reason)}}).Increment();
}

void Metrics::SetCards(const Inventory& inventory) {
  MutexLock lock(families_->mutex);
  std::set<prometheus::Gauge*> now;
  for (const Card& card : inventory.cards) {
    auto& gauge = families_->units.Add(
        {{"gpu", card.uuid}, {"state", std::string(ToString(card.state))}, {"reason", card.reason}});
    gauge.Set(SLUICE_UNITS_PER_GPU);
    now.insert(&gauge);
    families_->memory.Add({{"gpu", card.uuid}}).Set(static_cast<double>(card.memory_bytes));
  }
  for (prometheus::Gauge* old : families_->card_gauges) {
    if (!now.contains(old)) families_->units.Remove(old);
  }
  families_->card_gauges = std::move(now);
}

void Metrics::CountCollected(std::string_view kind, int count) {
  families_->collected.Add({{"kind", std::string(kind)}}).Increment(count);
}

void Metrics::SetStuckNvmlCalls(int threads) { families_->lost.Set(threads); }
void Metrics::SetStreams(int open) { families_->streams.Set(open); }

std::string Metrics::Text() const { return prometheus::TextSerializer().Serialize(families_->registry.Collect()); }

}  // namespace sluice::deviceplugin
