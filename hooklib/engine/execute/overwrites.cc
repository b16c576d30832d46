#include "hooklib/engine/execute/overwrites.h"

#include "hooklib/dispatch/real.h"
#include "hooklib/engine/device/device.h"
#include "hooklib/engine/execute/driver.h"
#include "hooklib/engine/observe/log.h"

namespace sluice {

bool OrderIsKnown(Stream* stream) {
  if (g_captures.load(std::memory_order_relaxed) > 0) return false;
  if (!stream->blocking || stream->legacy()) return true;
  // Its work also waits for the legacy stream's; that an event alone does so is nowhere written.
  Device* const device = stream->device;
  for (const auto& other : device->streams) {
    if (!other->legacy() || other->context != stream->context) continue;
    device->Poll(other.get());
    if (other->completed < other->seq.load(std::memory_order_acquire)) return false;
  }
  return true;
}

void Repopulate(const policy::Plan& plan, Stream* stream) {
  if (plan.repopulate.empty()) return;
  Device* const device = stream->device;
  // On a queue of its own: the driver takes no discard on the legacy stream, and what is fetched for launches to come
  // must not wait for this stream's work.
  TransferQueue* const queue = &stream->repopulate;
  EventPool* const pool = &stream->context->events;
  if (!queue->Ready()) return;  // faults bring it, contents and all
  const bool ordered = queue->Follow(stream->handle, pool);
  if (plan.repopulate_after) WaitFor(stream->out.events, plan.repopulate_after, queue->stream);
  if (!ordered || !QueueDiscard(plan.repopulate, queue->stream)) device->residency.NoteNotRepopulated(plan);
  const CUresult result = FetchRuns(plan.repopulate, device->ordinal, queue->stream);
  if (result != CUDA_SUCCESS)
    SLUICE_LOG(kDebug, "prefetch of %zu runs to be overwritten failed with %d", plan.repopulate.size(), result);
  queue->Stamp(queue->newest + 1, pool);
  device->WaitForTransfer(stream, *queue, queue->newest);
}

}  // namespace sluice
