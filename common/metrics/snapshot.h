// Metrics that a program collects when it is asked for them, in Prometheus' text format.
#ifndef SLUICE_COMMON_METRICS_SNAPSHOT_H_
#define SLUICE_COMMON_METRICS_SNAPSHOT_H_

#include <prometheus/metric_family.h>

#include <span>
#include <string>
#include <vector>

namespace sluice::metrics {

using Labels = std::vector<prometheus::ClientMetric::Label>;

// Made anew for each answer. Metrics of one name are one family, in the order of their first.
class Snapshot {
 public:
  void Gauge(const char* name, const char* help, const Labels& labels, double value);
  void Counter(const char* name, const char* help, const Labels& labels, double value);
  // `counts`: of each bucket alone. The last one is of all values above the last bound.
  void Histogram(const char* name, const char* help, std::span<const double> bounds, std::span<const uint64_t> counts,
                 double sum);

  const std::vector<prometheus::MetricFamily>& families() const { return families_; }
  std::string Text() const;

 private:
  prometheus::ClientMetric& Add(const char* name, const char* help, prometheus::MetricType type, const Labels& labels);
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace sluice::metrics

#endif  // SLUICE_COMMON_METRICS_SNAPSHOT_H_
