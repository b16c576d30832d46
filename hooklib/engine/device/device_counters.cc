// Device: figures. Driver counters that are requested and read; figures for the agent and for the lines on stderr.
#include "hooklib/engine/device/device_counters.h"

#include "hooklib/client/agent_client.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/engine/observe/newer_entries.h"
#include "hooklib/engine/observe/trace_recording.h"

namespace sluice {

// Not while everything fits: there are no faults, and nothing is asked of the driver.
void DeviceCounters::StartCounting() {
  if (driver_counters.Open(UuidForDriver())) {
    faulted_.Begin(residency.stats().bytes_in);
    driver_evicted.Begin(residency.stats().bytes_out);
  } else {
    SLUICE_LOG(kDebug, "fault_counters gpu=%s state=refused reason=\"%s\"", uuid.c_str(),
               driver_counters.why().c_str());
  }
}

void DeviceCounters::CountFaults() {
  if (!faulted_.counting()) return;
  const uint64_t moved = driver_counters.BytesToDevice(), faults = driver_counters.Faults();
  const uint64_t fetched = residency.stats().bytes_in;
  if (!faulted_.IsUnchanged(moved, faults, fetched))
    faulted_.Update(moved, faults, fetched, residency.fetching_bytes());
  const bool watched = residency.watches_unnamed();
  residency.NoteCountedFaults(faulted_.bytes());
  if (!watched && residency.watches_unnamed()) {
    fast_path.Clear();
    SLUICE_LOG(kInfo,
               "fault_records gpu=%s use=unnamed_memory state=wanted reason=\"launches fault on memory that none of "
               "them names\"",
               uuid.c_str());
  }
  const uint64_t left = driver_counters.BytesToHost(), evicted = residency.stats().bytes_out;
  if (!driver_evicted.IsUnchanged(left, evicted))
    driver_evicted.Update(left, evicted, residency.HasEvictionsInFlight() ? memory::kNever : 0);
}

policy::Pressure::Totals DeviceCounters::BytesMovedByDriver() const {
  return {driver_evicted.bytes(), faulted_.bytes()};
}

// Kernels and graphs; copies and memsets are no launches.
uint64_t DeviceCounters::CountLaunches() const {
  uint64_t all = 0, copies = 0;
  for (const auto& stream : streams) {
    all += stream->seq.load(std::memory_order_relaxed);
    copies += stream->copies.load(std::memory_order_relaxed);
  }
  return all > copies ? all - copies : 0;
}

uint64_t DeviceCounters::Launches() {
  DeviceLock lock(mutex);
  return CountLaunches();
}

void DeviceCounters::NoteSecond() {
  CountUsed();
  if (!Recording()) return;
  uint64_t touched;
  {
    DeviceLock lock(mutex);
    touched = touched_bytes_;
  }
  if (works.load()) g_recorder->WorkingSet(static_cast<uint32_t>(ordinal), touched, unmanaged_bytes.load());
}

void DeviceCounters::CountUsed() {
  DeviceLock lock(mutex);
  const uint64_t now_ns = MonotonicNs();
  if (managed && !active.load() && use_watch_.MayOpen(now_ns)) {
    use_watch_.Open(now_ns);
    watches_use = true;
  }
  const uint64_t launches = CountLaunches();
  const bool is_idle = launches == launches_at_last_second_;
  if (!is_idle) {
    launches_at_last_second_ = launches;
    launch_at_second_[active_seconds_++ % kSeconds] = residency.launches();
  }
  // While a program loads it writes memory that its work may not touch again: a server clears its whole cache. Use
  // counts from the end of that on.
  if (live_bytes > loaded_bytes_ + loaded_bytes_ / 16) {
    loaded_bytes_ = live_bytes;
    loaded_launch_ = residency.launches();
    planned_seconds_ = 0;
  } else if (active.load() && !is_idle) {
    ++planned_seconds_;
  }
  const uint64_t since = std::max(loaded_launch_ + 1, launch_at_second_[active_seconds_ % kSeconds]);
  const policy::UsedBytes used = residency.CountUsed(since, policy::UseWatch::SecondOf(now_ns));
  touched_bytes_ = used.within_minute;
  if (launches == 0) return;
  // While everything fits no launch is planned. Until planned ones have shown their use, and samples the touched
  // chunks, the process counts with no more than it may hold: budgets fit the GPU together, so nothing that is unknown
  // makes containers take turns (docs/design/compute-tokens.md).
  constexpr uint64_t kKnownAfterSeconds = 5;
  const uint64_t unmanaged = unmanaged_bytes.load();
  working_set_bytes_ = planned_seconds_ > kKnownAfterSeconds ? unmanaged + used.since_launch
                                                             : std::min(unmanaged + live_bytes, budget.budget_bytes);
  memory_factor.SetCeilingDue();
}

void DeviceCounters::NoteUse(const Work& work) {
  if (IsCapturing(*work.stream)) return;  // nothing runs now
  const uint64_t began_ns = MonotonicNs();
  DeviceLock lock(mutex);
  if (!watches_use.load(std::memory_order_relaxed)) return;
  Resolve(work, &access_set);
  const uint32_t second = policy::UseWatch::SecondOf(began_ns);
  size_t found = 0;
  for (const memory::Extent& extent : access_set.extents) {
    if (!use_watch_.IsStamped(extent, second))
      found += residency.NoteUnplannedUse(extent, second, use_watch_.opened_second());
  }
  if (use_watch_.Count(found, began_ns, MonotonicNs())) watches_use = false;
}

void DeviceCounters::LogDriverCounters() {
  DeviceLock lock(mutex);
  if (faulted_.counting())
    SLUICE_LOG(kDebug, "driver_counters gpu=%s to_device_bytes=%llu to_host_bytes=%llu faults=%llu", uuid.c_str(),
               static_cast<unsigned long long>(driver_counters.BytesToDevice()),
               static_cast<unsigned long long>(driver_counters.BytesToHost()),
               static_cast<unsigned long long>(driver_counters.Faults()));
  fault_watch.LogStats();
  touch_watch.LogStats();
}

sluice_gpu_counters DeviceCounters::Counters() {
  DeviceLock lock(mutex);
  return CountAll();
}

void DeviceCounters::Publish(client::AgentClient* agent) {
  DeviceLock lock(mutex);
  agent->Publish(CountAll());
}

sluice_gpu_counters DeviceCounters::CountAll() {
  const policy::ResidencyStats& stats = residency.stats();
  sluice_gpu_counters c{};
  std::memcpy(c.uuid, uuid.data(), std::min(uuid.size(), sizeof c.uuid - 1));
  c.generation = budget.generation;
  c.budget_bytes = budget.budget_bytes;
  c.resident_bytes = active.load() ? residency.resident_bytes() + residency.evicting_bytes() : requested_bytes;
  c.unmanaged_bytes = unmanaged_bytes.load();
  c.live_bytes = live_bytes + awaited_bytes_;
  c.peak_live_bytes = peak_live_bytes;
  c.requested_bytes = requested_bytes;
  c.host_bytes = stats.host_bytes;
  c.over_budget_max = stats.over_budget_max;
  c.fetched_bytes = stats.bytes_in;
  c.evicted_bytes = stats.bytes_out;
  c.saved_bytes = stats.bytes_saved;
  c.remote_bytes = stats.remote_bytes;
  CountFaults();
  c.fault_bytes = faulted_.counting() ? faulted_.bytes() : stats.fault_bytes;
  c.fault_exact = faulted_.counting() ? 1 : 0;
  c.launches = CountLaunches();
  c.launches_known = c.launches - launches_planned.load() + launches_known.load();
  c.over_budget_launches = stats.over_budget_launches;
  c.fault_launches = stats.demand_paged_launches;
  c.hits = stats.hits;
  c.misses = stats.misses;
  c.stall_ns = timings.stall_ns();
  c.wrong_predictions = residency.wrong_predictions();
  const compute::TimeSlices::Used used = tokens.time_slices().used();
  c.kernel_ns = used.ns;
  c.kernel_estimated_ns = used.estimated_ns;
  c.newer_entries = NewerEntries();
  c.link_wait_ns = link_wait_ns.load(std::memory_order_relaxed);
  c.working_set_bytes = working_set_bytes_;
  c.touched_bytes = touched_bytes_ + unmanaged_bytes.load();
  c.factor = memory_factor.Percent();
  const policy::ProbeStats& probes = residency.probe_stats();
  c.probes = probes.probes;
  c.slow_probes = probes.slow_probes;
  c.probe_lost_ns = probes.lost_ns;
  c.map_ns = map_ns_;
  return c;
}

void DeviceCounters::LogIfTooLarge(const std::vector<libraries::Reach>& reaches) {
  DeviceLock lock(mutex);
  if (logged_large_graph_) return;
  std::vector<memory::Extent> all;
  for (const libraries::Reach& reach : reaches) {
    if (const auto extent = Resolve(reach)) all.push_back(*extent);
  }
  std::sort(all.begin(), all.end(), [](const memory::Extent& a, const memory::Extent& b) { return a.base < b.base; });
  uint64_t bytes = 0, end = 0;
  for (const memory::Extent& extent : all) {
    if (extent.end() <= end) continue;
    bytes += extent.end() - std::max(extent.base, end);
    end = extent.end();
  }
  if (bytes <= residency.capacity()) return;
  logged_large_graph_ = true;
  SLUICE_LOG(
      kWarn,
      "%s: a CUDA graph uses %.2f GiB, and %.2f GiB can be resident: chunks that most of its nodes use stay on the "
      "GPU; the others are fetched for each launch, used in host memory or faulted in, whichever is measured to be the "
      "fastest; a larger fraction or smaller graphs help",
      uuid.c_str(), static_cast<double>(bytes) / 0x1p30, static_cast<double>(residency.capacity()) / 0x1p30);
}

}  // namespace sluice
