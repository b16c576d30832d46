#include "hooklib/engine/execute/work.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "hooklib/dispatch/engine_hooks.h"
#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/failures.h"
#include "hooklib/engine/execute/discards.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/execute/value_waits.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

// Where nothing had to be done for a launch, an event is set behind every so many only; work that needs one sets it
// then.
constexpr uint64_t kLaunchesPerEvent = 16;
constexpr int kMaxWaitsForWork = 8;  // of one call, while other threads queue in its stream

}  // namespace

// Where the driver's call would wait for the stream's earlier work with the lock held, the wait comes before the lock,
// and again where such work came meanwhile: that work may wait for another thread, which queues in this stream first.
// Not checked: End releases the lock only where the constructor left it taken, which ordered_ says.
void WorkScope::LockOrder(const Work& work) SLUICE_NO_THREAD_SAFETY_ANALYSIS {
  for (int waits = 1;; ++waits) {
    const uint64_t seen = stream_->seq.load(std::memory_order_acquire);
    if (work.waits) {
      RelaxedCapture relaxed;
      g_real.cuStreamSynchronize(stream_->handle);  // an error is the driver's call's as well
    }
    stream_->order.lock();
    const bool is_behind = !work.waits || stream_->seq.load(std::memory_order_acquire) == seen;
    if (is_behind || waits == kMaxWaitsForWork) break;
    stream_->order.unlock();
  }
  ordered_ = true;
}
void WorkScope::UnlockOrder() SLUICE_NO_THREAD_SAFETY_ANALYSIS {
  ordered_ = false;
  stream_->order.unlock();
}

WorkScope::WorkScope(const Work& work) : stream_(work.stream) {
  Device* device = stream_->device;
  capturing_ = IsCapturing(*stream_);
  if (capturing_) {
    // The graph may use these at any replay, whatever is freed meanwhile.
    for (const uint64_t word : work.words) device->MarkCaptured(word);
    for (const memory::Extent& extent : work.exact) device->MarkCaptured(extent.base);
    return;
  }
  if (stream_->mark_wanted.load(std::memory_order_relaxed) && stream_->mark_wanted.exchange(false)) {
    DeviceLock lock(device->mutex);
    device->RecordEvent(stream_);
  }
  if (!device->active.load(std::memory_order_relaxed)) return;
  if (CallUnderway::IsNested()) {
    device->NoteUnknownWriter();
    return;
  }
  if (device->raise_expected_until_ns.load(std::memory_order_relaxed)) device->AwaitRoom(work);
  if (device->link_meter.MayOwe()) device->AwaitLink(work);
  const uint64_t key = work.key ? work.key : work.id && device->MayUseFastPath() ? KeyOf(work) : 0;
  LockOrder(work);
  DeviceLock lock(device->mutex);
  if (device->fast_path.NoteLocked(device->mutex.acquisitions()) && key &&
      ServeFast(stream_, work.id, work.known, key)) {
    follow_up_ = false;
    return;
  }
  if (!stream_->context) return;
  std::optional<RelaxedCapture> relaxed(std::in_place);
  ++device->poll_epoch;
  bool may_move = true;
  if (MayThrottle(work)) {
    relaxed.reset();  // before the lock is released
    // Other threads must be able to queue the work that this stream waits for.
    lock.Unlock();
    UnlockOrder();
    may_move = Throttle(work);
    LockOrder(work);
    lock.Lock();
    if (!stream_->context) return;
    ++device->poll_epoch;
    device->residency.NoteAwaitedProbes(work.id);
  }
  if (!relaxed) relaxed.emplace();
  PlanWork(work, key, may_move);
}

