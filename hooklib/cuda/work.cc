#include "hooklib/cuda/work.h"

#include <ctime>

#include "hooklib/cuda/driver.h"
#include "hooklib/cuda/log.h"
#include "hooklib/dispatch/real.h"

namespace sluice {

namespace {
// The driver takes more than 32 and fewer than 128 deferred prefetches before it blocks the caller (facts.md); we hold
// back earlier, outside all locks, so that a caller blocked in the driver never keeps other threads from launching what
// it waits for.
constexpr size_t kMaxOutstanding = 28;
}  // namespace

// Waits while many transfers are queued, as the driver itself does when its queues are full; but if nothing moves for
// 20 ms (a kernel may be waiting for what this very thread does next), the launch goes ahead.
void WorkScope::Throttle(Stream* stream) {
  size_t before = SIZE_MAX;
  for (int still = 0; still < 200;) {
    size_t outstanding;
    {
      std::lock_guard lock(stream->device->mutex);
      RelaxedCapture relaxed;
      outstanding = stream->device->Outstanding(stream);
    }
    if (outstanding < kMaxOutstanding) return;
    still = outstanding < before ? 0 : still + 1;
    before = outstanding;
    const timespec pause{0, 100000};
    nanosleep(&pause, nullptr);
  }
}

WorkScope::WorkScope(const Work& work) : stream_(work.stream) {
  Device* device = stream_->device;
  capturing_ = IsCapturing(*stream_);
  if (capturing_) {
    // The graph may use these at any replay, whatever is freed meanwhile.
    for (const uint64_t word : work.words) device->MarkCaptured(word);
    for (const core::Extent& extent : work.exact) device->MarkCaptured(extent.base);
    return;
  }
  if (stream_->mark_wanted.exchange(false)) {
    std::lock_guard lock(device->mutex);
    device->Record(stream_);
  }
  if (!device->active.load(std::memory_order_relaxed)) {
    stream_->seq.fetch_add(1, std::memory_order_release);
    return;
  }
  Throttle(stream_);
  stream_->order.lock();
  ordered_ = true;
  std::lock_guard lock(device->mutex);
  if (!stream_->context) return;
  RelaxedCapture relaxed;
  static thread_local std::vector<core::Extent> extents;
  extents.assign(work.exact.begin(), work.exact.end());
  for (const uint64_t word : work.words) {
    if (const auto extent = device->live.Resolve(word)) extents.push_back(*extent);
  }
  device->launches_looked_at.fetch_add(1, std::memory_order_relaxed);
  if (work.known) device->launches_known.fetch_add(1, std::memory_order_relaxed);
  const uint64_t seq = stream_->seq.fetch_add(1, std::memory_order_release) + 1;
  const core::Plan& plan = device->residency.Prepare(stream_->id, seq, extents, work.id);
  if (!plan.discard.empty()) DiscardRuns(plan.discard, device->Housekeeping(stream_->context));
  device->Execute(plan.now, stream_);
  if (plan.wait_in) device->WaitForFetch(stream_, plan.wait_in);
  device->Execute(plan.ahead, stream_);
  if (!plan.advise.empty()) AdviseAccessedBy(plan.advise, device->ordinal);
  device->ReadProbes();
  if (plan.probe.id && device->probes.size() < 64) {
    begin_ = stream_->context->timers.Take();
    if (begin_) g_real.cuEventRecord(begin_, stream_->handle);
    probe_ = plan.probe;
  }
  if (plan.after_op) {
    after_.evict_after = plan.evict_after;
    after_.after_op = plan.after_op;
  }
}

void WorkScope::End(CUresult) {
  if (!ordered_) return;
  {
    std::lock_guard lock(stream_->device->mutex);
    if (stream_->context) {
      RelaxedCapture relaxed;
      if (begin_) {
        EventPool* timers = &stream_->context->timers;
        if (CUevent end = timers->Take()) {
          g_real.cuEventRecord(end, stream_->handle);
          stream_->device->probes.push_back({stream_->context, begin_, end, probe_});
        } else {
          timers->Give(begin_);
        }
      }
      stream_->device->Record(stream_);
      stream_->device->EvictAfter(after_, stream_);
    }
  }
  stream_->order.unlock();
}

}  // namespace sluice
