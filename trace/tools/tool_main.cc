// sluice-trace: works on trace files between recording and replay.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>

#include "bound.h"
#include "common/command_line.h"
#include "explain.h"
#include "interval.h"
#include "merge.h"
#include "settle.h"
#include "sluice/version.h"
#include "synthetic.h"
#include "trace/reader.h"
#include "working_set.h"

namespace {

using sluice::trace::Trace;

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "sluice-trace: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Info(const std::string& path) {
  const absl::StatusOr<Trace> trace = sluice::trace::Load(path);
  if (!trace.ok()) return Report(trace.status());
  const sluice::trace::LiveBytes live = sluice::trace::PeakLive(*trace);
  uint64_t durations = 0, truths = 0, kernel_ns = 0, touched = 0, accesses = 0;
  for (const auto& launch : trace->launches) {
    durations += launch.duration_ns != 0 ? 1 : 0;
    kernel_ns += launch.duration_ns;
    truths += launch.has_truth ? 1 : 0;
    accesses += launch.accesses.empty() ? 0 : 1;
    for (const auto& range : launch.truth) touched += range.bytes;
  }
  std::printf("%s: version %u, %s%s\n", path.c_str(), sluice::trace::kVersion,
              (trace->flags & sluice::trace::kFlagSynthetic) != 0 ? "SYNTHETIC" : "recorded",
              trace->complete ? "" : ", cut off before its end");
  for (const auto& [key, value] : trace->meta) std::printf("  %s: %s\n", key.c_str(), value.c_str());
  std::printf(
      "  %zu events, %zu functions, %zu steps, %zu launches (%llu with duration, %llu with truth, %llu with "
      "accesses)\n",
      trace->events.size(), trace->functions.size(), trace->step_names.size(), trace->launches.size(),
      static_cast<unsigned long long>(durations), static_cast<unsigned long long>(truths),
      static_cast<unsigned long long>(accesses));
  size_t allocations = 0, ordered = 0;
  for (const auto& event : trace->events) {
    allocations += event.type == sluice::trace::Type::kAlloc;
    ordered +=
        event.type == sluice::trace::Type::kAlloc && event.c == static_cast<uint64_t>(sluice::trace::AllocKind::kAsync);
  }
  std::printf("  %zu allocations, %zu of them in a stream's order\n", allocations, ordered);
  std::printf("  peak live: %.2f GiB allocated, %.2f GiB reported; kernels %.1f ms; touched %.2f GiB\n",
              static_cast<double>(live.allocated_peak) / (1 << 30), static_cast<double>(live.reported_peak) / (1 << 30),
              static_cast<double>(kernel_ns) / 1e6, static_cast<double>(touched) / (1 << 30));
  return 0;
}

int Settle(const std::string& from, const std::string& to, int steps) {
  absl::StatusOr<Trace> raw = sluice::trace::Load(from);
  if (!raw.ok()) return Report(raw.status());
  const absl::StatusOr<sluice::trace::Settled> settled = sluice::trace::Settle(*std::move(raw));
  if (!settled.ok())
    return Report(absl::Status(settled.status().code(), from + ": " + std::string(settled.status().message())));
  constexpr double kGi = 1 << 30;
  std::printf(
      "%s: %llu launches measured: %.3f GiB faulted, %.3f GiB fetched beside them in the same tensor, %.3f GiB in "
      "other tensors left out;\n"
      "  carried over to %llu launches of like steps, to %llu of other steps by kernel and shape, %llu without truth",
      from.c_str(), static_cast<unsigned long long>(settled->measured),
      static_cast<double>(settled->faulted_bytes) / kGi, static_cast<double>(settled->guessed_bytes) / kGi,
      static_cast<double>(settled->refused_bytes) / kGi, static_cast<unsigned long long>(settled->carried_over),
      static_cast<unsigned long long>(settled->carried_by_shape), static_cast<unsigned long long>(settled->without));
  if (settled->checked_bytes != 0) {
    std::printf("; for launches that were measured too, %.3f %% of %.3f GiB differ",
                100.0 * static_cast<double>(settled->differing_bytes) / static_cast<double>(settled->checked_bytes),
                static_cast<double>(settled->checked_bytes) / kGi);
  }
  std::printf("\n");
  if (settled->read_bytes + settled->written_bytes + settled->both_bytes != 0) {
    std::printf("  read only %.3f GiB, written only %.3f GiB, both %.3f GiB\n",
                static_cast<double>(settled->read_bytes) / kGi, static_cast<double>(settled->written_bytes) / kGi,
                static_cast<double>(settled->both_bytes) / kGi);
  } else {
    std::printf("  no directions\n");
  }
  int seen = 0;
  return Report(sluice::trace::Write(settled->trace, to, [&seen, steps](const sluice::trace::Event& event) {
    seen += event.type == sluice::trace::Type::kStep ? 1 : 0;
    return steps == 0 || seen <= steps;
  }));
}

