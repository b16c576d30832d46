#include "common/metrics/snapshot.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <limits>

namespace sluice::metrics {

using prometheus::MetricFamily;
using prometheus::MetricType;

void Snapshot::Gauge(const char* name, const char* help, const Labels& labels, double value) {
  Add(name, help, MetricType::Gauge, labels).gauge.value = value;
}

void Snapshot::Counter(const char* name, const char* help, const Labels& labels, double value) {
  Add(name, help, MetricType::Counter, labels).counter.value = value;
}

void Snapshot::Histogram(const char* name, const char* help, std::span<const double> bounds,
                         std::span<const uint64_t> counts, double sum) {
  auto& histogram = Add(name, help, MetricType::Histogram, {}).histogram;
  uint64_t below = 0;  // Prometheus' buckets count all values below their bounds
  for (size_t i = 0; i < counts.size(); ++i) {
    below += counts[i];
    histogram.bucket.push_back({below, i < bounds.size() ? bounds[i] : std::numeric_limits<double>::infinity()});
  }
  histogram.sample_count = below;
  histogram.sample_sum = sum;
}

std::string Snapshot::Text() const { return prometheus::TextSerializer().Serialize(families_); }

prometheus::ClientMetric& Snapshot::Add(const char* name, const char* help, MetricType type, const Labels& labels) {
  auto family = std::ranges::find(families_, name, &MetricFamily::name);
  if (family == families_.end()) family = families_.insert(families_.end(), {name, help, type, {}});
  family->metric.emplace_back().label = labels;
  return family->metric.back();
}

}  // namespace sluice::metrics
