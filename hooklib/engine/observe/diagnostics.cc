#include "hooklib/engine/observe/diagnostics.h"

#include <unistd.h>

#include <algorithm>

#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

constexpr double kGi = 0x1p30;
constexpr double kPeriodSeconds = 10;
// Waiting for the link: from this share of the time on it is said, below the other it is over.
constexpr double kBegins = 0.6, kSaid = 0.3, kEnds = 0.3;

// Waits are read late, several streams wait at once, and a simulated card's clock is its own: a share is never above 1.
double Share(uint64_t waited_ns, double seconds) {
  return seconds > 0 ? std::min(1.0, static_cast<double>(waited_ns) / (seconds * 1e9)) : 0;
}

double Gi(uint64_t bytes) { return static_cast<double>(bytes) / kGi; }

struct Judged {
  sluice_gpu_counters last{};
  bool thrashing = false;
};
std::vector<Judged>& All() {
  static auto& all = *new std::vector<Judged>();
  return all;
}
bool g_said = false;

// One sentence a process: what lives, what may stay, what moved, what it costs.
void Say(const Device& device, const sluice_gpu_counters& now, const sluice_gpu_counters& then, const char* since,
         double waited) {
  if (g_said) return;
  g_said = true;
  const uint64_t in = now.fetched_bytes - then.fetched_bytes, faults = now.fault_bytes - then.fault_bytes;
  char share[64] = "";
  if (in > 0) std::snprintf(share, sizeof share, "%.0f %% of the time waits for the link; ", 100 * waited);
  // Streams are seen to wait for fetches; a kernel that waits for its faults just runs.
  const bool unseen = 4 * faults > in;
  SLUICE_LOG(kWarn,
             "%s: live %.1f GiB in %.1f GiB: %s %.1f GiB came in, %.1f GiB went out, %.1f GiB by faults; %s%sa larger "
             "fraction or a smaller batch helps",
             device.uuid.c_str(), Gi(std::max(now.live_bytes, device.peak_live_bytes)), Gi(now.budget_bytes), since,
             Gi(in), Gi(now.evicted_bytes - then.evicted_bytes), Gi(faults), share,
             unseen ? "how long kernels wait for faults is not known; " : "");
}

}  // namespace

void JudgePeriod() {
  All().resize(Devices().size());
  for (size_t i = 0; i < Devices().size(); ++i) {
    const Device& device = *Devices()[i];
    Judged& judged = All()[i];
    sluice_gpu_counters now{};
    Devices()[i]->Publish(&now);
    const double waited = Share(now.stall_ns - judged.last.stall_ns, kPeriodSeconds);
    const double faults = Gi(now.fault_bytes - judged.last.fault_bytes);
    if (waited > kSaid || faults > 2 * kPeriodSeconds) Say(device, now, judged.last, "in the last 10 s", waited);
    if (waited > kBegins && !judged.thrashing) {
      judged.thrashing = true;
      char text[128];
      std::snprintf(text, sizeof text, "live %.1f GiB in %.1f GiB: %.0f %% of the time waits for the link",
                    Gi(now.live_bytes), Gi(now.budget_bytes), 100 * waited);
      NotifyAgent(SLUICE_NOTICE_THRASH_BEGAN, text);
    } else if (waited < kEnds && judged.thrashing) {
      judged.thrashing = false;
      NotifyAgent(SLUICE_NOTICE_THRASH_ENDED, "the working set fits again");
    }
    judged.last = now;
  }
}

void JudgeAtExit() {
  if (SecondsSinceStart() > 60) return;  // its periods have said it, or it was not slow
  for (const auto& device : Devices()) {
    sluice_gpu_counters now{};
    device->Publish(&now);
    // More than everything that lived went over the link.
    if (now.fetched_bytes + now.evicted_bytes + now.fault_bytes > 2 * device->peak_live_bytes &&
        now.evicted_bytes > 0) {
      Say(*device, now, {}, "since the start", Share(now.stall_ns, SecondsSinceStart()));
    }
  }
}

void PrintSummary(const char* when) {
  for (const auto& device : Devices()) {
    sluice_gpu_counters c{};
    device->Publish(&c);
    if (!c.launches && !c.requested_bytes && !c.unmanaged_bytes) continue;
    const uint64_t looked = c.hits + c.misses;
    const auto [in_place, tries, map_ns] = device->HostMemoryUsed();
    LogAlways(
        "%s pid %d %s: budget %.2f GiB, live %.2f GiB (peak %.2f GiB), plain %.2f GiB, in %.2f GiB, out %.2f GiB, "
        "without copy %.2f GiB, faults %.2f GiB%s, hits %.1f %%, stalls %.2f s, access known %.1f %%, "
        "factor %u, launches %llu, over budget %llu, left to faults %llu, in place %.2f GiB (tried %llu, "
        "%llu of them slow and %.0f ms lost; mapping took %.0f ms)",
        when, getpid(), device->uuid.c_str(), Gi(c.budget_bytes), Gi(c.live_bytes), Gi(device->peak_live_bytes),
        Gi(c.unmanaged_bytes), Gi(c.fetched_bytes), Gi(c.evicted_bytes), Gi(c.saved_bytes), Gi(c.fault_bytes),
        !device->active.load() ? ""  // all fits
        : c.fault_exact        ? " (counted)"
                               : " (estimated)",
        looked ? 100.0 * static_cast<double>(c.hits) / static_cast<double>(looked) : 100.0,
        static_cast<double>(c.stall_ns) / 1e9,
        c.launches ? 100.0 * static_cast<double>(c.launches_known) / static_cast<double>(c.launches) : 100.0, c.factor,
        static_cast<unsigned long long>(c.launches), static_cast<unsigned long long>(c.over_budget_launches),
        static_cast<unsigned long long>(device->LeftToFaults()), Gi(in_place),
        static_cast<unsigned long long>(tries.probes), static_cast<unsigned long long>(tries.slow_probes),
        static_cast<double>(tries.lost_ns) / 1e6, static_cast<double>(map_ns) / 1e6);
    device->LogDriverCounters();
  }
}

}  // namespace sluice
