// Device: how the steps of a plan become driver calls on the queues of a stream.
#include <algorithm>
#include <span>
#include <utility>

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/context_scope.h"
#include "hooklib/engine/device/device_transfers.h"
#include "hooklib/engine/engine.h"
#include "hooklib/engine/execute/discards.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

namespace {

std::span<const memory::Extent> Part(const std::vector<memory::Extent>& runs, size_t begin, size_t end) {
  return std::span(runs).subspan(begin, end - begin);
}

uint64_t TotalBytes(std::span<const memory::Extent> runs) {
  uint64_t bytes = 0;
  for (const memory::Extent& run : runs) bytes += run.bytes;
  return bytes;
}

}  // namespace

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
    std::vector<eviction_threads::EvictionPart> parts;
    size_t begin = 0;
    for (const policy::PlanPiece& piece : step.pieces) {
      if (piece.out_op)
        parts.push_back({Part(step.evict, std::exchange(begin, piece.evict_end), piece.evict_end), piece.out_op});
    }
    const CUresult result = eviction_threads::QueueEvictions(queue, entry, &context->eviction_cells, pool, parts);
    if (result != CUDA_SUCCESS)
      SLUICE_LOG(kDebug, "prefetch of %zu runs to the host failed with %d", step.evict.size(), result);
  }
  if (step.in_op && stream->fetch_queue.HasStream()) {
    TransferQueue* const queue = &stream->fetch_queue;
    AwaitDiscards(stream, queue->stream);
    size_t begin = 0;
    for (const policy::PlanPiece& piece : step.pieces) {
      if (!piece.in_op) continue;
      const auto runs = Part(step.fetch, std::exchange(begin, piece.fetch_end), piece.fetch_end);
      const bool deferred =
          piece.in_after_out && WaitFor(stream->evict_queue.events, piece.in_after_out, queue->stream);
      if (!deferred && next_done) WaitFor(stream->events, next_done, queue->stream);
      CUevent timed = timings.BeginFetch(TotalBytes(runs), piece.fetch_content_bytes, stream);
      const CUresult result = FetchRuns(runs, ordinal, queue->stream);
      timings.EndFetch(timed, piece.fetch_content_bytes, stream);
      if (result != CUDA_SUCCESS) {
        SLUICE_LOG(kDebug, "prefetch of %zu runs failed with %d; they will be faulted in", runs.size(), result);
        residency.NoteNotFetched(piece);
      }
      queue->Stamp(piece.in_op, pool);
    }
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
  const eviction_threads::EvictionPart part{runs, op};
  eviction_threads::QueueEvictions(queue, entry, &context->eviction_cells, &context->events, {&part, 1});
}

}  // namespace sluice
