// Metrics that a program counts as things happen, in Prometheus' text format. Thread-safe.
#ifndef SLUICE_COMMON_METRICS_REGISTRY_H_
#define SLUICE_COMMON_METRICS_REGISTRY_H_

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <string>

#include "sluice/version.h"

namespace sluice::metrics {

template <typename Metric>
using Family = prometheus::Family<Metric>;
using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;

class Registry {
 public:
  // `info` is the name of a metric that is 1, with the program's version as label.
  explicit Registry(const char* info) {
    Gauges(info, "1, with the program's version").Add({{"version", SLUICE_VERSION}}).Set(1);
  }

  // With labels. The names are those of docs/operate/metrics.md.
  Family<Counter>& Counters(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
  }
  Family<Gauge>& Gauges(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
  }
  Family<Histogram>& Histograms(const char* name, const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
  }
  // Without.
  Counter& OneCounter(const char* name, const char* help) { return Counters(name, help).Add({}); }
  Gauge& OneGauge(const char* name, const char* help) { return Gauges(name, help).Add({}); }

  std::string Text() const { return prometheus::TextSerializer().Serialize(registry_.Collect()); }

 private:
  prometheus::Registry registry_;
};

}  // namespace sluice::metrics

#endif  // SLUICE_COMMON_METRICS_REGISTRY_H_