int Explain(const std::string& path, const std::string& replayed_path, bool as_json) {
  const absl::StatusOr<Trace> source = sluice::trace::Load(path), replayed = sluice::trace::Load(replayed_path);
  if (!source.ok()) return Report(source.status());
  if (!replayed.ok()) return Report(replayed.status());
  const auto explained = sluice::trace::Explain(*source, *replayed);
  if (!explained.ok()) return Report(explained.status());
  const sluice::trace::WorkingSetCheck working_set = sluice::trace::CheckWorkingSet(*source, *replayed);
  if (!as_json) {
    std::fputs(sluice::trace::WorkingSetText(working_set).c_str(), stdout);
    std::fputs(sluice::trace::ExplanationText(*explained).c_str(), stdout);
    return 0;
  }
  uint64_t touched = 0, predicted = 0, covered = 0;
  for (const auto& launch : *explained) {
    if (!launch.has_truth) continue;
    touched += launch.touched_bytes;
    predicted += launch.predicted_bytes;
    covered += launch.covered_bytes;
  }
  std::printf(
      "{\"touched_bytes\": %llu, \"predicted_bytes\": %llu, \"covered_bytes\": %llu, "
      "\"working_set_bytes\": %llu, \"working_set_touched_bytes\": %llu}\n",
      static_cast<unsigned long long>(touched), static_cast<unsigned long long>(predicted),
      static_cast<unsigned long long>(covered), static_cast<unsigned long long>(working_set.estimated_bytes),
      static_cast<unsigned long long>(working_set.touched_bytes));
  return 0;
}

// Rates of managed memory on an H200 with driver 580 (docs/design/driver.md), bytes a second: out, and both directions
// together.
constexpr double kManagedOutPerSecond = 15.3e9, kManagedBothPerSecond = 28e9;

