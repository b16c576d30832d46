#include "agent/metrics.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "agent/counters.h"
#include "common/counter_rules.h"
#include "common/metrics/snapshot.h"
#include "sluice/version.h"

namespace sluice::agent {
namespace {

using metrics::Labels;
using metrics::Snapshot;

double D(uint64_t v) { return static_cast<double>(v); }

// One of proto/counters.def. "" is no metric.
void AddCounter(CounterRule rule, const char* name, const char* help, const Labels& labels, double value,
                Snapshot& out) {
  if (*name == '\0') return;
  if (rule == CounterRule::kTotal) {
    out.Counter(name, help, labels, value);
  } else {
    out.Gauge(name, help, labels, value);
  }
}

// One GPU of one allocation: attached processes, and ended ones, so that totals never fall.
void AddShare(const AllocationStatus& a, size_t gpu, const Labels& labels, Snapshot& out) {
  const ShareStatus& s = a.gpus[gpu];
  sluice_gpu_counters sum = gpu < a.ended.size() ? a.ended[gpu] : sluice_gpu_counters{};
  for (const ProcessStatus& p : a.processes) {
    if (gpu < p.gpus.size()) AddAttached(sum, p.gpus[gpu]);
  }
  out.Gauge("sluice_budget_bytes", "Bytes that the container may have resident now.", labels, D(s.budget));
  out.Gauge("sluice_guaranteed_bytes", "Resident bytes that the container is guaranteed.", labels, D(s.guaranteed));
  out.Gauge("sluice_borrowed_bytes", "Budget above the guarantee.", labels,
            D(s.budget > s.guaranteed ? s.budget - s.guaranteed : 0));
  out.Gauge("sluice_lent_bytes", "Guarantee that the budget does not contain now; all of it before the first process.",
            labels, D(s.guaranteed > s.budget ? s.guaranteed - s.budget : 0));
  out.Gauge("sluice_overdue_bytes", "Reclaimed bytes that the container has not returned yet.", labels, D(s.overdue));
  out.Gauge("sluice_limit_bytes", "Bytes that may be live, resident or not.", labels, D(s.limit));
#define SLUICE_COUNTER(name, type, rule, scale, metric, help) \
  AddCounter(CounterRule::k##rule, metric, help, labels, D(sum.name) * (scale), out);
#include "counters.def"
  out.Gauge("sluice_touched_peak_bytes",
            "Largest sluice_touched_bytes of the last day, without the start of the program; 0: not known yet.", labels,
            D(s.touched_peak));
  out.Gauge("sluice_fraction_ratio", "Part of the GPU's memory that the container was given.", labels, s.fraction);
  out.Gauge("sluice_fraction_needed_ratio",
            "Part of the GPU's memory that would hold the working set of the last day; 0: not known yet.", labels,
            s.right_size.needed);
  out.Gauge("sluice_compute_used_ratio", "Share of the window's GPU time that was used.", labels, s.compute_used);
  out.Gauge("sluice_compute_request_ratio", "Guaranteed share of GPU time.", labels, s.compute_request / 1e6);
  out.Gauge("sluice_compute_limit_ratio", "Largest share of GPU time.", labels, s.compute_limit / 1e6);
  out.Gauge("sluice_held", "1 while launches of an opportunistic container wait for lent memory or idle time.", labels,
            a.held.empty() ? 0 : 1);
  out.Gauge("sluice_parked", "1 while the container is parked, or leaves the GPU for it.", labels,
            a.park.state.empty() ? 0 : 1);
  out.Gauge("sluice_link_bytes_per_second", "Share of the link to the host; 0: not metered.", labels, D(s.link));
  out.Gauge("sluice_processes", "Attached processes.", labels, D(a.processes.size()));
  out.Gauge("sluice_processes_unproven", "Of these, processes whose counters disagree with the GPU driver's account.",
            labels, D(std::ranges::count(a.processes, "unproven", &ProcessStatus::proof)));
  for (const char* state : {"expected", "attached", "unproven", "not hooked", "refused"}) {
    Labels with = labels;
    with.push_back({"state", state});
    out.Gauge("sluice_hook_state", "1 for the current state: expected, attached, unproven, not hooked, refused.", with,
              a.hook_state == state);
  }
}

std::vector<double> AttachBounds() {
  std::vector<double> seconds;
  seconds.reserve(AttachTimes::kBoundsUs.size());
  for (const auto us : AttachTimes::kBoundsUs) seconds.push_back(static_cast<double>(us) / 1e6);
  return seconds;
}

Snapshot Collect(const NodeStatus& status, const std::string& node) {
  Snapshot out;
  for (const AllocationStatus& a : status.allocations) {
    for (size_t i = 0; i < a.gpus.size(); ++i) {
      AddShare(a, i,
               {{"allocation", a.id},
                {"pod", a.pod},
                {"namespace", a.ns},
                {"container", a.container},
                {"gpu", a.gpus[i].uuid}},
               out);
    }
  }
  for (const AllocationStatus& a : status.allocations) {
    const Labels labels = {{"allocation", a.id}, {"pod", a.pod}, {"namespace", a.ns}, {"container", a.container}};
    out.Counter("sluice_parks_total", "Times that the container was parked.", labels, D(a.park.parks));
    out.Counter("sluice_wakes_total", "Times that the container was woken, also before it was wholly parked.", labels,
                D(a.park.wakes));
    const auto limited = [&](const char* what, uint64_t n) {
      Labels with = labels;
      with.push_back({"what", what});
      out.Counter(
          "sluice_limited_total",
          "Times that the container did more than the agent serves one: connects and frames waited, events were "
          "left out.",
          with, D(n));
    };
    limited("connects", a.delayed_connects);
    limited("frames", a.delayed_frames);
    limited("events", a.events_left_out);
  }
  std::map<std::pair<std::string, std::pair<std::string, std::string>>, int> foreign;
  for (const ForeignProcess& f : status.foreign) ++foreign[{f.gpu, {f.ns, f.pod}}];
  for (const auto& [where, n] : foreign) {
    out.Gauge("sluice_foreign_processes", "Processes on a GPU that their container was not given.",
              {{"gpu", where.first}, {"namespace", where.second.first}, {"pod", where.second.second}}, n);
  }
  for (const CardStatus& c : status.cards) {
    const Labels labels = {{"gpu", c.uuid}};
    out.Gauge("sluice_gpu_memory_bytes", "Memory of the GPU.", labels, D(c.memory));
    out.Gauge("sluice_gpu_reserve_bytes", "Memory that no container gets.", labels, D(c.reserve));
    out.Gauge("sluice_gpu_guaranteed_bytes", "Sum of the guarantees.", labels, D(c.guaranteed));
    out.Gauge("sluice_gpu_lent_bytes", "Sum of the budgets above their guarantees.", labels, D(c.lent));
    out.Gauge("sluice_gpu_overdue_bytes", "Sum of the reclaimed bytes that are not returned yet.", labels,
              D(c.overdue));
    out.Gauge("sluice_gpu_used_bytes", "Used memory by NVML.", labels, D(c.used));
    out.Gauge("sluice_gpu_tokens_demanded", "1 while launches need a compute token.", labels, c.tokens ? 1 : 0);
    out.Counter("sluice_gpu_tokens_demanded_seconds_total", "Time in which launches needed a compute token.", labels,
                D(c.tokens_ns) / 1e9);
  }
  out.Gauge("sluice_agent_info", "1, with the agent's version.", {{"version", SLUICE_VERSION}, {"node", node}}, 1);
  out.Histogram("sluice_agent_attach_seconds",
                "The agent's CPU time for one process that attaches: from accepting it to its first budget, its part "
                "of the plan included.",
                AttachBounds(), status.attach.counts, D(status.attach.sum_ns) / 1e9);
  out.Gauge("sluice_config_refused", "1 while the last configuration is refused and the one before stays in force.", {},
            status.config_error.empty() ? 0 : 1);
  out.Gauge("sluice_node_host_bytes", "Evicted bytes of all containers in host memory.", {}, D(status.host_bytes));
  out.Gauge("sluice_node_host_limit_bytes", "Cap of evicted bytes in host memory.", {}, D(status.host_limit));
  out.Counter("sluice_malformed_frames_total", "Frames that were refused.", {}, D(status.malformed_frames));
  out.Counter("sluice_forged_claims_total", "Times that a process presented another's allocation as its own.", {},
              D(status.forged_claims));
  out.Counter("sluice_reclaims_late_total", "Times that a container did not return reclaimed memory in time.", {},
              D(status.late_reclaims));
  return out;
}

const char* Word(prometheus::MetricType type) {
  using prometheus::MetricType;
  return type == MetricType::Counter ? "counter" : type == MetricType::Histogram ? "histogram" : "gauge";
}

const char* Word(CounterRule rule) {
  switch (rule) {
    case CounterRule::kEach:
      return "of one process";
    case CounterRule::kNow:
      return "sum, attached";
    case CounterRule::kHighest:
      return "largest, attached";
    case CounterRule::kTotal:
      return "sum, attached and ended";
    case CounterRule::kPeak:
      return "largest, attached and ended";
  }
  return "";
}

}  // namespace

std::string MetricsText(const NodeStatus& status, const std::string& node) { return Collect(status, node).Text(); }

std::string MetricsPage() {
  NodeStatus sample;  // one of each: every family appears
  sample.cards.emplace_back();
  sample.allocations.emplace_back().gpus.emplace_back();
  sample.foreign.emplace_back();
  std::string out = "| metric | type | meaning |\n|---|---|---|\n";
  for (const Snapshot collected = Collect(sample, ""); const auto& f : collected.families()) {
    out += "| `" + f.name + "` | " + Word(f.type) + " | " + f.help + " |\n";
  }
  out += R"(
## Counters

Each process has these counters for each of its GPUs. They are keys in `/status.json` and in `sluice status -o json`, under
`allocations[].processes[].gpus[]`. `allocations[].ended[]` has the sums over ended processes. Counters that also count ended
processes run since the process attached; the others are values of the moment.

| key | over processes | meaning |
|---|---|---|
)";
#define SLUICE_COUNTER(name, type, rule, scale, metric, help) \
  out += "| `" #name "` | " + std::string(Word(CounterRule::k##rule)) + " | " help " |\n";
#include "counters.def"
  return out;
}

}  // namespace sluice::agent
