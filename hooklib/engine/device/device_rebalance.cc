// Device: what is done beside the launches, on the follower's thread.
#include <ctime>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/execute/work.h"

namespace sluice {

Stream* Device::OwnStream(Context* context) {
  if (!context->own) {
    auto made = std::make_unique<Stream>();
    made->context = context;
    made->device = this;
    made->blocking = false;
    streams.push_back(std::move(made));
    context->own = streams.back().get();
    context->own->id = static_cast<memory::StreamId>(streams.size());
  }
  return context->own;
}

// With the lock held: work(queue) in a context of this device, on queues that belong to no application stream.
template <typename F>
bool Device::OnOwnQueue(F work) {
  for (auto& [handle, context] : contexts) {
    if (context->arena_list.empty() || g_real.cuCtxPushCurrent_v2(handle) != CUDA_SUCCESS) continue;
    {
      RelaxedCapture relaxed;
      ++look;
      work(OwnStream(context.get()));
    }
    CUcontext popped;
    g_real.cuCtxPopCurrent_v2(&popped);
    return true;
  }
  return false;
}

bool Device::OverCapacity() {
  std::lock_guard lock(mutex);
  return active.load() && residency.resident_bytes() > residency.capacity();
}

uint64_t Device::Evict(uint64_t most) {
  std::lock_guard lock(mutex);
  const uint64_t before = residency.resident_bytes();
  if (!active.load() || before <= residency.capacity()) return 0;
  const uint64_t to = std::max(residency.capacity(), before - std::min(before, most));
  OnOwnQueue([&](Stream* queue) {
    const policy::Plan& plan = residency.Shrink(queue->id, to);
    if (!plan.discard.empty()) DiscardRuns(plan.discard, Housekeeping(queue->context));
    Execute(plan.now, queue);
  });
  return before - residency.resident_bytes();
}

uint64_t Device::RestoreWorkingSet(uint64_t most) {
  std::lock_guard lock(mutex);
  if (!active.load() || budget.prefetch == SLUICE_PREFETCH_OFF) return 0;
  const uint64_t before = residency.resident_bytes();
  if (before + memory::kChunkBytes > residency.capacity() || launches_waiting_ > 0) return 0;
  OnOwnQueue([&](Stream* queue) {
    Execute(residency.RestoreWorkingSet(queue->id, most, seconds_[second_ % kSeconds]).now, queue);
  });
  return residency.resident_bytes() - before;
}

void Device::AwaitRoom(const Work& work) {
  // However often the budget moves: a kernel may be waiting for what this very thread does next.
  constexpr uint64_t kMostNs = 500'000'000;
  constexpr timespec kPause{0, 200'000};
  std::unique_lock lock(mutex);
  if (budget.prefetch == SLUICE_PREFETCH_OFF) {  // faults and the driver, whatever comes
    raised_until = 0;
    return;
  }
  Touched touched;
  Resolve(work, &touched);
  const uint64_t began = MonotonicNs();
  uint64_t now = began;
  ++launches_waiting_;
  while (now < raised_until && now - began < kMostNs && residency.BytesToEvict(touched.extents) > 0) {
    lock.unlock();
    nanosleep(&kPause, nullptr);
    lock.lock();
    now = MonotonicNs();
  }
  --launches_waiting_;
  if (now >= raised_until) raised_until = 0;
  residency.set_budget_rising(raised_until != 0);
}

void Device::ExpectRaise() {
  // In this time the agent looks at those who make room, and they send a part away (budget_follower.cc: a slice of it
  // takes 40 ms, and twice that where host pages are new).
  constexpr uint64_t kNextRaiseNs = 100'000'000;
  raised_until = MonotonicNs() + kNextRaiseNs;
}

uint64_t Device::EvictingBytes() {
  std::lock_guard lock(mutex);
  uint64_t bytes = residency.evicting_bytes();
  if (active.load()) OnOwnQueue([&](Stream*) { bytes = residency.EvictingBytes(); });
  return bytes;
}

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
  std::lock_guard lock(mutex);
  return CountLaunches();
}

void Device::NoteSecond() {
  std::lock_guard lock(mutex);
  const uint64_t launches = CountLaunches();
  quiet_seconds_ = launches == launches_then_ ? quiet_seconds_ + 1 : 0;
  if (launches == 0) return;
  if (quiet_seconds_ == 0) {
    launches_then_ = launches;
    seconds_[second_++ % kSeconds] = residency.launches();
  }
  // Nobody looks while everything fits: what lives may have been touched.
  const bool looked = active.load() && second_ > kSeconds;
  working_set_ = plain.load() + (looked ? residency.TouchedSince(seconds_[second_ % kSeconds]) : live_bytes);
  ceiling_due_ = true;
}

}  // namespace sluice
