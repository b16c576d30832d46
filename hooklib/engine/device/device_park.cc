// Device: a process whose container is parked (docs/design/park.md), and one that wakes.
#include <algorithm>

#include "hooklib/engine/device/device_budget.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

void DeviceBudget::FollowParked(const sluice_budget& next) {
  if (next.parked && !budget.parked) {
    launches_when_parked_ = CountLaunches();
    budget_before_park_ = budget.budget_bytes;
    waking_ = false;
  } else if (!next.parked && budget.parked) {
    waking_ = true;
    woken_ns_ = MonotonicNs();
    woken_bytes_ = 0;
  }
  wakes_alone_ = false;
}

bool DeviceBudget::IsParked() {
  DeviceLock lock(mutex);
  return budget.parked != 0;
}

bool DeviceBudget::IsWaking() {
  constexpr uint64_t kMaxWakeNs = 10'000'000'000;  // a borrower that is stopped gives no room
  DeviceLock lock(mutex);
  if (waking_ && MonotonicNs() - woken_ns_ > kMaxWakeNs) waking_ = false;
  return waking_;
}

void DeviceBudget::AskToWake() {
  constexpr uint64_t kAskAgainNs = 20'000'000;
  if (!budget.parked) return;
  const uint64_t now = MonotonicNs();
  if (asked_to_wake_ns_ != 0 && now - asked_to_wake_ns_ < kAskAgainNs) return;
  asked_to_wake_ns_ = now;
  tokens.Request(0);
}

// Its guarantee comes back while the process wakes, so a parked one is refused nothing.
uint64_t DeviceBudget::UnmanagedBound() const {
  return budget.parked ? std::max(budget.budget_bytes, budget.guaranteed_bytes) : budget.budget_bytes;
}

void DeviceBudget::NoteAgentLost() {
  DeviceLock lock(mutex);
  if (!budget.parked) return;
  // An opportunistic process has no guarantee, but has worked in this.
  const bool is_guaranteed = budget.priority != SLUICE_PRIORITY_OPPORTUNISTIC;
  const uint64_t own = is_guaranteed ? budget.guaranteed_bytes : std::min(budget.guaranteed_bytes, budget_before_park_);
  budget.budget_bytes = std::max(budget.budget_bytes, own);
  wakes_alone_ = true;
  UpdateMode();
}

bool DeviceBudget::WakeIfLaunched() {
  DeviceLock lock(mutex);
  if (!wakes_alone_ || CountLaunches() == launches_when_parked_) return false;
  sluice_budget next = budget;
  next.parked = 0;
  FollowParked(next);
  budget = next;
  return true;
}

void DeviceBudget::NoteRestored(uint64_t bytes) {
  if (!waking_) return;
  woken_bytes_ += bytes;
  const bool has_room = residency.resident_bytes() + memory::kChunkBytes <= residency.capacity();
  const bool may_come = budget.budget_bytes < budget.guaranteed_bytes;  // more room
  if (bytes > 0 || residency.evicting_bytes() > 0 || (!has_room && may_come)) return;
  waking_ = false;
  const uint64_t took = MonotonicNs() - woken_ns_;
  SLUICE_LOG(kInfo, "%s: woken: %.2f GiB of the working set fetched in %.0f ms", uuid.c_str(),
             static_cast<double>(woken_bytes_) / 0x1p30, static_cast<double>(took) / 1e6);
}

}  // namespace sluice