void WorkScope::PlanWork(const Work& work, uint64_t key, bool may_move) {
  Device* const device = stream_->device;
  policy::Residency& residency = device->residency;
  device->AskToWake();
  device->fault_watch.End();
  const AccessSet& set = device->access_set;
  device->Resolve(work, &device->access_set);
  device->NoteWriters(set, work.may_write_anywhere);
  CountPlannedLaunch(device, work.known);
  // Counted when the driver has it (End): an event set meanwhile is in front of it and must not count as behind it.
  const uint64_t seq = stream_->seq.load(std::memory_order_acquire) + 1;
  const bool is_awaited = std::any_of(work.exact.end() - static_cast<std::ptrdiff_t>(work.overwritten),
                                      work.exact.end(), value_waits::MayBeAwaitedIn);
  const size_t overwritten = work.overwritten && !is_awaited && IsOrderKnown(stream_) ? work.overwritten : 0;
  device->memory_factor.UpdateCeiling();
  device->CountFaults();
  device->fault_watch.NoteNarrowed(work, set);
  device->touch_watch.Observe(work.hot_reaches.has_value());
  if (work.hot_reaches) device->timings.Read();  // they decide its strategy
  AwaitDiscards(stream_);
  stream_->last_launch = residency.launches();
  // Needed for freed chunks only.
  const bool has_freed = residency.has_freed_chunks();
  residency.set_in_order(has_freed && MayDiscardInOrder() && WorksAlone(stream_) && IsOrderKnown(stream_));
  const policy::Plan& plan =
      residency.Prepare(stream_->id, seq, set.extents, work.id, may_move, overwritten, set.hot_count);
  device->touch_watch.Update();
  if (LogEnabled(settings::LogLevel::kDebug)) device->LogPlacement(work);
  bool moves = false;
  // Behind a copy a launch may be the first one that writes the copied bytes (NoteWriters).
  if (!plan.is_empty || work.copy) device->fast_path.Clear();
  if (!plan.is_empty) {
    moves = CarryOut(work, plan);
  } else {
    if (work.copy) device->NoteCopied(set);
    if (!device->timings.empty()) device->timings.Read();
  }
  if (device->link_meter.MayOwe()) device->CountLink();
  if (may_move && device->fault_watch.MayBegin(work, set)) device->fault_watch.Begin(work, set, seq);
  if (work.id) device->memory_factor.NotePlannedLaunch({stream_->id, seq});  // the plan is not valid from here on
  const uint64_t every = residency.in_steady_state() ? kSteadyLaunchesPerEvent : kLaunchesPerEvent;
  follow_up_ = moves || seq >= stream_->recorded + every || residency.awaits_freed() ||
               (work.id && residency.ExpectsFaultResidue(work.id)) || device->fault_watch.Watches(stream_);
  if (work.id) RememberFast(work, key);
}

// Everything that has to be done before the driver's call. True: something was queued or timed.
bool WorkScope::CarryOut(const Work& work, const policy::Plan& plan) {
  Device* const device = stream_->device;
  const ContextScope scope(stream_->context->handle);
  const auto start_timing = [&]() SLUICE_DEVICE_LOCKED {
    CUevent begin = device->timings.Begin(stream_);
    if (!begin) return device->residency.NoteAnswered(plan.probe);
    timing_.emplace(plan.probe, plan.graph_probe, work.function ? work.function->name.substr(0, 96) : "", begin);
  };
  if (plan.graph_probe.id) start_timing();  // a graph is timed with everything that is moved for it
  if (work.copy) device->NoteCopied(device->access_set);
  DiscardNow(plan, stream_);
  if (!plan.populate_now.empty() || !plan.populate_on_host.empty()) device->PopulateNow(plan, stream_);
  const bool moves = !plan.now.empty() || !plan.ahead.empty() || !plan.stream_discard.empty() ||
                     !plan.repopulate.empty() || plan.wait_in || plan.evict_after_op || plan.probe.id ||
                     plan.graph_probe.id;
  // Evictions wait for events of this stream: one must cover everything that was queued.
  if (moves) device->RecordEvent(stream_);
  // Before any eviction is queued: the call waits for evictions under way.
  if (!plan.map_remote.empty() || !plan.unmap_remote.empty()) device->ApplyRemoteMappings(plan);
  if (moves) {
    DiscardFreed(plan, stream_);
    device->Execute(plan.now, stream_);
    Repopulate(plan, stream_);
    if (plan.wait_in) device->timings.WaitForTransfer(stream_, stream_->fetch_queue, plan.wait_in);
    device->Execute(plan.ahead, stream_);
  }
  if (!device->timings.empty()) device->timings.Read();
  if (plan.probe.id) start_timing();
  if (plan.evict_after_op) {
    evict_after_ = plan.evict_after;
    after_op_ = plan.evict_after_op;
  }
  return moves;
}

