#include "hooklib/engine/observe/diagnostics.h"

#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string_view>
#include <vector>

#include "common/counter_rules.h"
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

// One line a process: its live bytes, its budget, the bytes that moved within so many seconds, and their cost.
void LogSlow(Device& device, const sluice_gpu_counters& now, const sluice_gpu_counters& then, double seconds) {
  if (g_logged_slow) return;
  g_logged_slow = true;
  const uint64_t in = now.fetched_bytes - then.fetched_bytes;
  // Waits of streams for fetches are measured; a kernel that waits for its faults just runs.
  char stall[16] = "unknown";
  if (in > 0) std::snprintf(stall, sizeof stall, "%.0f", 100 * Share(now.stall_ns - then.stall_ns, seconds));
  SLUICE_LOG(kWarn,
             "slow gpu=%s seconds=%.1f live_bytes=%" PRIu64 " budget_bytes=%" PRIu64 " fetched_bytes=%" PRIu64
             " evicted_bytes=%" PRIu64 " fault_bytes=%" PRIu64
             " stall_percent=%s advice=\"a larger fraction or a smaller batch helps\"",
             device.uuid.c_str(), seconds, std::max(now.live_bytes, now.peak_live_bytes), now.budget_bytes, in,
             now.evicted_bytes - then.evicted_bytes, now.fault_bytes - then.fault_bytes, stall);
}

// " key=value" of each counter that is a metric, by its row of counters.def. Allocates nothing.
class MetricPairs {
 public:
  explicit MetricPairs(const sluice_gpu_counters& counters) {
#define SLUICE_COUNTER(name, type, rule, scale, metric, help) Add(ExitLineKey(metric), counters.name, scale);
#include "counters.def"
  }
  const char* text() const { return text_; }

 private:
  void Add(std::string_view key, uint64_t count, double scale) {
    if (key.empty()) return;
    char value[32];
    if (scale == 1) {
      std::snprintf(value, sizeof value, "=%" PRIu64, count);
    } else {
      std::snprintf(value, sizeof value, "=%.3f", scale * static_cast<double>(count));
    }
    for (const std::string_view part : {std::string_view(" "), key, std::string_view(value)})
      used_ += part.copy(text_ + used_, sizeof(text_) - 1 - used_);
  }
  char text_[kMaxLineBytes] = "";
  size_t used_ = 0;
};

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
      LogSlow(device, now, period.last, kPeriodSeconds);
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
      LogSlow(*device, now, {}, SecondsSinceStart());
  }
}

void LogSummary(const char* when) {
  for (const auto& device : Devices()) {
    const sluice_gpu_counters c = device->Counters();
    if (!c.launches && !c.requested_bytes && !c.unmanaged_bytes) continue;
    // While everything fits, nothing is asked of the driver.
    const char* const source = !device->active.load() ? "none" : c.fault_exact ? "counted" : "estimated";
    LogAlways(
        "%s pid=%d gpu=%s budget_bytes=%llu factor=%u%s fault_bytes_source=%s hit_percent=%.1f known_percent=%.1f",
        when, getpid(), device->uuid.c_str(), static_cast<unsigned long long>(c.budget_bytes), c.factor,
        MetricPairs(c).text(), source, Percent(c.hits, c.hits + c.misses), Percent(c.launches_known, c.launches));
    device->LogDriverCounters();
  }
}

}  // namespace sluice
