// Device: figures. Driver counters that are requested and read; figures for the agent and for the lines on stderr.
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/device/device_summary.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/log.h"
#include "hooklib/engine/observe/newer_entries.h"
#include "hooklib/engine/observe/trace_recording.h"

namespace sluice {

// Not while everything fits: there are no faults, and nothing is asked of the driver.
void Device::StartCounting() {
  if (driver_counters.Open(UuidForDriver())) {
    faulted_.Begin(residency.stats().bytes_in);
    driver_evicted.Begin(residency.stats().bytes_out);
  } else {
    SLUICE_LOG(kDebug, "%s: the driver counts no faults for this process, they are estimated: %s", uuid.c_str(),
               driver_counters.why().c_str());
  }
}

void Device::CountFaults() {
  if (!faulted_.counting()) return;
  const uint64_t moved = driver_counters.BytesToDevice(), faults = driver_counters.Faults();
  const uint64_t fetched = residency.stats().bytes_in;
  if (!faulted_.IsUnchanged(moved, faults, fetched))
    faulted_.Update(moved, faults, fetched, residency.fetching_bytes());
  const bool watched = residency.watches_unnamed();
  residency.NoteCountedFaults(faulted_.bytes());
  if (!watched && residency.watches_unnamed()) {
    fast_path.Clear();
    SLUICE_LOG(kInfo, "%s: launches fault on memory that none of them names; faults are recorded from here on",
               uuid.c_str());
  }
  const uint64_t left = driver_counters.BytesToHost(), evicted = residency.stats().bytes_out;
  if (!driver_evicted.IsUnchanged(left, evicted))
    driver_evicted.Update(left, evicted, residency.HasEvictionsInFlight() ? memory::kNever : 0);
}

policy::Pressure::Totals Device::BytesMovedByDriver() const { return {driver_evicted.bytes(), faulted_.bytes()}; }

// Kernels and graphs; copies and memsets are no launches.
uint64_t Device::CountLaunches() const {
  uint64_t all = 0, copies = 0;
  for (const auto& stream : streams) {
    all += stream->seq.load(std::memory_order_relaxed);
    copies += stream->copies.load(std::memory_order_relaxed);
  }
  return all > copies ? all - copies : 0;
}

uint64_t Device::Launches() {
  DeviceLock lock(mutex);
  return CountLaunches();
}

void Device::NoteSecond() {
  CountUsed();
  if (!Recording()) return;
  uint64_t touched;
  {
    DeviceLock lock(mutex);
    touched = touched_bytes_;
  }
  if (works.load()) g_recorder->WorkingSet(static_cast<uint32_t>(ordinal), touched, unmanaged_bytes.load());
}

void Device::CountUsed() {
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

void Device::NoteUse(const Work& work) {
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

void Device::LogDriverCounters() {
  DeviceLock lock(mutex);
  if (faulted_.counting())
    SLUICE_LOG(kDebug, "driver_counters gpu=%s to_device_bytes=%llu to_host_bytes=%llu faults=%llu", uuid.c_str(),
               static_cast<unsigned long long>(driver_counters.BytesToDevice()),
               static_cast<unsigned long long>(driver_counters.BytesToHost()),
               static_cast<unsigned long long>(driver_counters.Faults()));
  fault_watch.LogStats();
  touch_watch.LogStats();
}

DeviceSummary Device::Summarize() {
  DeviceLock lock(mutex);
  DeviceSummary summary;
  summary.peak_live_bytes = peak_live_bytes;
  summary.fault_launches = residency.stats().demand_paged_launches;
  summary.remote_bytes = residency.stats().remote_bytes;
  summary.probes = residency.probe_stats();
  summary.map_ns = map_ns_;
  return summary;
}

void Device::Publish(sluice_gpu_counters* slot) {
  DeviceLock lock(mutex);
  const policy::ResidencyStats& stats = residency.stats();
  auto put = [](uint64_t* to, uint64_t value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); };
  put(&slot->budget_bytes, budget.budget_bytes);
  put(&slot->resident_bytes, active.load() ? residency.resident_bytes() + residency.evicting_bytes() : requested_bytes);
  put(&slot->unmanaged_bytes, unmanaged_bytes.load());
  put(&slot->live_bytes, live_bytes + awaited_bytes_);
  put(&slot->requested_bytes, requested_bytes);
  put(&slot->host_bytes, stats.host_bytes);
  put(&slot->over_budget_max, stats.over_budget_max);
  put(&slot->fetched_bytes, stats.bytes_in);
  put(&slot->evicted_bytes, stats.bytes_out);
  put(&slot->saved_bytes, stats.bytes_saved);
  CountFaults();
  put(&slot->fault_bytes, faulted_.counting() ? faulted_.bytes() : stats.fault_bytes);
  __atomic_store_n(&slot->fault_exact, faulted_.counting() ? 1 : 0, __ATOMIC_RELAXED);
  const uint64_t launches = CountLaunches();
  put(&slot->launches, launches);
  put(&slot->launches_known, launches - launches_planned.load() + launches_known.load());
  put(&slot->hits, stats.hits);
  put(&slot->misses, stats.misses);
  put(&slot->stall_ns, timings.stall_ns());
  put(&slot->over_budget_launches, stats.over_budget_launches);
  put(&slot->wrong_predictions, residency.wrong_predictions());
  const compute::TimeSlices::Used used = tokens.time_slices().used();
  put(&slot->kernel_ns, used.ns);
  put(&slot->kernel_estimated_ns, used.estimated_ns);
  put(&slot->newer_entries, NewerEntries());
  put(&slot->link_wait_ns, link_wait_ns.load(std::memory_order_relaxed));
  put(&slot->working_set_bytes, working_set_bytes_);
  put(&slot->touched_bytes, touched_bytes_ + unmanaged_bytes.load());
  __atomic_store_n(&slot->factor, memory_factor.Percent(), __ATOMIC_RELAXED);
  put(&slot->generation, budget.generation);
}

}  // namespace sluice
