// Device: whether the driver leaves on the card what this process may hold there, and what follows (core/pressure.h).
#include <algorithm>

#include "hooklib/cuda/config.h"
#include "hooklib/cuda/device.h"
#include "hooklib/cuda/driver.h"
#include "hooklib/cuda/log.h"
#include "hooklib/dispatch/real.h"

namespace sluice {

void Device::LookAround(Stream* stream) {
  constexpr size_t kMostLooks = 16;
  // Only where somebody asks for it: on an H200 a fetch of what is there takes as long as one of what is not while much
  // else moves, and a convolution net alone on its card was taken down to a factor of 30, a decoder to 10.
  if (!GetConfig().looks) return;
  if (budget.prefetch == SLUICE_PREFETCH_OFF || !pressure.Due(residency.named_bytes(), live_bytes)) return;
  ReadLooks();
  if (looks.size() >= kMostLooks || !Record(stream)) return;
  Context* const context = stream->context;
  Stream* const own = OwnStream(context);
  if (!own->in.Ready()) return;
  Outstanding(own);  // takes note of what is over on it
  look_random_ = look_random_ * 6364136223846793005u + 1442695040888963407u;
  const core::Step& step = residency.Recheck(own->id, look_random_ >> 33).now;
  if (step.empty()) return;
  // When the launch's turn comes, not now: the host may be far ahead. The launch does not wait for it.
  CUstream queue = own->in.stream;
  WaitFor(stream->events, stream->recorded, queue);
  EventPool* const timers = &context->timers;
  if (!clock_context_ && (clock_ = timers->Take()) && g_real.cuEventRecord(clock_, queue) == CUDA_SUCCESS)
    clock_context_ = context;
  Look one{context, timers->Take(), timers->Take(), 0, pressure.Begin()};
  for (const core::Extent& run : step.fetch) one.bytes += run.bytes;
  bool timed = one.begin && one.end && g_real.cuEventRecord(one.begin, queue) == CUDA_SUCCESS;
  timed &= FetchRuns(step.fetch, ordinal, queue) == CUDA_SUCCESS;
  timed = timed && g_real.cuEventRecord(one.end, queue) == CUDA_SUCCESS;
  own->in.Stamp(step.in_op, &context->events);
  if (timed) {
    looks.push_back(one);
    return;
  }
  if (one.begin) timers->Give(one.begin);
  if (one.end) timers->Give(one.end);
}

void Device::ReadLooks() {
  const auto elapsed = g_real.cuEventElapsedTime_v2 ? g_real.cuEventElapsedTime_v2 : g_real.cuEventElapsedTime;
  while (!looks.empty() && g_real.cuEventQuery(looks.front().end) == CUDA_SUCCESS) {
    const Look one = looks.front();
    looks.pop_front();
    EventPool* const timers = &one.context->timers;
    float took = 0, since = 0;
    if (clock_context_ == one.context && elapsed(&took, one.begin, one.end) == CUDA_SUCCESS &&
        elapsed(&since, clock_, one.end) == CUDA_SUCCESS) {
      // Counted on from look to look: a float of milliseconds is coarse after a day.
      clock_ns_ += static_cast<uint64_t>(static_cast<double>(since) * 1e6);
      timers->Give(clock_);
      clock_ = one.end;
      Judge(one, took);
    } else {
      timers->Give(one.end);
    }
    timers->Give(one.begin);
  }
}

void Device::Judge(const Look& one, float ms) {
  const bool gone = core::Pressure::Gone(one.bytes, static_cast<uint64_t>(static_cast<double>(ms) * 1e6));
  if (gone) {
    SLUICE_LOG(kDebug, "%.0f MiB were to be on the card: %.3f ms to fetch them",
               static_cast<double>(one.bytes) / 0x1p20, static_cast<double>(ms));
  }
  using Wish = core::Pressure::Wish;
  const Wish wish = pressure.Looked(one.what, gone, clock_ns_);
  if (wish == Wish::kNothing) return;
  const uint32_t before = Factor(), ceiling = Ceiling();
  const bool changed = wish == Wish::kLower ? pressure.Lower(Default(), ceiling, clock_ns_)
                                            : pressure.Raise(Default(), ceiling, clock_ns_);
  if (!changed) return;
  UpdateMode();
  SLUICE_LOG(kDebug, "%s: factor %u, was %u; the driver has room for %u %% of the budget", uuid.c_str(), Factor(),
             before, ceiling);
  if (pressure.certain() || (wish == Wish::kLower && ceiling < before)) SayPressure(Default(), Factor(), ceiling);
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
  if (Factor() < before) SayPressure(before, Factor(), ceiling_);
}

void Device::SayPressure(uint32_t from, uint32_t to, uint32_t ceiling) {
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
