// sluice-replay: plays a trace as a CUDA program. It uses the CUDA driver as any application does, so that a preloaded
// hook treats it like one; `sluice replay` starts it under the hook. Results go to stdout, as text or with --json as
// one JSON object.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <thread>

#include "common/command_line.h"
#include "figures.h"
#include "player.h"
#include "sluice/version.h"

namespace {

using sluice::replay::Driver;
using sluice::replay::Options;
using sluice::replay::Outcome;

int Play(const std::string& file, const Options& options, int warm_up, bool as_json) {
  const auto trace = sluice::trace::Load(file);
  if (!trace.ok()) {
    std::fprintf(stderr, "sluice-replay: %s\n", std::string(trace.status().message()).c_str());
    return 1;
  }
  if (!trace->complete) std::fprintf(stderr, "sluice-replay: %s was cut off: playing up to the cut\n", file.c_str());
  Driver driver;
  if (const std::string error = driver.Load(); !error.empty()) {
    std::fprintf(stderr, "sluice-replay: %s\n", error.c_str());
    return 1;
  }
  const Outcome outcome = sluice::replay::Player(driver, *trace, options).Play();
  const nlohmann::json json = sluice::replay::Figures(file, *trace, outcome, warm_up);
  if (as_json) {
    std::printf("%s\n", json.dump().c_str());
  } else {
    std::printf("%s%s: %llu launches, %zu step%s, median step %.2f ms\n", file.c_str(),
                json["synthetic"] ? " (synthetic)" : "", static_cast<unsigned long long>(outcome.launches),
                outcome.steps.size(), outcome.steps.size() == 1 ? "" : "s", json["median_ms"].get<double>());
    if (const auto sim = json.find("simulated"); sim != json.end()) {
      const auto mib = [&sim](const char* key) { return sim->at(key).get<double>() / (1 << 20); };
      std::printf(
          "  a step: kernels %.2f ms, stalled %.2f ms; faults %.1f MiB, fetched %.1f MiB, evicted %.1f MiB, by the "
          "driver %.1f MiB\n",
          sim->at("kernel_ms").get<double>(), sim->at("stall_ms").get<double>(), mib("fault_bytes"),
          mib("prefetch_in_bytes"), mib("prefetch_out_bytes"), mib("driver_evicted_bytes"));
      std::printf("  total: fetched %.1f MiB, of which %.1f MiB were never touched\n", mib("total_in_bytes"),
                  mib("unused_in_bytes"));
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
  int warm_up = 1, hold = 0;
  bool as_json = false, no_report = false, no_objects = false, no_pace = false;
  app.set_version_flag("--version", "sluice-replay " SLUICE_VERSION);
  app.add_option("FILE", file, "trace")->required();
  app.add_option("--device", options.device, "device ordinal")->check(CLI::Range(0, 63));
  app.add_option("--steps", options.steps, "play only the first N steps")->check(CLI::Range(1, 1000000));
  app.add_option("--warm-up", warm_up, "steps that the figures leave out")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  app.add_flag("--json", as_json, "one JSON object on stdout");
  app.add_flag("--no-reports", no_report, "do not play the allocator's reports (as a framework without them)");
  app.add_flag("--no-objects", no_objects, "do not name tensors to the simulated GPU's misuse detector");
  app.add_option("--hold", hold, "seconds that the process stays after the last step")->check(CLI::Range(0, 100000));
  app.add_flag("--no-pace", no_pace, "do not play the host's own pauses between calls");
  app.add_option("--host-pace", options.host_pace, "factor on the length of these pauses: another host's pace")
      ->check(sluice::Between(1e-3, 1e3))
      ->capture_default_str();
  if (const auto ended = sluice::ReadCommandLine(app, "sluice-replay", argc, argv)) return *ended;
  options.report = !no_report;
  options.objects = !no_objects;
  options.pace = !no_pace;
  const int status = Play(file, options, warm_up, as_json);
  std::this_thread::sleep_for(std::chrono::seconds(hold));
  return status;
}
