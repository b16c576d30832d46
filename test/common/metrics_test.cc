// Prometheus' text of metrics that are collected, and of metrics that are counted.
#include <array>
#include <catch2/catch_test_macros.hpp>
#include <string>

#include "common/metrics/registry.h"
#include "common/metrics/snapshot.h"
#include "sluice/version.h"

namespace sluice::metrics {
namespace {

TEST_CASE("metrics of one name are one family, in the order of their first") {
  Snapshot out;
  CHECK(out.Text().empty());
  out.Counter("b_total", "Second.", {{"gpu", "GPU-a"}}, 3);
  out.Gauge("a", "First \\ of all.", {}, 0.5);
  out.Counter("b_total", "Second.", {{"gpu", "with \"quotes\""}}, 4);
  CHECK(out.Text() ==
        "# HELP b_total Second.\n# TYPE b_total counter\n"
        "b_total{gpu=\"GPU-a\"} 3\nb_total{gpu=\"with \\\"quotes\\\"\"} 4\n"
        "# HELP a First \\ of all.\n# TYPE a gauge\na 0.5\n");
  REQUIRE(out.families().size() == 2);
  CHECK(out.families()[0].metric.size() == 2);
}

TEST_CASE("a histogram's buckets count all values below their bounds") {
  Snapshot out;
  out.Histogram("h", "H.", std::array{0.5, 1.0}, std::array<uint64_t, 3>{2, 0, 5}, 12.5);
  CHECK(out.Text() ==
        "# HELP h H.\n# TYPE h histogram\nh_count 7\nh_sum 12.5\n"
        "h_bucket{le=\"0.5\"} 2\nh_bucket{le=\"1\"} 2\nh_bucket{le=\"+Inf\"} 7\n");
}

TEST_CASE("a registry keeps its counts, and has the program's version") {
  Registry registry("program_info");
  Counter& one = registry.OneCounter("one_total", "One.");
  Family<Counter>& calls = registry.Counters("calls_total", "Calls.");
  registry.OneGauge("level", "Level.").Set(2);
  registry.Histograms("seconds", "Seconds.").Add({}, Histogram::BucketBoundaries{1}).Observe(0.25);
  one.Increment();
  for (int i = 0; i < 2; ++i) calls.Add({{"call", "bind"}}).Increment();
  const std::string text = registry.Text();
  for (const std::string& line :
       {std::string("one_total 1\n"), std::string("calls_total{call=\"bind\"} 2\n"), std::string("level 2\n"),
        std::string("seconds_bucket{le=\"1\"} 1\n"), std::string("program_info{version=\"" SLUICE_VERSION "\"} 1\n")})
    CHECK(text.find("\n" + line) != std::string::npos);
}

}  // namespace
}  // namespace sluice::metrics