void* BeginCounted(CUstream handle, bool per_thread) {
  NoteQueued();
  Stream* const stream = FindStream(handle, per_thread);
  if (!stream || IsCapturing(*stream)) return nullptr;
  if (stream->mark_wanted.load(std::memory_order_relaxed) && stream->mark_wanted.exchange(false)) {
    DeviceLock lock(stream->device->mutex);
    stream->device->RecordEvent(stream);
  }
  // A wait may make it part of a capture; never the legacy stream, where an event would break one.
  if (g_captures.load(std::memory_order_relaxed) > 0 && !stream->legacy()) NoteWorkBeforeCapture(stream);
  return stream;
}

void NoteWorkBeforeCapture(Stream* stream) {
  DeviceLock lock(stream->device->mutex);
  stream->device->RecordEvent(stream);
}

// Counted when the driver has it, as in RunCounted.
void EndCounted(void* queue) {
  auto* const stream = static_cast<Stream*>(queue);
  if (!stream || IsCapturing(*stream)) return;  // a wait can make the stream part of a capture
  stream->seq.fetch_add(1, std::memory_order_release);
}

void KeepBarrier(Stream* stream) {
  if (!stream->blocking) return;
  DeviceLock lock(stream->device->mutex);
  const auto& streams = stream->device->streams;
  const bool is_seen = std::any_of(streams.begin(), streams.end(), [&](const auto& other) SLUICE_DEVICE_LOCKED {
    // A destroyed stream counts while its work runs.
    return other.get() != stream && other->context == stream->context && other->blocking &&
           (stream->legacy() || other->legacy()) && (!other->destroyed || other->seq.load() > other->completed);
  });
  if (!is_seen || !stream->context || IsCapturing(*stream)) return;
  RelaxedCapture relaxed;
  const ContextScope scope(stream->context->handle);
  if (!scope.is_current()) return;
  // One with a time: the driver leaves others out of a stream that has no work.
  EventPool* const pool = &stream->context->timing_events;
  const CUevent event = pool->Record(stream->handle);
  if (!event) return;
  pool->Give(event);
  stream->seq.fetch_add(1, std::memory_order_release);
}

void WorkScope::End(CUresult result) {
  if (capturing_) return;
  NoteAnswer(stream_->owner, result);
  stream_->seq.fetch_add(1, std::memory_order_release);
  if (!ordered_) return;
  if (follow_up_) {
    Device* const device = stream_->device;
    DeviceLock lock(device->mutex);
    device->fast_path.NoteLocked(device->mutex.acquisitions());
    stream_->pending_discard_work = 0;
    if (stream_->context) {
      RelaxedCapture relaxed;
      const ContextScope scope(stream_->context->handle);
      const policy::GraphProbe graph = timing_ ? timing_->graph : policy::GraphProbe{};
      if (timing_) device->timings.End(std::move(*timing_), stream_);
      device->RecordEvent(stream_);
      device->EvictAfter(evict_after_, after_op_, stream_);
      if (graph.id) device->timings.RecordGraphTail(graph, after_op_ != 0, stream_);
    }
  }
  UnlockOrder();
}

}  // namespace sluice