int Bound(const std::string& path, double budget_gib, double link, bool as_json) {
  using sluice::trace::Policy;
  const absl::StatusOr<Trace> trace = sluice::trace::Load(path);
  if (!trace.ok()) return Report(trace.status());
  if (trace->step_names.size() < 2) return Report(absl::InvalidArgumentError(path + ": fewer than two steps"));
  const auto budget = static_cast<uint64_t>(budget_gib * (1 << 30));
  if (as_json) {
    const std::vector<sluice::trace::StepTraffic> steps = sluice::trace::Traffic(*trace, budget, Policy::kBelady);
    const sluice::trace::StepTraffic& step = steps.back();
    const sluice::trace::LiveBytes live = sluice::trace::PeakLive(*trace);
    std::printf(
        "{\"in_bytes\": %llu, \"out_bytes\": %llu, \"clean_out_bytes\": %llu, \"kernel_ms\": %.4f, \"limit_ms\": %.4f, "
        "\"managed_limit_ms\": %.4f, \"peak_live_bytes\": %llu, \"dropped_bytes\": %llu}\n",
        static_cast<unsigned long long>(step.in_bytes), static_cast<unsigned long long>(step.out_bytes),
        static_cast<unsigned long long>(step.clean_out_bytes), static_cast<double>(step.kernel_ns) / 1e6,
        sluice::trace::LinkLimitMs(step, link * 1e9),
        sluice::trace::ManagedLimitMs(step, kManagedOutPerSecond, kManagedBothPerSecond),
        static_cast<unsigned long long>(live.reported_peak != 0 ? live.reported_peak : live.allocated_peak),
        // Of the step before: memory that is live at the end of the trace is freed only after it.
        static_cast<unsigned long long>(steps[steps.size() - 2].dropped_bytes));
    return 0;
  }
  for (const auto& [policy, name] :
       {std::pair(Policy::kBelady, "belady"), {Policy::kLru, "lru"}, {Policy::kFifo, "fifo"}}) {
    // The last step: the others warm up.
    const std::vector<sluice::trace::StepTraffic> steps = sluice::trace::Traffic(*trace, budget, policy);
    const sluice::trace::StepTraffic& step = steps.back();
    std::printf(
        "%-7s budget %.2f GiB: in %.3f GiB, out %.3f GiB a step, clean evictions %.3f GiB, live pages dropped %.3f "
        "GiB; kernels %.2f ms, at least %.2f ms, with managed memory %.2f ms\n",
        name, budget_gib, static_cast<double>(step.in_bytes) / (1 << 30),
        static_cast<double>(step.out_bytes) / (1 << 30), static_cast<double>(step.clean_out_bytes) / (1 << 30),
        static_cast<double>(steps[steps.size() - 2].dropped_bytes) / (1 << 30),
        static_cast<double>(step.kernel_ns) / 1e6, sluice::trace::LinkLimitMs(step, link * 1e9),
        sluice::trace::ManagedLimitMs(step, kManagedOutPerSecond, kManagedBothPerSecond));
  }
  return 0;
}

