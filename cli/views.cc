#include "cli/views.h"

#include <algorithm>
#include <map>
#include <vector>

#include "cli/table.h"
#include "common/counter_rules.h"

namespace sluice::cli {
namespace {

// Over the attached processes of one allocation, and over its GPUs.
v1::Counters SumOf(const v1::AllocationStatus& a) {
  v1::Counters sum;
  for (const v1::Process& p : a.processes()) {
    for (const v1::Counters& c : p.gpus()) {
#define SLUICE_COUNTER(name, type, rule, ...) sum.set_##name(Combined<CounterRule::k##rule>(sum.name(), c.name()));
#include "counters.def"
    }
  }
  return sum;
}

// A claim that several pods share is named without a pod.
std::string NameOf(const v1::AllocationStatus& a) {
  const std::string claim = a.claim().empty() ? "" : "claim " + a.claim();
  if (a.pod().empty()) return claim.empty() ? a.id() : a.namespace_() + "/" + claim;
  return a.namespace_() + "/" + a.pod() + (a.container().empty() ? "" : "/" + a.container()) +
         (claim.empty() ? "" : " (" + claim + ")");
}

// Opportunistic containers whose launches wait, a line each.
std::string HeldLines(const v1::Status& status) {
  std::string out;
  for (const v1::AllocationStatus& a : status.allocations()) {
    if (!a.held().empty()) out += "launches of " + NameOf(a) + " (opportunistic) wait: " + a.held() + "\n";
  }
  return out;
}

// The largest working set of the last day, over the allocation's GPUs.
std::string Peak(const v1::AllocationStatus& a) {
  uint64_t peak = 0;
  for (const v1::GpuShare& g : a.gpus()) peak += g.touched_peak_bytes();
  return peak == 0 ? "-" : Bytes(peak);
}

// The agent's sentence about each container's fraction, a line each; `all` false: only where it is far off.
std::string SizeLines(const v1::Status& status, bool all) {
  std::string out;
  for (const v1::AllocationStatus& a : status.allocations()) {
    for (const v1::GpuShare& g : a.gpus()) {
      if (g.size_advice().empty() || !(all || g.size_is_far_off())) continue;
      out += NameOf(a) + (a.gpus_size() > 1 ? ", GPU " + g.uuid() : "") + ": " + g.size_advice() + "\n";
    }
  }
  return out;
}

std::string Ago(uint64_t ms) {
  const uint64_t s = ms / 1000;
  return s < 120    ? std::to_string(s) + " s"
         : s < 7200 ? std::to_string(s / 60) + " min"
                    : std::to_string(s / 3600) + " h";
}

// Containers that are parked, or are being parked, a line each.
std::string ParkLines(const v1::Status& status) {
  std::string out;
  for (const v1::AllocationStatus& a : status.allocations()) {
    const v1::ParkStatus& p = a.park();
    if (p.state() == "parked") {
      out += NameOf(a) + " is parked by " + p.reason() + " for " + Ago(p.since_ms()) + ": " + StayingText(p) +
             " stay on the GPU\n";
    } else if (!p.state().empty()) {
      out += NameOf(a) + " is being parked by " + p.reason() + ": " +
             (p.waits().empty() ? Bytes(p.resident_bytes()) + " are leaving the GPU" : p.waits()) + "\n";
    }
  }
  return out;
}

// Differences of two answers. A process that ended makes a sum fall: then 0.
uint64_t Less(uint64_t now, uint64_t before) { return now > before ? now - before : 0; }

std::string Rate(uint64_t bytes, double seconds) {
  return seconds <= 0 ? "-" : Bytes(static_cast<uint64_t>(static_cast<double>(bytes) / seconds)) + "/s";
}

}  // namespace

std::string StayingText(const v1::ParkStatus& park) {
  return Bytes(park.unmanaged_bytes()) + " of unmanaged memory and " + Bytes(park.context_bytes()) + " of contexts";
}

std::string StatusText(const v1::Status& status) {
  std::string out = "agent " + status.agent_version() + "\n";
  if (!status.config_error().empty())
    out += "configuration refused, the old one stays in force: " + status.config_error() + "\n";
  out += "host memory for evicted bytes: " + Bytes(status.host_bytes()) + " of " + Bytes(status.host_limit_bytes()) +
         "\n\n";
  Table gpus({"GPU", "MODEL", ">MEMORY", ">RESERVE", ">GUARANTEED", ">LENT", ">OVERDUE", ">USED"});
  for (const v1::Gpu& g : status.gpus()) {
    gpus.Add({g.uuid(), g.model(), Bytes(g.memory_bytes()), Bytes(g.reserve_bytes()), Bytes(g.guaranteed_bytes()),
              Bytes(g.lent_bytes()), Bytes(g.overdue_bytes()), Bytes(g.used_bytes())});
  }
  out += gpus.Text() + "\n";
  Table table({"ALLOCATION", "CONTAINER", "HOOK", ">UNITS", ">SHARE", ">GUARANTEED", ">BUDGET", ">RESIDENT", ">LIVE",
               ">TOUCHED", ">PEAK", ">LIMIT", ">REQUEST", ">MAX", ">PROCESSES"});
  for (const v1::AllocationStatus& a : status.allocations()) {
    const v1::Counters s = SumOf(a);
    uint64_t guaranteed = 0, budget = 0, limit = 0;
    uint32_t units = 0, percent = 0;
    for (const v1::GpuShare& g : a.gpus()) {
      units += g.units();
      percent += g.percent();
      guaranteed += g.guaranteed_bytes();
      budget += g.budget_bytes();
      limit += g.limit_bytes();
    }
    const double request = a.gpus().empty() ? 0 : a.gpus(0).compute_request();
    const double compute_limit = a.gpus().empty() ? 0 : a.gpus(0).compute_limit();
    table.Add({a.id(), a.pod().empty() && a.claim().empty() ? a.container() : NameOf(a), a.hook_state(),
               std::to_string(units), percent == 0 ? "-" : Percent(percent / 100.0), Bytes(guaranteed), Bytes(budget),
               Bytes(s.resident_bytes() + s.unmanaged_bytes()), Bytes(s.live_bytes() + s.unmanaged_bytes()),
               Bytes(s.touched_bytes()), Peak(a), Bytes(limit), Percent(request), Percent(compute_limit),
               std::to_string(a.processes_size())});
  }
  const std::string held = HeldLines(status) + ParkLines(status), sizes = SizeLines(status, true);
  return out + table.Text() + (held.empty() ? "" : "\n" + held) + (sizes.empty() ? "" : "\n" + sizes);
}

std::string TopText(const v1::Status* before, const v1::Status& now) {
  std::map<std::string, v1::Counters> old;
  double seconds = 0;
  if (before != nullptr) {
    for (const v1::AllocationStatus& a : before->allocations()) old[a.id()] = SumOf(a);
    seconds = static_cast<double>(now.unix_ms() - before->unix_ms()) / 1000;
  }
  struct Row {
    double stall;
    std::vector<std::string> cells;
  };
  std::vector<Row> rows;
  for (const v1::AllocationStatus& a : now.allocations()) {
    const v1::Counters s = SumOf(a);
    const v1::Counters& o = old[a.id()];
    const uint64_t stall = Less(s.stall_ns(), o.stall_ns()), kernel = Less(s.kernel_ns(), o.kernel_ns());
    const double share = stall + kernel == 0 ? 0 : static_cast<double>(stall) / static_cast<double>(stall + kernel);
    uint64_t budget = 0;
    double used = 0;
    for (const v1::GpuShare& g : a.gpus()) {
      budget += g.budget_bytes();
      used = std::max(used, g.compute_used());
    }
    const uint64_t hits = Less(s.hits(), o.hits()), all = hits + Less(s.misses(), o.misses());
    rows.push_back({share,
                    {NameOf(a), a.hook_state(), Percent(share), Bytes(budget),
                     Bytes(s.resident_bytes() + s.unmanaged_bytes()), Bytes(s.live_bytes() + s.unmanaged_bytes()),
                     Bytes(s.touched_bytes()), Peak(a), Rate(Less(s.fetched_bytes(), o.fetched_bytes()), seconds),
                     Rate(Less(s.evicted_bytes(), o.evicted_bytes()), seconds),
                     Rate(Less(s.fault_bytes(), o.fault_bytes()), seconds), Ratio(hits, all),
                     Ratio(Less(s.launches_known(), o.launches_known()), Less(s.launches(), o.launches())),
                     Percent(used), s.factor() == 0 ? "-" : std::to_string(s.factor())}});
  }
  std::ranges::stable_sort(rows, [](const Row& a, const Row& b) { return a.stall > b.stall; });
  std::string out;
  for (const v1::Gpu& g : now.gpus()) {
    out += g.uuid() + "  " + g.model() + "  " + Bytes(g.used_bytes()) + " of " + Bytes(g.memory_bytes()) + " used, " +
           Bytes(g.guaranteed_bytes()) + " guaranteed, " + Bytes(g.lent_bytes()) + " lent, " +
           Bytes(g.overdue_bytes()) + " overdue\n";
  }
  for (const v1::ForeignProcess& f : now.foreign()) {
    out +=
        "a process on a GPU that it was not given: " + (f.pid() == 0 ? "" : "pid " + std::to_string(f.pid()) + ", ") +
        (f.pod().empty() ? "no pod known" : f.namespace_() + "/" + f.pod()) + ", GPU " + f.gpu() + "\n";
  }
  out += HeldLines(now) + ParkLines(now) + SizeLines(now, false);
  if (!now.config_error().empty()) out += "configuration refused: " + now.config_error() + "\n";
  Table table({"CONTAINER", "HOOK", ">STALL", ">BUDGET", ">RESIDENT", ">LIVE", ">TOUCHED", ">PEAK", ">FETCH", ">EVICT",
               ">FAULT", ">HITS", ">KNOWN", ">GPU", ">FACTOR"});
  for (Row& r : rows) table.Add(std::move(r.cells));
  return out + "\n" + table.Text();
}

}  // namespace sluice::cli
