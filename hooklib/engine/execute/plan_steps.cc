// Device: how the steps of a plan become driver calls on the queues of a stream.
#include <algorithm>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/device_transfers.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/execute/discards.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

void DeviceTransfers::Execute(const policy::PlanStep& step, Stream* stream) {
  if (step.empty()) return;
  Context* const context = stream->context;
  EventPool* const pool = &context->events;
  WithdrawReadMostly(step.drop, ordinal);
  UnadviseAccessedBy(step.unmap, ordinal);
  if (!AdviseReadMostly(step.duplicate, ordinal)) residency.set_read_mostly(false);
  PollEvents(stream);
  // A prefetch on an idle queue runs on the calling thread for its whole length; behind an unfinished event it is
  // deferred. So both queues wait for the next work that this stream finishes, if there is any: it is ordered before
  // the launch in any case.
  const uint64_t next_done = stream->events.empty() ? 0 : stream->events.front().first;
  if (step.out_op && stream->evict_queue.HasStream()) {
    TransferQueue* const queue = &stream->evict_queue;
    const CUstream entry = eviction_threads::EntryStream(queue, &context->eviction_cells, step.evict);
    residency.link().set_slow_write_back(entry == queue->stream);
    const uint64_t after = entry == queue->stream ? std::max(step.out_after, next_done) : step.out_after;
    if (after) WaitFor(stream->events, after, entry);
    const CUresult result = eviction_threads::QueueEviction(queue, entry, &context->eviction_cells, pool, step.evict);
    if (result != CUDA_SUCCESS)
      SLUICE_LOG(kDebug, "prefetch of %zu runs to the host failed with %d", step.evict.size(), result);
    queue->Stamp(step.out_op, pool);
  }
  if (step.in_op && stream->fetch_queue.HasStream()) {
    TransferQueue* const queue = &stream->fetch_queue;
    const bool deferred = step.in_after_out && WaitFor(stream->evict_queue.events, step.in_after_out, queue->stream);
    if (!deferred && next_done) WaitFor(stream->events, next_done, queue->stream);
    AwaitDiscards(stream, queue->stream);
    CUevent begin = timings.BeginFetch(step, stream);
    const CUresult result = FetchRuns(step.fetch, ordinal, queue->stream);
    timings.EndFetch(begin, step, stream);
    if (result != CUDA_SUCCESS) {
      SLUICE_LOG(kDebug, "prefetch of %zu runs failed with %d; they will be faulted in", step.fetch.size(), result);
      residency.NoteNotFetched(step);
    }
    queue->Stamp(step.in_op, pool);
  }
}

void DeviceTransfers::ApplyRemoteMappings(const policy::Plan& plan) {
  const uint64_t begin = MonotonicNs();
  AdviseAccessedBy(plan.map_remote, ordinal);
  UnadviseAccessedBy(plan.unmap_remote, ordinal);
  const uint64_t spent = MonotonicNs() - begin;
  map_ns_ += spent;
  SLUICE_LOG(kDebug, "%zu ranges mapped remotely, %zu unmapped, %zu more to be unmapped by their fetch: %.2f ms",
             plan.map_remote.size(), plan.unmap_remote.size(), plan.now.unmap.size() + plan.ahead.unmap.size(),
             static_cast<double>(spent) / 1e6);
}

void DeviceTransfers::PopulateNow(const policy::Plan& plan, Stream* stream) {
  const auto populate = [&](CUstream queue) {
    const CUresult on_gpu = FetchRuns(plan.populate_now, ordinal, queue);
    const CUresult on_host = EvictRuns(plan.populate_on_host, queue);
    if (on_gpu != CUDA_SUCCESS || on_host != CUDA_SUCCESS)
      SLUICE_LOG(kDebug, "prefetch of discarded runs failed with %d and %d", on_gpu, on_host);
  };
  if (discard_owner) PollQueue(&discard_owner->discard_queue, &discard_owner->context->events);
  if (!discard_owner || discard_owner->discard_queue.done >= discard_op) {
    const CUstream housekeeping = Housekeeping(stream->context);
    populate(housekeeping);
    const OwnWait own;
    g_real.cuStreamSynchronize(housekeeping);
    return;
  }
  // One of the runs may be among those whose discard is still queued. The stream has waited for that discard.
  const ContextScope scope(discard_owner->context->handle);
  TransferQueue* const queue = &discard_owner->discard_queue;
  populate(queue->stream);
  queue->Stamp(queue->newest + 1, &discard_owner->context->events);
  discard_op = queue->newest;
  if (stream->handle) WaitFor(queue->events, queue->newest, stream->handle);
}

void DeviceTransfers::EvictAfter(const std::vector<memory::Extent>& runs, uint64_t op, Stream* stream) {
  if (!op || !stream->evict_queue.HasStream()) return;
  TransferQueue* const queue = &stream->evict_queue;
  Context* const context = stream->context;
  const CUstream entry = eviction_threads::EntryStream(queue, &context->eviction_cells, runs);
  WaitFor(stream->events, stream->recorded, entry);
  eviction_threads::QueueEviction(queue, entry, &context->eviction_cells, &context->events, runs);
  queue->Stamp(op, &context->events);
}

}  // namespace sluice
