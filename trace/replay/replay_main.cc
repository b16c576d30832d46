// sluice-replay: the program that a trace becomes. It uses the CUDA driver as any application does, so a preloaded hook
// meets it exactly like one; `sluice replay` starts it under the hook. Results go to stdout, as text or with --json as
// one JSON object.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "player.h"

namespace {

using sluice::replay::Driver;
using sluice::replay::Options;
using sluice::replay::Outcome;
using sluice::replay::StepFigures;

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 != 0 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

// Per-step means of the simulated card's counters over the measured steps.
nlohmann::json SimulatedFigures(const std::vector<StepFigures>& steps, size_t first) {
  const sluice::replay::SimFigures& a = steps[first].before;
  const sluice::replay::SimFigures& b = steps.back().after;
  const auto n = static_cast<double>(steps.size() - first);
  const auto mean = [n](uint64_t from, uint64_t to) { return static_cast<double>(to - from) / n; };
  return {{"kernel_ms", mean(a.kernel_ns, b.kernel_ns) / 1e6},
          {"stall_ms", mean(a.stall_ns, b.stall_ns) / 1e6},
          {"fault_bytes", mean(a.fault_bytes, b.fault_bytes)},
          {"prefetch_in_bytes", mean(a.prefetch_in_bytes, b.prefetch_in_bytes)},
          {"prefetch_out_bytes", mean(a.prefetch_out_bytes, b.prefetch_out_bytes)},
          {"driver_evicted_bytes", mean(a.evicted_bytes, b.evicted_bytes)},
          {"resident_peak_bytes", b.resident_peak_bytes},
          {"misuses", b.misuses},
          {"races", b.races}};
}

nlohmann::json Result(const std::string& file, const sluice::trace::Trace& trace, const Outcome& outcome, int warm_up) {
  nlohmann::json json = {{"trace", file},
                         {"synthetic", (trace.flags & sluice::trace::kFlagSynthetic) != 0},
                         {"launches", outcome.launches},
                         {"whole_ms", outcome.whole_milliseconds}};
  std::vector<double> all;
  for (const StepFigures& step : outcome.steps) all.push_back(step.milliseconds);
  const size_t first = std::min<size_t>(static_cast<size_t>(warm_up), all.empty() ? 0 : all.size() - 1);
  json["steps_ms"] = all;
  json["median_ms"] = Median({all.begin() + static_cast<std::ptrdiff_t>(first), all.end()});
  if (!outcome.steps.empty() && outcome.steps[0].before.size != 0) {
    json["simulated"] = SimulatedFigures(outcome.steps, first);
  }
  return json;
}

int Play(const std::string& file, const Options& options, int warm_up, bool as_json) {
  const auto trace = sluice::trace::Load(file);
  if (!trace.ok()) {
    std::fprintf(stderr, "sluice-replay: %s\n", std::string(trace.status().message()).c_str());
    return 1;
  }
  if (!trace->complete) std::fprintf(stderr, "sluice-replay: %s was cut off: what is there is played\n", file.c_str());
  Driver driver;
  if (const std::string error = driver.Load(); !error.empty()) {
    std::fprintf(stderr, "sluice-replay: %s\n", error.c_str());
    return 1;
  }
  const Outcome outcome = sluice::replay::Player(driver, *trace, options).Play();
  const nlohmann::json json = Result(file, *trace, outcome, warm_up);
  if (as_json) {
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("%s%s: %llu launches, %zu steps, median step %.2f ms\n", file.c_str(),
                json["synthetic"] ? " (synthetic)" : "", static_cast<unsigned long long>(outcome.launches),
                outcome.steps.size(), json["median_ms"].get<double>());
    if (const auto sim = json.find("simulated"); sim != json.end()) {
      const auto mib = [&sim](const char* key) { return sim->at(key).get<double>() / (1 << 20); };
      std::printf(
          "  a step: kernels %.2f ms, stalled %.2f ms; faults %.1f MiB, fetched %.1f MiB, evicted %.1f MiB, by the "
          "driver %.1f MiB\n",
          sim->at("kernel_ms").get<double>(), sim->at("stall_ms").get<double>(), mib("fault_bytes"),
          mib("prefetch_in_bytes"), mib("prefetch_out_bytes"), mib("driver_evicted_bytes"));
    }
  }
  std::fflush(stdout);
  if (!outcome.error.empty()) {
    std::fprintf(stderr, "sluice-replay: %s: %s\n", file.c_str(), outcome.error.c_str());
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Plays a sluice trace on the GPU that this process sees", "sluice-replay");
  std::string file;
  Options options;
  int warm_up = 1;
  bool as_json = false, no_report = false, no_objects = false, no_pace = false;
  app.add_option("FILE", file, "trace")->required();
  app.add_option("--device", options.device, "device ordinal")->check(CLI::Range(0, 63));
  app.add_option("--steps", options.steps, "play only the first N steps")->check(CLI::Range(1, 1000000));
  app.add_option("--warm-up", warm_up, "steps that the figures leave out")->check(CLI::Range(0, 1000000));
  app.add_flag("--json", as_json, "one JSON object on stdout");
  app.add_flag("--no-reports", no_report, "do not tell the allocator's reports (as a framework without them)");
  app.add_flag("--no-objects", no_objects, "do not name tensors to the simulated card's misuse detector");
  app.add_flag("--no-pace", no_pace, "do not play the host's own pauses between calls");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "sluice-replay: %s\n", error.what());
    return 2;
  }
  options.report = !no_report;
  options.objects = !no_objects;
  options.pace = !no_pace;
  return Play(file, options, warm_up, as_json);
}
