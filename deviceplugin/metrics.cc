#include "deviceplugin/metrics.h"

#include <atomic>
#include <set>

#include "common/metrics/registry.h"
#include "common/mutex.h"
#include "sluice/names.h"

namespace sluice::deviceplugin {
namespace {

using metrics::Counter;
using metrics::Family;
using metrics::Gauge;
using metrics::Histogram;
using metrics::Registry;

const Histogram::BucketBoundaries& Buckets() {
  static const auto* buckets =
      new Histogram::BucketBoundaries{0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.1, 1, 10};
  return *buckets;
}

}  // namespace

struct Metrics::Families {
  std::atomic<uint64_t> total_calls = 0;
  Registry registry{"sluice_plugin_build_info"};
  Family<Counter>& registrations =
      registry.Counters("sluice_plugin_registrations_total", "Registrations with kubelet by result.");
  Family<Counter>& calls = registry.Counters("sluice_plugin_calls_total", "Calls from kubelet by method and result.");
  Family<Histogram>& seconds =
      registry.Histograms("sluice_plugin_call_seconds", "Duration of kubelet's calls, measured in the plugin.");
  Family<Counter>& refusals = registry.Counters("sluice_plugin_refusals_total", "Refused containers by reason.");
  Family<Gauge>& units = registry.Gauges("sluice_plugin_units", "Units (percent of a GPU) by GPU, state and reason.");
  Family<Gauge>& memory = registry.Gauges("sluice_plugin_gpu_memory_bytes", "Memory of each GPU.");
  Family<Counter>& collected =
      registry.Counters("sluice_plugin_collected_total",
                        "Unreferenced allocations and library versions removed; kind=failure: removals that failed.");
  Gauge& lost = registry.OneGauge("sluice_plugin_nvml_stuck_calls", "NVML calls that have not returned.");
  Gauge& streams =
      registry.OneGauge("sluice_plugin_watch_streams", "Open ListAndWatch streams: 1 while kubelet is connected.");
  Mutex mutex;
  std::set<Gauge*> card_gauges SLUICE_GUARDED_BY(mutex);
};

Metrics::Metrics() : families_(std::make_unique<Families>()) {
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
  std::set<Gauge*> now;
  for (const Card& card : inventory.cards) {
    auto& gauge = families_->units.Add(
        {{"gpu", card.uuid}, {"state", std::string(ToString(card.state))}, {"reason", card.reason}});
    gauge.Set(SLUICE_UNITS_PER_GPU);
    now.insert(&gauge);
    families_->memory.Add({{"gpu", card.uuid}}).Set(static_cast<double>(card.memory_bytes));
  }
  for (Gauge* old : families_->card_gauges) {
    if (!now.contains(old)) families_->units.Remove(old);
  }
  families_->card_gauges = std::move(now);
}

void Metrics::CountCollected(std::string_view kind, int count) {
  families_->collected.Add({{"kind", std::string(kind)}}).Increment(count);
}

void Metrics::SetStuckNvmlCalls(int threads) { families_->lost.Set(threads); }
void Metrics::SetStreams(int open) { families_->streams.Set(open); }

std::string Metrics::Text() const { return families_->registry.Text(); }

}  // namespace sluice::deviceplugin
