// Device: whether the driver leaves on the card what this process may hold there, and what follows (core/pressure.h).
#include <algorithm>
#include <utility>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/config.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

void Device::FollowPressure(memory::Mark launch) {
  constexpr uint64_t kParts = 16;  // of a round
  constexpr uint32_t kLeast = 4;   // launches of a part
  constexpr size_t kMost = 1024;
  // What the application itself moves (managed memory that it asked for, and reads on the host) looks the same.
  if (!taken_.counting() || budget.prefetch == SLUICE_PREFETCH_OFF || managed_seen) return;
  // H200: a program whose launches name 2 GiB of one allocation in a budget of 1 was taken for one with a neighbour.
  if (residency.has_recent_fault_residue()) return pressure.Skip(Moved());
  part_named_ += residency.named_bytes();
  if (++part_launches_ < kLeast || part_named_ < live_bytes / kParts) return;
  part_launches_ = 0;
  parts_.push_back({launch, std::exchange(part_named_, 0)});
  uint64_t named = 0;
  // The GPU is asked only where nobody else has for a round, and then for each half of one: where a launch is a part it
  // took 0.1 us of each on an H200's host.
  const auto over = [this](const memory::Mark& mark) {
    const Stream* stream = StreamById(mark.stream);
    const bool ask = parts_.size() > kParts && parts_.size() % (kParts / 2) == 1;
    return !stream || mark.seq <= stream->completed || (ask && Done(mark));
  };
  for (; !parts_.empty() && (parts_.size() > kMost || over(parts_.front().last)); parts_.pop_front())
    named += parts_.front().named;
  if (named == 0) return;
  using Wish = policy::Pressure::Advice;
  const Wish wish = pressure.NoteLaunches(named, Moved(), live_bytes);
  if (wish == Wish::kNone) return;
  const uint32_t before = Factor(), ceiling = Ceiling();
  const bool changed = wish == Wish::kLower ? pressure.Lower(Default(), ceiling) : pressure.Raise(Default(), ceiling);
  if (!changed) return;
  UpdateMode();
  SLUICE_LOG(kDebug, "%s: factor %u, was %u; the driver has room for %u %% of the budget", uuid.c_str(), Factor(),
             before, ceiling);
  if (pressure.is_persistent() || (wish == Wish::kLower && ceiling < before)) LogPressure(Default(), Factor(), ceiling);
}

uint32_t Device::Ceiling() const {
  size_t free = 0, all = 0;
  // As the driver counts: everybody's plain memory and contexts are used, managed pages are not (facts.md).
  if (!g_real.cuMemGetInfo_v2 || g_real.cuMemGetInfo_v2(&free, &all) != CUDA_SUCCESS || budget.budget_bytes < 100)
    return 100;
  // What arrives and what leaves for it are on the card at the same time.
  const uint64_t room = free - std::min<uint64_t>(free, uint64_t{128} << 20);
  return static_cast<uint32_t>(std::min<uint64_t>(100, room / (budget.budget_bytes / 100)));
}

// On a thread that launches: its context is current, and it is not there any more when the program ends.
void Device::FollowCeiling() {
  constexpr uint32_t kStepUp = 5;  // percent a second
  if (!ceiling_due_) return;
  ceiling_due_ = false;
  const uint32_t now = Ceiling();
  const uint32_t next = now < ceiling_ ? now : std::min(now, ceiling_ + kStepUp);
  if (next == ceiling_) return;
  const uint32_t before = Factor();
  ceiling_ = next;
  if (Factor() == before) return;
  UpdateMode();
  if (Factor() < before) LogPressure(before, Factor(), ceiling_);
}

void Device::LogPressure(uint32_t from, uint32_t to, uint32_t ceiling) {
  if (said_pressure_) return;
  said_pressure_ = true;
  SLUICE_LOG(kWarn,
             "%s: the driver takes memory of this process away although it stays within its budget of %.2f GiB: %s; "
             "factor lowered from %u to %u, and raised again when that ends",
             uuid.c_str(), static_cast<double>(budget.budget_bytes) / 0x1p30,
             ceiling < from
                 ? "plain memory of other processes (or contexts and what this one takes beside sluice) fills "
                   "the card"
                 : "other processes use managed memory on this card",
             from, to);
}

}  // namespace sluice
