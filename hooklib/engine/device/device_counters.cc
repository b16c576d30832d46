// Device: figures. What the driver counts of its own moves, asked for and read; what the agent and the exit line get.
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

// What fits has no faults, and asks nothing of the driver.
void Device::StartCounting() {
  // Of one card the driver counts without being told which: a part of a card may go by another name there.
  if (counts_.Open(Devices().size() > 1 ? raw_uuid_ : nullptr)) {
    faults_.Begin(residency.stats().bytes_in);
    taken_.Begin(residency.stats().bytes_out);
  } else {
    SLUICE_LOG(kDebug, "%s: the driver counts no faults for us, they are estimated: %s", uuid.c_str(),
               counts_.why().c_str());
  }
}

void Device::CountFaults() {
  if (!faults_.counting()) return;
  const uint64_t moved = counts_.ToCard(), faults = counts_.Faults(), asked = residency.stats().bytes_in;
  if (!faults_.IsUnchanged(moved, faults, asked)) faults_.Update(moved, faults, asked, residency.fetching_bytes());
  residency.set_faulted_bytes(faults_.bytes());
  const uint64_t left = counts_.ToHost(), sent = residency.stats().bytes_out;
  if (!taken_.IsUnchanged(left, sent)) taken_.Update(left, sent, residency.HasEvictionsInFlight() ? memory::kNever : 0);
}

void Device::LogDriverCounters() {
  std::lock_guard lock(mutex);
  if (faults_.counting())
    SLUICE_LOG(kDebug, "%s: the driver counts %.2f GiB moved to the card and %llu faults", uuid.c_str(),
               static_cast<double>(counts_.ToCard()) / 0x1p30, static_cast<unsigned long long>(counts_.Faults()));
  const policy::PointerRangeStats& stats = learnt.stats();
  if (stats.watched)
    SLUICE_LOG(kDebug,
               "%s: learnt what of a block launches use: of %llu kinds, given up for %llu; %llu launches watched, %llu "
               "named less for it, %llu times they were seen to use more",
               uuid.c_str(), static_cast<unsigned long long>(stats.learned),
               static_cast<unsigned long long>(stats.given_up), static_cast<unsigned long long>(stats.watched),
               static_cast<unsigned long long>(stats.narrowed), static_cast<unsigned long long>(stats.wrong));
}

uint64_t Device::LeftToFaults() {
  std::lock_guard lock(mutex);
  return residency.stats().demand_paged_launches;
}

std::tuple<uint64_t, policy::ProbeStats, uint64_t> Device::HostMemoryUsed() {
  std::lock_guard lock(mutex);
  return {residency.stats().remote_bytes, residency.probe_stats(), map_ns};
}

void Device::Publish(sluice_gpu_counters* slot) {
  std::lock_guard lock(mutex);
  const policy::ResidencyStats& stats = residency.stats();
  auto put = [](uint64_t* to, uint64_t value) { __atomic_store_n(to, value, __ATOMIC_RELAXED); };
  put(&slot->budget_bytes, budget.budget_bytes);
  put(&slot->resident_bytes, active.load() ? residency.resident_bytes() + residency.evicting_bytes() : requested_bytes);
  put(&slot->unmanaged_bytes, plain.load());
  put(&slot->live_bytes, live_bytes + awaited_bytes_);
  put(&slot->requested_bytes, requested_bytes);
  put(&slot->host_bytes, stats.host_bytes);
  put(&slot->over_budget_max, stats.over_budget_max);
  put(&slot->fetched_bytes, stats.bytes_in);
  put(&slot->evicted_bytes, stats.bytes_out);
  put(&slot->saved_bytes, stats.bytes_saved);
  CountFaults();
  put(&slot->fault_bytes, faults_.counting() ? faults_.bytes() : stats.fault_bytes);
  __atomic_store_n(&slot->fault_exact, faults_.counting() ? 1 : 0, __ATOMIC_RELAXED);
  const uint64_t launches = CountLaunches();
  put(&slot->launches, launches);
  put(&slot->launches_known, launches - launches_looked_at.load() + launches_known.load());
  put(&slot->hits, stats.hits);
  put(&slot->misses, stats.misses);
  put(&slot->stall_ns, stall_ns);
  put(&slot->over_budget_launches, stats.over_budget_launches);
  put(&slot->wrong_predictions, residency.wrong_predictions());
  const compute::TimeSlices::Used used = tokens.time_slices().used();
  put(&slot->kernel_ns, used.ns);
  put(&slot->kernel_estimated_ns, used.estimated_ns);
  put(&slot->working_set_bytes, working_set_);
  __atomic_store_n(&slot->factor, Factor(), __ATOMIC_RELAXED);
  put(&slot->generation, budget.generation);
}

}  // namespace sluice
