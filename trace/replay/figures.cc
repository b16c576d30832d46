#include "figures.h"

#include <algorithm>
#include <vector>

namespace sluice::replay {
namespace {

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Per-step means of the simulated GPU's counters over the measured steps.
nlohmann::json SimulatedFigures(const std::vector<StepFigures>& steps, size_t first) {
  const SimFigures& a = steps[first].before;
  const SimFigures& b = steps.back().after;
  const auto n = static_cast<double>(steps.size() - first);
  const auto mean = [n](uint64_t from, uint64_t to) { return static_cast<double>(to - from) / n; };
  return {{"kernel_ms", mean(a.kernel_ns, b.kernel_ns) / 1e6},
          {"stall_ms", mean(a.stall_ns, b.stall_ns) / 1e6},
          {"fault_bytes", mean(a.fault_bytes, b.fault_bytes)},
          {"prefetch_in_bytes", mean(a.prefetch_in_bytes, b.prefetch_in_bytes)},
          {"prefetch_out_bytes", mean(a.prefetch_out_bytes, b.prefetch_out_bytes)},
          {"driver_evicted_bytes", mean(a.evicted_bytes, b.evicted_bytes)},
          {"total_in_bytes", b.prefetch_in_bytes},       // of the whole run, not a step
          {"unused_in_bytes", b.prefetch_unused_bytes},  // of those: evicted untouched, or untouched at the end
          {"total_out_bytes", b.prefetch_out_bytes},
          {"total_fault_bytes", b.fault_bytes},
          {"remote_bytes", mean(a.remote_bytes, b.remote_bytes)},
          {"resident_peak_bytes", b.resident_peak_bytes},
          {"misuses", b.misuses},
          {"races", b.races}};
}

}  // namespace

nlohmann::json Figures(const std::string& file, const trace::Trace& trace, const Outcome& outcome, int warm_up) {
  nlohmann::json json = {{"trace", file},
                         {"synthetic", (trace.flags & trace::kFlagSynthetic) != 0},
                         {"launches", outcome.launches},
                         {"whole_ms", outcome.whole_milliseconds}};
  std::vector<double> all;
  all.reserve(outcome.steps.size());
  for (const StepFigures& step : outcome.steps) all.push_back(step.milliseconds);
  const size_t first = std::min<size_t>(static_cast<size_t>(warm_up), all.empty() ? 0 : all.size() - 1);
  json["steps_ms"] = all;
  json["median_ms"] = Median({all.begin() + static_cast<std::ptrdiff_t>(first), all.end()});
  if (!outcome.steps.empty() && outcome.steps[0].before.size != 0) {
    json["simulated"] = SimulatedFigures(outcome.steps, first);
  }
  return json;
}

}  // namespace sluice::replay
