#include "hooklib/engine/observe/diagnostics.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/devices.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

constexpr double kPeriodSeconds = 10;
constexpr double kMaxFaultGibPerSecond = 2;
// Shares of the time that streams wait for the link: thrashing begins at the first and ends below the last; from the
// second on the process logs it.
constexpr double kThrashingShare = 0.6, kLoggedShare = 0.3, kCalmShare = 0.3;

// Waits are read late, several streams wait at once, and a simulated card's clock is its own: never above 1.
double Share(uint64_t waited_ns, double seconds) {
  return seconds > 0 ? std::min(1.0, static_cast<double>(waited_ns) / (seconds * 1e9)) : 0;
}

double Gib(uint64_t bytes) { return static_cast<double>(bytes) / 0x1p30; }

double Percent(uint64_t part, uint64_t all) {
  return all ? 100.0 * static_cast<double>(part) / static_cast<double>(all) : 100.0;
}

// Used by the ticker's thread alone.
struct Period {
  sluice_gpu_counters last{};
  bool is_thrashing = false, is_held = false;
};
std::vector<Period>& Periods() {
  static auto& periods = *new std::vector<Period>();
  return periods;
}
bool g_logged_slow = false;

// One sentence a process: its live bytes, its budget, the bytes that moved, and their cost.
void LogSlow(Device& device, const sluice_gpu_counters& now, const sluice_gpu_counters& then, const char* since,
             double waited) {
  if (g_logged_slow) return;
  g_logged_slow = true;
  const uint64_t in = now.fetched_bytes - then.fetched_bytes, faults = now.fault_bytes - then.fault_bytes;
  char share[64] = "";
  if (in > 0) std::snprintf(share, sizeof share, "%.0f %% of the time waits for the link; ", 100 * waited);
  // Waits of streams for fetches are measured; a kernel that waits for its faults just runs.
  const bool is_unknown = 4 * faults > in;
  SLUICE_LOG(kWarn,
             "%s: %.1f GiB are live in a budget of %.1f GiB: %s %.1f GiB were fetched, %.1f GiB evicted, %.1f GiB "
             "faulted in; %s%sa larger fraction or a smaller batch helps",
             device.uuid.c_str(), Gib(std::max(now.live_bytes, now.peak_live_bytes)), Gib(now.budget_bytes), since,
             Gib(in), Gib(now.evicted_bytes - then.evicted_bytes), Gib(faults), share,
             is_unknown ? "how long kernels wait for faults is not known; " : "");
}

}  // namespace

// Launches of an opportunistic process wait without an error, so the log says that they do, and for what.
void LogHeld(Device& device, Period* period) {
  constexpr uint64_t kLoggedNs = 5'000'000'000;
  const bool is_held = device.tokens.time_slices().WaitedNs() > kLoggedNs;
  if (is_held == period->is_held) return;
  period->is_held = is_held;
  const sluice_budget budget = device.Budget();
  if (budget.priority != SLUICE_PRIORITY_OPPORTUNISTIC) return;
  if (!is_held) return Log(settings::LogLevel::kWarn, "%s: launches run again", device.uuid.c_str());
  Log(settings::LogLevel::kWarn,
      "%s: launches wait: the container is opportunistic, and guaranteed ones need the GPU; %s of memory are lent to "
      "it "
      "now (sluice top says which of memory and time it lacks)",
      device.uuid.c_str(), settings::HumanBytes(budget.budget_bytes).c_str());
}

void CheckPeriod() {
  Periods().resize(Devices().size());
  for (size_t i = 0; i < Devices().size(); ++i) {
    Device& device = *Devices()[i];
    Period& period = Periods()[i];
    const sluice_gpu_counters now = device.Counters();
    LogHeld(device, &period);
    const double waited = Share(now.stall_ns - period.last.stall_ns, kPeriodSeconds);
    const double faults = Gib(now.fault_bytes - period.last.fault_bytes);
    if (waited > kLoggedShare || faults > kMaxFaultGibPerSecond * kPeriodSeconds)
      LogSlow(device, now, period.last, "in the last 10 s", waited);
    if (waited > kThrashingShare && !period.is_thrashing) {
      period.is_thrashing = true;
      char text[128];
      std::snprintf(text, sizeof text, "live %.1f GiB in %.1f GiB: %.0f %% of the time waits for the link",
                    Gib(now.live_bytes), Gib(now.budget_bytes), 100 * waited);
      NotifyAgent(SLUICE_NOTICE_THRASH_BEGAN, text);
    } else if (waited < kCalmShare && period.is_thrashing) {
      period.is_thrashing = false;
      NotifyAgent(SLUICE_NOTICE_THRASH_ENDED, "the working set fits again");
    }
    period.last = now;
  }
}

void CheckAtExit() {
  constexpr double kMaxSeconds = 60;
  if (SecondsSinceStart() > kMaxSeconds) return;  // a period has logged it, or the process was not slow
  for (const auto& device : Devices()) {
    const sluice_gpu_counters now = device->Counters();
    // More than everything that was live went over the link.
    if (now.fetched_bytes + now.evicted_bytes + now.fault_bytes > 2 * now.peak_live_bytes && now.evicted_bytes > 0)
      LogSlow(*device, now, {}, "since the start", Share(now.stall_ns, SecondsSinceStart()));
  }
}

void LogSummary(const char* when) {
  const auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  for (const auto& device : Devices()) {
    const sluice_gpu_counters c = device->Counters();
    if (!c.launches && !c.requested_bytes && !c.unmanaged_bytes) continue;
    // While everything fits, nothing is asked of the driver.
    const char* const source = !device->active.load() ? "none" : c.fault_exact ? "counted" : "estimated";
    LogAlways(
        "%s pid=%d gpu=%s budget_bytes=%llu live_bytes=%llu peak_live_bytes=%llu unmanaged_bytes=%llu "
        "fetched_bytes=%llu evicted_bytes=%llu saved_bytes=%llu fault_bytes=%llu fault_bytes_source=%s "
        "hit_percent=%.1f stall_seconds=%.2f known_percent=%.1f factor=%u launches=%llu "
        "over_budget_launches=%llu fault_launches=%llu remote_bytes=%llu probes=%llu slow_probes=%llu "
        "probe_lost_ms=%.0f map_ms=%.0f",
        when, getpid(), device->uuid.c_str(), number(c.budget_bytes), number(c.live_bytes), number(c.peak_live_bytes),
        number(c.unmanaged_bytes), number(c.fetched_bytes), number(c.evicted_bytes), number(c.saved_bytes),
        number(c.fault_bytes), source, Percent(c.hits, c.hits + c.misses), static_cast<double>(c.stall_ns) / 1e9,
        Percent(c.launches_known, c.launches), c.factor, number(c.launches), number(c.over_budget_launches),
        number(c.fault_launches), number(c.remote_bytes), number(c.probes), number(c.slow_probes),
        static_cast<double>(c.probe_lost_ns) / 1e6, static_cast<double>(c.map_ns) / 1e6);
    device->LogDriverCounters();
  }
}

}  // namespace sluice
