// Device: eviction and fetches beside the launches, on the budget follower's thread; and launches that wait for it.
#include <algorithm>
#include <ctime>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/budget_follower.h"
#include "hooklib/engine/device/device_transfers.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/execute/discards.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/execute/work.h"

namespace sluice {

Stream* DeviceTransfers::EngineStream(Context* context) {
  if (!context->engine_stream) {
    context->engine_stream = NewStream(context);
    context->engine_stream->handle = nullptr;  // none of the application's
    context->engine_stream->blocking = false;
  }
  return context->engine_stream;
}

template <typename F>
bool DeviceTransfers::OnEngineStream(F work) {
  for (auto& [handle, context] : contexts) {
    if (context->managed_arenas.empty() || g_real.cuCtxPushCurrent_v2(handle) != CUDA_SUCCESS) continue;
    {
      RelaxedCapture relaxed;
      ++poll_epoch;
      work(EngineStream(context.get()));
    }
    CUcontext popped;
    g_real.cuCtxPopCurrent_v2(&popped);
    return true;
  }
  return false;
}

bool DeviceTransfers::OverCapacity() {
  DeviceLock lock(mutex);
  return active.load() && residency.resident_bytes() > residency.capacity();
}

uint64_t DeviceTransfers::Evict(uint64_t max_bytes, bool reclaimed) {
  DeviceLock lock(mutex);
  const uint64_t moved = residency.stats().bytes_out;
  const uint64_t before = residency.resident_bytes();
  if (!active.load() || before <= residency.capacity()) return 0;
  const uint64_t to = std::max(residency.capacity(), before - std::min(before, max_bytes));
  OnEngineStream([&](Stream* stream) SLUICE_DEVICE_LOCKED {
    const policy::Plan& plan = residency.Shrink(stream->id, to);
    DiscardNow(plan, stream);
    Execute(plan.now, stream);
  });
  if (reclaimed) link_meter.Forgive(residency.stats().bytes_out - moved);
  return before - residency.resident_bytes();
}

uint64_t DeviceTransfers::RestoreWorkingSet(uint64_t max_bytes) {
  DeviceLock lock(mutex);
  if (!active.load() || budget.prefetch == SLUICE_PREFETCH_OFF) {
    waking_ = false;
    return 0;
  }
  if (link_meter.WaitNs(MonotonicNs()) > 0 || launches_waiting_ > 0) return 0;
  const uint64_t before = residency.resident_bytes();
  if (before + memory::kChunkBytes > residency.capacity()) {
    NoteRestored(0);
    return 0;
  }
  OnEngineStream([&](Stream* stream) SLUICE_DEVICE_LOCKED {
    const uint64_t since = launch_at_second_[active_seconds_ % kSeconds];
    Execute(residency.RestoreWorkingSet(stream->id, max_bytes, since).now, stream);
  });
  CountLink();
  const uint64_t restored = residency.resident_bytes() - before;
  NoteRestored(restored);
  return restored;
}

void DeviceTransfers::PopulateDiscarded(bool fetching) {
  OnEngineStream([&](Stream* stream) SLUICE_DEVICE_LOCKED {
    const policy::Plan& plan = residency.PopulateDiscarded(fetching);
    if (!plan.populate_now.empty() || !plan.populate_on_host.empty()) PopulateNow(plan, stream);
  });
}

void DeviceTransfers::PrepareForOtherDevices() {
  // Discards that are still queued may be behind work that waits for the host.
  constexpr int kMaxWaitMs = 50;
  constexpr timespec kPause{0, 1'000'000};
  DeviceLock lock(mutex);
  residency.set_discards_on_host(false);
  PopulateDiscarded(true);
  for (int ms = 0; ms < kMaxWaitMs && discard_owner; ++ms) {
    {
      RelaxedCapture relaxed;
      PollQueue(&discard_owner->discard_queue, &discard_owner->context->events);
    }
    if (discard_owner->discard_queue.done >= discard_op) break;
    DeviceUnlock unlocked(mutex);
    nanosleep(&kPause, nullptr);
  }
}

uint64_t DeviceTransfers::EvictingBytes() {
  DeviceLock lock(mutex);
  uint64_t bytes = residency.evicting_bytes();
  if (active.load()) OnEngineStream([&](Stream*) SLUICE_DEVICE_LOCKED { bytes = residency.EvictingBytes(); });
  return bytes;
}

uint64_t DeviceTransfers::LastEvictingBytes() {
  DeviceLock lock(mutex);
  return residency.evicting_bytes();
}

void DeviceTransfers::MakeRoom() {
  constexpr uint64_t kSliceBytes = uint64_t{256} << 20;
  constexpr timespec kPause{0, 100'000};
  constexpr int kMaxFailedAttempts = 5;
  // The first attempt closes the fence that recent uses leave behind. Chunks that are in use for longer are the
  // follower's to evict.
  for (int failed = 0; failed < kMaxFailedAttempts && g_captures.load() == 0 && OverCapacity();) {
    if (Evict(kSliceBytes, false) > 0) continue;
    ++failed;
    nanosleep(&kPause, nullptr);
  }
  if (OverCapacity()) WakeFollower();
}

}  // namespace sluice