int Interval(const std::string& path, const std::string& kernel, const std::string& between) {
  const absl::StatusOr<Trace> trace = sluice::trace::Load(path);
  if (!trace.ok()) return Report(trace.status());
  std::vector<uint64_t> all = sluice::trace::Intervals(*trace, kernel, between);
  if (all.empty())
    return Report(absl::NotFoundError(path + ": no step after the first has launches of '" + kernel + "', '" + between +
                                      "' and '" + kernel + "' in this order"));
  const auto middle = all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2);
  std::nth_element(all.begin(), middle, all.end());
  std::printf("{\"intervals\": %zu, \"median_us\": %.2f}\n", all.size(), static_cast<double>(*middle) / 1e3);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Inspects, packs, makes and cuts sluice traces", "sluice-trace");
  app.set_version_flag("--version", "sluice-trace " SLUICE_VERSION);
  app.require_subcommand(1);
  int status = 0;

  std::string file, out;
  CLI::App* info = app.add_subcommand("info", "print a trace's contents in short");
  info->add_option("FILE", file, "trace")->required();
  info->callback([&] { status = Info(file); });

  int level = 19;
  CLI::App* pack = app.add_subcommand("pack", "compress a trace");
  pack->add_option("FROM", file, "trace")->required();
  pack->add_option("TO", out, "packed trace")->required();
  pack->add_option("--level", level, "zstd level")->check(CLI::Range(1, 19))->capture_default_str();
  pack->callback([&] { status = Report(sluice::trace::Compress(file, out, level)); });

  sluice::trace::ModelShape shape;
  std::string kind;
  CLI::App* synth = app.add_subcommand("synth", "make a synthetic trace");
  synth->add_option("KIND", kind, "transformer or decode")->required()->check(CLI::IsMember({"transformer", "decode"}));
  synth->add_option("TO", out, "trace")->required();
  synth->add_option("--layers", shape.layers, "layers")->check(CLI::Range(1, 1000))->capture_default_str();
  synth->add_option("--width", shape.width, "model width")
      ->check(CLI::Range(uint64_t{64}, uint64_t{65536}))
      ->capture_default_str();
  synth->add_option("--tokens", shape.tokens, "tokens of a batch, or of the cache")
      ->check(CLI::Range(uint64_t{1}, uint64_t{1} << 24))
      ->capture_default_str();
  synth->add_option("--vocabulary", shape.vocabulary, "vocabulary")
      ->check(CLI::Range(uint64_t{16}, uint64_t{1} << 20))
      ->capture_default_str();
  synth->add_option("--steps", shape.steps, "steps")->check(CLI::Range(1, 10000))->capture_default_str();
  synth->callback([&] {
    status =
        Report(kind == "decode" ? sluice::trace::WriteDecode(out, shape) : sluice::trace::WriteTransformer(out, shape));
  });

  int steps = 0;
  CLI::App* settle = app.add_subcommand("settle", "make a trace of a raw recording (test/gpu/record_traces)");
  settle->add_option("RAW", file, "raw recording")->required();
  settle->add_option("TO", out, "trace")->required();
  settle->add_option("--steps", steps, "keep only the first N steps")->check(CLI::Range(1, 100000));
  settle->callback([&] { status = Settle(file, out, steps); });

  CLI::App* cut = app.add_subcommand("cut", "keep the events before the first step and N steps");
  cut->add_option("FROM", file, "trace")->required();
  cut->add_option("TO", out, "shorter trace")->required();
  cut->add_option("--steps", steps, "steps to keep")->required()->check(CLI::Range(1, 100000));
  cut->callback([&] { status = Report(sluice::trace::Cut(file, out, steps)); });

  int launches = 100;
  double pace = 1;
  std::string kernel, between;
  CLI::App* mark = app.add_subcommand("mark", "let steps begin where the recorded program waited for the GPU");
  mark->add_option("FROM", file, "trace without steps")->required();
  mark->add_option("TO", out, "trace with steps")->required();
  mark->add_option("--launches", launches, "least launches of a step")
      ->check(CLI::Range(1, 10000000))
      ->capture_default_str();
  mark->add_option("--pace", pace, "factor on the host's times, which a recording that times launches makes longer")
      ->check(CLI::Range(0.001, 1000.0))
      ->capture_default_str();
  mark->add_option("--kernel", kernel, "part of a kernel's name: steps begin before its launches instead");
  mark->callback([&] { status = Report(sluice::trace::MarkSteps(file, out, launches, pace, kernel)); });

  bool as_json = false;
  CLI::App* explain = app.add_subcommand("explain", "compare each launch's access set with the pages it touched");
  explain->add_option("FILE", file, "trace with the truth column")->required();
  explain->add_option("REPLAYED", out, "the engine's recording (SLUICE_RECORD) of a replay of FILE")->required();
  explain->add_flag("--json", as_json, "print only the sums, as one JSON object");
  explain->callback([&] { status = Explain(file, out, as_json); });

  double budget = 4, link = 51;
  CLI::App* bound =
      app.add_subcommand("bound", "bytes that any engine must move: Belady, LRU and FIFO with frees known");
  bound->add_option("FILE", file, "trace")->required();
  bound->add_option("--budget-gib", budget, "GiB that may be resident")
      ->check(sluice::Between(1e-3, 1e6))
      ->capture_default_str();
  bound->add_option("--link-gbps", link, "GB/s of the link in each direction")
      ->check(sluice::Between(1e-3, 1e6))
      ->capture_default_str();
  bound->add_flag("--json", as_json, "Belady's figures of the last step as one JSON object");
  bound->callback([&] { status = Bound(file, budget, link, as_json); });

  CLI::App* uses =
      app.add_subcommand("uses", "write the pages that each launch reads and writes, and the frees, as text");
  uses->add_option("FILE", file, "trace")->required();
  uses->add_option("TO", out, "text")->required();
  uses->callback([&] {
    const absl::StatusOr<Trace> trace = sluice::trace::Load(file);
    status = Report(trace.ok() ? sluice::trace::WriteUses(*trace, out) : trace.status());
  });

  CLI::App* interval = app.add_subcommand("interval", "host time from one launch of a kernel to the next");
  interval->add_option("FILE", file, "trace")->required();
  interval->add_option("KERNEL", kernel, "part of a kernel's name")->required();
  interval->add_option("BETWEEN", between, "part of the name of a kernel launched between the two")->required();
  interval->callback([&] { status = Interval(file, kernel, between); });

  return sluice::ReadCommandLine(app, "sluice-trace", argc, argv).value_or(status);
}
