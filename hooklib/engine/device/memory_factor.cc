#include "hooklib/engine/device/memory_factor.h"

#include <algorithm>
#include <utility>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

// PUMP's four defaults (nothing seen, the allocator's reports, library extents, both): the less is known of kernels'
// accesses, the more room is left for unknown ones.
uint32_t MemoryFactor::DefaultPercent() const {
  if (device_->budget.memory_factor) return device_->budget.memory_factor;
  return device_->extents_seen ? 100 : device_->reports_seen ? 80 : 60;
}

uint32_t MemoryFactor::Percent() const {
  return std::min(pressure_.FactorFrom(DefaultPercent()), std::max(ceiling_, policy::Pressure::kMinPercent));
}

void MemoryFactor::NotePlannedLaunch(memory::Mark launch) {
  constexpr uint64_t kPartsPerIteration = 16;
  constexpr uint32_t kMinPartLaunches = 4;
  constexpr size_t kMaxParts = 1024;
  // Moves by the application itself look the same: its own managed memory, and reads on the host.
  if (!device_->driver_evicted.counting() || device_->budget.prefetch == SLUICE_PREFETCH_OFF || device_->managed_seen)
    return;
  // H200: a program whose launches name 2 GiB of one allocation in a budget of 1 was taken for one with a neighbour.
  if (device_->residency.has_recent_fault_residue()) return pressure_.Skip(device_->BytesMovedByDriver());
  part_named_bytes_ += device_->residency.named_bytes();
  if (++part_launches_ < kMinPartLaunches || part_named_bytes_ < device_->live_bytes / kPartsPerIteration) return;
  part_launches_ = 0;
  parts_.push_back({launch, std::exchange(part_named_bytes_, 0)});
  uint64_t named = 0;
  // The GPU is asked only where nothing else has asked it for an iteration, and then twice an iteration. Asking each
  // time took 0.1 us of a launch on an H200's host, where a launch is a part.
  const auto is_over = [this](const memory::Mark& mark) SLUICE_DEVICE_LOCKED {
    const Stream* stream = device_->StreamById(mark.stream);
    const bool ask = parts_.size() > kPartsPerIteration && parts_.size() % (kPartsPerIteration / 2) == 1;
    return !stream || mark.seq <= stream->completed || (ask && device_->Done(mark));
  };
  for (; !parts_.empty() && (parts_.size() > kMaxParts || is_over(parts_.front().last_launch)); parts_.pop_front())
    named += parts_.front().named_bytes;
  if (named == 0) return;
  using Advice = policy::Pressure::Advice;
  const Advice advice = pressure_.NoteLaunches(named, device_->BytesMovedByDriver(), device_->live_bytes);
  if (advice == Advice::kNone) return;
  const uint32_t before = Percent(), ceiling = MeasureCeiling();
  const bool changed = advice == Advice::kLower ? pressure_.Lower(DefaultPercent(), ceiling)
                                                : pressure_.Raise(DefaultPercent(), ceiling);
  if (!changed) return;
  device_->UpdateMode();
  SLUICE_LOG(kDebug, "%s: factor %u, was %u; the driver has room for %u %% of the budget", device_->uuid.c_str(),
             Percent(), before, ceiling);
  if (pressure_.is_persistent() || (advice == Advice::kLower && ceiling < before))
    LogLowered(DefaultPercent(), Percent(), ceiling);
}

uint32_t MemoryFactor::MeasureCeiling() const {
  constexpr uint64_t kMarginBytes = uint64_t{128} << 20;  // fetched and evicted chunks are on the GPU at the same time
  const uint64_t budget = device_->budget.budget_bytes;
  size_t free = 0, all = 0;
  // As the driver counts: unmanaged memory and contexts of all processes are used, managed pages are free.
  if (!g_real.cuMemGetInfo_v2 || g_real.cuMemGetInfo_v2(&free, &all) != CUDA_SUCCESS || budget < 100) return 100;
  const uint64_t room = free - std::min<uint64_t>(free, kMarginBytes);
  return static_cast<uint32_t>(std::min<uint64_t>(100, room / (budget / 100)));
}

// On a thread that launches: its context is current, and is not destroyed yet as it may be when the program ends.
void MemoryFactor::UpdateCeiling() {
  constexpr uint32_t kMaxStepUp = 5;  // percent a second
  if (!ceiling_due_) return;
  ceiling_due_ = false;
  const uint32_t now = MeasureCeiling();
  const uint32_t next = now < ceiling_ ? now : std::min(now, ceiling_ + kMaxStepUp);
  if (next == ceiling_) return;
  const uint32_t before = Percent();
  ceiling_ = next;
  if (Percent() == before) return;
  device_->UpdateMode();
  if (Percent() < before) LogLowered(before, Percent(), ceiling_);
}

void MemoryFactor::LogLowered(uint32_t from, uint32_t to, uint32_t ceiling) {
  if (logged_lowered_) return;
  logged_lowered_ = true;
  SLUICE_LOG(kWarn,
             "%s: the driver evicts memory of this process although it stays within its budget of %.2f GiB: %s; factor "
             "lowered from %u to %u, and raised again when that ends",
             device_->uuid.c_str(), static_cast<double>(device_->budget.budget_bytes) / 0x1p30,
             ceiling < from ? "unmanaged memory of other processes (or contexts, or memory that this process takes "
                              "beside sluice) fills the GPU"
                            : "other processes use managed memory on this GPU",
             from, to);
}

}  // namespace sluice
