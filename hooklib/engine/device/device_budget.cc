// Device: the budget in force, and work that waits for it.
#include "hooklib/engine/device/device_budget.h"

#include <algorithm>
#include <ctime>

#include "hooklib/engine/engine.h"
#include "hooklib/engine/execute/work.h"
#include "hooklib/engine/observe/library_launches.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

uint64_t DeviceBudget::Capacity() const {
  const uint64_t unmanaged = unmanaged_bytes.load(std::memory_order_relaxed);
  const uint64_t room = budget.budget_bytes > unmanaged ? budget.budget_bytes - unmanaged : 0;
  if (live_bytes + unmanaged <= budget.budget_bytes && !memory_factor.IsLowered()) return room;
  return std::min(room, budget.budget_bytes / 100 * memory_factor.Percent());
}

void DeviceBudget::UpdateMode() {
  residency.set_capacity(Capacity());
  const uint64_t unmanaged = unmanaged_bytes.load(std::memory_order_relaxed);
  const uint64_t usable = total_bytes - total_bytes / 16;  // contexts and the driver itself take the rest
  residency.set_max_resident(usable > unmanaged ? usable - unmanaged : 0);
  residency.set_share(budget.guaranteed_bytes > unmanaged ? budget.guaranteed_bytes - unmanaged : 0);
  if (managed && requested_bytes + unmanaged > budget.budget_bytes) Activate();
}

void DeviceBudget::Activate() {
  if (active.exchange(true)) return;
  watches_use = false;
  WantLibraryCalls();
  StartCounting();
  residency.set_names_launches(LogEnabled(settings::LogLevel::kDebug));
  residency.NoteUnseenUse();
  if (CountLaunches() != launches_at_unplanned_copy_) residency.ForgetAllCopies();
  SLUICE_LOG(kInfo, "%s: %.2f GiB requested, budget %.2f GiB: residency is managed from here on", uuid.c_str(),
             static_cast<double>(requested_bytes) / 0x1p30, static_cast<double>(budget.budget_bytes) / 0x1p30);
}

void DeviceBudget::NoteSurplus() {
  for (auto& [handle, context] : contexts) context->has_surplus = has_surplus_ = true;
}

void DeviceBudget::ApplyBudget(const sluice_budget& next) {
  DeviceLock lock(mutex);
  const bool raised = budget.generation != 0 && next.budget_bytes > budget.budget_bytes;
  raise_expected_until_ns = 0;
  if (raised && next.budget_bytes < live_bytes + unmanaged_bytes.load()) ExpectRaise();
  residency.set_budget_rising(raise_expected_until_ns != 0);
  if (next.budget_bytes != budget.budget_bytes) memory_factor.Restart();
  if (next.budget_bytes < budget.budget_bytes) NoteSurplus();  // less is kept for pools
  FollowParked(next);
  budget = next;
  link_meter.SetRate(next.link_bytes_per_s, LinkBytes(), MonotonicNs());
  if (budget.limit_bytes == 0) budget.limit_bytes = total_bytes;
  residency.set_prefetch(static_cast<policy::Prefetch>(std::min<uint8_t>(next.prefetch, 2)));
  g_log_level = static_cast<settings::LogLevel>(std::min<uint8_t>(next.log_level, 3));
  UpdateMode();  // the excess is evicted by the follower's thread (Evict), and by launches
}

sluice_budget DeviceBudget::Budget() {
  DeviceLock lock(mutex);
  return budget;
}

void DeviceBudget::View(uint64_t* total, uint64_t* free) {
  const uint64_t others = free ? OthersBytes() : 0;
  DeviceLock lock(mutex);
  ViewUnlocked(others, total, free);
}

void DeviceBudget::ViewUnlocked(uint64_t others_bytes, uint64_t* total, uint64_t* free) const {
  const uint64_t visible =
      budget.visible == SLUICE_VISIBLE_LIMIT ? std::min(budget.limit_bytes, total_bytes) : budget.guaranteed_bytes;
  const uint64_t used = allocated_bytes + unmanaged_bytes.load();
  *total = visible;
  if (free) *free = used < visible && others_bytes < visible - used ? visible - used - others_bytes : 0;
}

void DeviceBudget::ExpectRaise() {
  // In this time the agent looks at the processes that make room, and they evict a part. A slice of it takes 40 ms, and
  // twice that where host pages are new (budget_follower.cc).
  constexpr uint64_t kNextRaiseNs = 100'000'000;
  raise_expected_until_ns = MonotonicNs() + kNextRaiseNs;
}

void DeviceBudget::AwaitRoom(const Work& work) {
  // However often the budget is raised: a kernel may be waiting for the next call of this very thread.
  constexpr uint64_t kMaxWaitNs = 500'000'000;
  constexpr timespec kPause{0, 200'000};
  DeviceLock lock(mutex);
  if (budget.prefetch == SLUICE_PREFETCH_OFF) {  // all memory is left to demand faults
    raise_expected_until_ns = 0;
    return;
  }
  AccessSet set;
  Resolve(work, &set);
  const uint64_t began = MonotonicNs();
  uint64_t now = began;
  ++launches_waiting_;
  while (now < raise_expected_until_ns && now - began < kMaxWaitNs && residency.BytesToEvict(set.extents) > 0) {
    DeviceUnlock unlocked(mutex);
    nanosleep(&kPause, nullptr);
    now = MonotonicNs();
  }
  --launches_waiting_;
  if (now >= raise_expected_until_ns) raise_expected_until_ns = 0;
  residency.set_budget_rising(raise_expected_until_ns != 0);
}

uint64_t DeviceBudget::LinkBytes() const {
  const policy::Pressure::Totals by_driver = BytesMovedByDriver();
  const policy::ResidencyStats& stats = residency.stats();
  const uint64_t faults = by_driver.faults > 0 ? by_driver.faults : stats.fault_bytes;  // 0: the driver does not count
  return stats.bytes_in + stats.bytes_out + stats.remote_bytes + by_driver.taken + faults;
}

void DeviceBudget::CountLink() {
  if (link_meter.rate() != 0) link_meter.Count(LinkBytes(), MonotonicNs());
}

void DeviceBudget::AwaitLink(const Work& work) {
  constexpr uint64_t kMaxPauseNs = 2'000'000;  // the agent may raise the rate
  const uint64_t began = MonotonicNs();
  if (link_meter.WaitNs(began) == 0) return;
  {
    DeviceLock lock(mutex);
    AccessSet set;
    Resolve(work, &set);
    if (residency.MissingBytes(set.extents) == 0) return;
  }
  uint64_t now = began;
  while (const uint64_t left = link_meter.WaitNs(now)) {
    if (now - began > policy::LinkMeter::kMaxDebtNs) break;
    const timespec pause{0, static_cast<long>(std::min(left, kMaxPauseNs))};
    nanosleep(&pause, nullptr);
    now = MonotonicNs();
  }
  link_wait_ns.fetch_add(now - began, std::memory_order_relaxed);
}

}  // namespace sluice
